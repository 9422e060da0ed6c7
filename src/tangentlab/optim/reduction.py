"""What a loss does with its batch: mean, sum, or a division by some number."""

from __future__ import annotations

from math import isfinite

from tangentlab.errors import InputError


def check_reduction(reduction: str | float) -> None:
    """Refuse anything but "mean", "sum" and positive numbers."""
    if isinstance(reduction, str):
        fine = reduction in ("mean", "sum")
    else:
        number = isinstance(reduction, int | float) and not isinstance(reduction, bool)
        fine = number and isfinite(reduction) and reduction > 0
    if not fine:
        raise InputError(f"The argument loss_reduction must be 'mean', 'sum' or a positive number, got {reduction!r}.")


def gain_of(reduction: str | float, examples: int) -> float:
    """What a gradient of the reduced loss has to be multiplied with to become a sum over examples."""
    if reduction == "mean":
        return float(examples)
    return 1.0 if reduction == "sum" else float(reduction)
