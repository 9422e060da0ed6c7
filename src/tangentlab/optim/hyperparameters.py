"""Hyper-parameters that may be a function of the step."""

from __future__ import annotations

from collections.abc import Callable

from tangentlab.errors import InputError

Schedule = float | Callable[[int], float]
"""A number, or a function from the number of steps done to a number."""


def value_at(schedule: Schedule, step: int) -> float:
    """The value of a hyper-parameter at a step."""
    return float(schedule(step)) if callable(schedule) else float(schedule)


def check_schedule(name: str, schedule: Schedule, *, low: float = 0.0, high: float = float("inf")) -> None:
    """Refuse a value outside [low, high]; of a function, the first value is looked at.

    Raises:
        InputError: naming the hyper-parameter and the interval.
    """
    if not callable(schedule) and (isinstance(schedule, bool) or not isinstance(schedule, int | float)):
        raise InputError(
            f"{name} must be a number or a function of the step, got {type(schedule).__name__} {schedule!r}."
        )
    value = value_at(schedule, 0)
    if not low <= value <= high:
        raise InputError(f"{name} must lie between {low:g} and {high:g}, got {value:g}.")


def check_period(name: str, period: int) -> None:
    """Refuse anything but a positive whole number."""
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise InputError(f"{name} must be a positive whole number, got {period!r}.")


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the known ones."""
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
