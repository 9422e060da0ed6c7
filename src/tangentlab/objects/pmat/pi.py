"""pi, the balance of a factored damping, A + pi sqrt(damping) I and B + sqrt(damping) / pi I (Martens & Grosse 2015, 6.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor

from tangentlab.engine.layout import covers
from tangentlab.errors import InputError

Pi = bool | float | Mapping[str, bool | float]
"""True: sqrt((tr A / dim A) / (tr B / dim B)) of each layer; False: 1; a number; or any of these by layer name or glob."""


def balance(left_mean: Tensor, right_mean: Tensor) -> Tensor:
    """sqrt(right / left): pi where A is on the right, of the sides' mean eigenvalues tr / dim.

    A mean of zero counts as the smallest number whose square is one, so that pi and what is divided by it stay finite.
    """
    floor = torch.finfo(left_mean.dtype).tiny ** 0.5
    return (right_mean.clamp_min(floor) / left_mean.clamp_min(floor)).sqrt()


def ratio(pi: bool | float, left_mean: Tensor, right_mean: Tensor, inputs_left: bool) -> Tensor:
    """What sqrt(damping) is multiplied with on the right side and divided by on the left, in the shape of the means.

    Args:
        pi: True, False or a number. inputs_left: A is on the left, so the ratio is 1 / pi.
    """
    if isinstance(pi, bool):
        return balance(left_mean, right_mean) if pi else torch.ones_like(left_mean)
    return torch.full_like(left_mean, 1 / pi if inputs_left else pi)


def check_pi(pi: Pi, names: Iterable[str]) -> None:
    """Refuse numbers that are not positive, and patterns that cover none of the parameters."""
    for value in pi.values() if isinstance(pi, Mapping) else [pi]:
        if not isinstance(value, bool | int | float) or not isfinite(value) or (value is not False and value <= 0):
            raise InputError(
                f"The argument pi must be True, False, a positive number, or these by layer, not {value!r}."
            )
    known = list(names)
    for pattern in pi if isinstance(pi, Mapping) else ():
        if not any(covers(pattern, name) for name in known):
            raise InputError(
                f"The argument pi has an entry for {pattern!r}, which none of the parameters is: {', '.join(known)}."
            )


def pi_of(pi: Pi, names: Sequence[str], default: bool) -> bool | float:
    """pi of the layer with these parameters: the first pattern that covers one of them, else the default."""
    if not isinstance(pi, Mapping):
        return pi
    return next((v for pattern, v in pi.items() if any(covers(pattern, name) for name in names)), default)
