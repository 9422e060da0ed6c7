"""How a cross-predictability falls with n: polynomially, which gradients can follow, or faster, which they cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tangentlab.errors import InputError
from tangentlab.limits.functions import Family
from tangentlab.limits.predictability import cross_predictability

CLEAR = 2.0
"""A difference of Akaike's criterion from which one of two fits is taken to be the better one."""


@dataclass(frozen=True)
class Growth:
    """CP over n, and what speaks for either kind of decay.

    Attributes:
        sizes: the n, increasing.
        values: CP at each.
        exponents: `-d log CP / d log n` between neighbours: bounded for a polynomial, growing without end otherwise.
        power: exponent a of the fit `CP = c n^-a`.
        rate: rate b of the fit `CP = c exp(-b n)`.
        power_error: root mean square of the residuals of `log CP` in the first fit.
        rate_error: and in the second.
        evidence: Akaike's criterion of the first fit minus that of the second: positive speaks for an exponential.
    """

    sizes: tuple[int, ...]
    values: tuple[float, ...]
    exponents: tuple[float, ...]
    power: float
    rate: float
    power_error: float
    rate_error: float
    evidence: float

    @property
    def verdict(self) -> str:
        """`"polynomial"`, `"super-polynomial"` or `"undecided"`: the better fit, if the exponents agree with it.

        The exponents of a polynomial do not grow from the first half of the range to the second; those of faster decays do.
        No finite range of n proves either.
        """
        half = len(self.exponents) // 2
        rise = float(np.mean(self.exponents[-half:]) - np.mean(self.exponents[:half]))
        tolerance = 0.02 * max(1.0, abs(self.power))
        if self.evidence < -CLEAR and rise <= tolerance:
            return "polynomial"
        if self.evidence > CLEAR and rise > tolerance:
            return "super-polynomial"
        return "undecided"

    def __str__(self) -> str:
        return (
            f"{self.verdict}: n = {self.sizes[0]} to {self.sizes[-1]}, local exponents {self.exponents[0]:.2f} to "
            f"{self.exponents[-1]:.2f}, n^-{self.power:.2f} misses log CP by {self.power_error:.2g}, "
            f"exp(-{self.rate:.2f} n) by {self.rate_error:.2g}"
        )


def predictability_growth(family: Callable[[int], Family], sizes: Iterable[int]) -> Growth:
    """CP of `family(n)` under uniform inputs for every n, with the evidence for a polynomial or a faster decay."""
    chosen = sorted(set(sizes))
    return growth_of(chosen, [cross_predictability(family(n), spectrum=False).value for n in chosen])


def growth_of(sizes: Iterable[int], values: Iterable[float]) -> Growth:
    """The same from values of CP, at least five of them, all positive."""
    n, cp = np.array(list(sizes), dtype=float), np.array(list(values), dtype=float)
    if len(n) != len(cp) or len(n) < 5 or not (np.diff(n) > 0).all() or not (cp > 0).all():
        raise InputError("A decay is read from at least five increasing n with positive values of CP each.")
    logs = np.log(cp)
    power, power_error = _line(np.log(n), logs)
    rate, rate_error = _line(n, logs)
    evidence = len(n) * (math.log(power_error**2 + 1e-24) - math.log(rate_error**2 + 1e-24))
    exponents = -np.diff(logs) / np.diff(np.log(n))
    return Growth(
        tuple(int(size) for size in n),
        tuple(cp.tolist()),
        tuple(exponents.tolist()),
        -power,
        -rate,
        power_error,
        rate_error,
        evidence,
    )


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and root mean square residual of the best line."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(np.sqrt(np.mean((y - slope * x - offset) ** 2)))
