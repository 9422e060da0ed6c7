"""When to look at a training: step k means after k updates, and step 0 is the network before training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from tangentlab.errors import InputError


class Schedule(ABC):
    """A set of steps; recorders add the first and the last step of a training to it."""

    @abstractmethod
    def between(self, after: int, last: int) -> list[int]:
        """The steps s with `after < s <= last`, in order."""

    def due(self, step: int) -> bool:
        """Whether to look after this many updates."""
        return bool(self.between(step - 1, step))


class Geometric(Schedule):
    """`first * ratio^k` rounded, k = 0, 1, 2 ...: dense early, where kernels move fast, and even on a logarithmic axis.

    The default takes 12 snapshots of 1,000 steps, the first and the last among them; `Geometric(5, 1.15)` is about as dense
    as the steps of Baratin et al. (2021), whose code takes `5 floor(1.15^k)`.
    """

    def __init__(self, first: float = 5.0, ratio: float = 1.7) -> None:
        if first <= 0 or ratio <= 1:
            raise InputError(f"A geometric schedule needs first > 0 and ratio > 1, not {first} and {ratio}.")
        self.first, self.ratio = first, ratio

    def between(self, after: int, last: int) -> list[int]:
        """The steps in between; a step that several k round to is there once."""
        steps, place = set(), self.first
        while round(place) <= last:
            if round(place) > after:
                steps.add(round(place))
            place *= self.ratio
        return sorted(steps)

    def __repr__(self) -> str:
        return f"Geometric({self.first:g}, {self.ratio:g})"


class Every(Schedule):
    """Every `period` steps."""

    def __init__(self, period: int) -> None:
        if period < 1:
            raise InputError(f"Snapshots are at least 1 step apart, not {period}.")
        self.period = period

    def between(self, after: int, last: int) -> list[int]:
        """The multiples in between."""
        return list(range((after // self.period + 1) * self.period, last + 1, self.period))

    def __repr__(self) -> str:
        return f"Every({self.period})"


class At(Schedule):
    """The steps of a list."""

    def __init__(self, steps: Iterable[int]) -> None:
        self.steps = sorted({int(step) for step in steps})

    def between(self, after: int, last: int) -> list[int]:
        """Those of the list in between."""
        return [step for step in self.steps if after < step <= last]

    def __repr__(self) -> str:
        return f"At({self.steps})"


class When(Schedule):
    """The steps at which a function of the step says so."""

    def __init__(self, condition: Callable[[int], bool]) -> None:
        self.condition = condition

    def between(self, after: int, last: int) -> list[int]:
        """One question per step in between."""
        return [step for step in range(after + 1, last + 1) if self.condition(step)]

    def __repr__(self) -> str:
        return f"When({getattr(self.condition, '__name__', self.condition)!s})"


def schedule_of(value: Any) -> Schedule:
    """None: the default; a number: every so many steps; a list of steps; a function step -> bool; or a `Schedule`."""
    if value is None:
        return Geometric()
    if isinstance(value, Schedule):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Every(value)
    if callable(value):
        return When(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return At(value)
    raise InputError(
        f"The schedule must be a number of steps, a list of steps, a function or a Schedule, not {value!r}."
    )
