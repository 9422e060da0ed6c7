"""Intervals: sampling error by influence functions, and what a lower bound still misses by refits on half of the data.

A held-out value V differs from I in two ways. Its sampling error has the standard error s of the influence function. Its gap
`I - E V = KL(P || G_T) >= 0` is what the critic has not learnt; it falls with the amount of data as c n^-b. Two refits on the
halves of the training part measure `a = V(n) - V(n/2) = gap (2^b - 1)`, on the same test examples, so that most of the sampling
error cancels. Nothing in the data says how fast the gap will go on falling; we assume that it does so at least as n^(-SLOWEST):

    low = V - z s,     high = V + a / (2^SLOWEST - 1) + z sqrt(s^2 + s_a^2 / (2^SLOWEST - 1)^2),

s_a from the spread of the refits and the paired sampling error. A value that is no lower bound has the same room below.
"""

from __future__ import annotations

import math

from torch import Tensor

SLOWEST, TYPICAL = 0.35, 0.5
"""Exponents of the gap's decay: what the interval allows for, and what the extrapolated value takes."""


def standard_error(influence: Tensor) -> float:
    """`sd / sqrt(n)`."""
    return influence.std().item() / math.sqrt(len(influence)) if len(influence) > 1 else math.inf


def z_of(level: float) -> float:
    """The two-sided normal quantile."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def room(step: float, exponent: float) -> float:
    """The gap that is left when twice the data brought `step`, at a decay with `exponent`."""
    return max(step, 0.0) / (2**exponent - 1)


def interval_of(
    value: float,
    influence: Tensor,
    level: float,
    *,
    is_bound: bool,
    full: float | None = None,
    step: float | None = None,
    step_error: float = 0.0,
    least: float = 0.0,
) -> tuple[float, float]:
    """(low, high).

    Args:
        value, influence: the estimate and the influence of every test example.
        level: of the interval.
        is_bound: whether the value is a lower bound in expectation.
        full, step, step_error: value of the fit on all training data, what it gained over halves, and the error of that;
            without them the interval is open above, and below for a value that is no bound.
        least: what the quantity cannot be below.
    """
    z, error = z_of(level), standard_error(influence)
    if step is None or full is None:
        low = value - z * error if is_bound else -math.inf
        return max(least, low), math.inf
    factor = 1 / (2**SLOWEST - 1)
    reach = math.hypot(error, factor * step_error)
    high = max(full + room(step, SLOWEST) + z * reach, value + z * error)
    low = value - z * error if is_bound else value - room(abs(step), SLOWEST) - z * reach
    return max(least, low), max(least, high)
