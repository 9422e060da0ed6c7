"""Bounds of a risk from its value on a sample: for one function, finitely many, a weighted class, margins, and posteriors.

Losses are in [0, 1], the n examples independent, and each bound holds with probability `1 - delta`. All have the form
`bound(empirical, complexity, n, delta)`; numbers are those of chapter 2 of Baratin (2021).
"""

from __future__ import annotations

import math

from tangentlab.errors import InputError


def hoeffding_bound(empirical: float, n: int, delta: float) -> float:
    """`L^ + sqrt(log(1 / delta) / (2 n))` for one function that was fixed before the sample (8)."""
    return empirical + _deviation(0.0, n, delta)


def hoeffding_tail(excess: float, n: int) -> float:
    """`P(L - L^ > eps) <= exp(-2 n eps^2)` (9)."""
    if n < 1 or excess < 0:
        raise InputError(f"A tail is for an excess >= 0 over n >= 1 examples, not {excess} and {n}.")
    return math.exp(-2 * n * excess**2)


def finite_class_bound(empirical: float, complexity: float, n: int, delta: float) -> float:
    """`L^ + sqrt((log |F| + log(1 / delta)) / (2 n))` for all functions of a finite class at once (10).

    Args:
        empirical: L^, the mean loss on the sample.
        complexity: log |F|, the logarithm of the number of functions.
        n: number of examples.
        delta: probability of failure.
    """
    return empirical + _deviation(complexity, n, delta)


def occam_bound(empirical: float, complexity: float, n: int, delta: float) -> float:
    """`L^ + sqrt((log(1 / pi(f)) + log(1 / delta)) / (2 n))` for weights pi that add up to at most 1 (11).

    `complexity` is log(1 / pi(f)), the length of a description of f in nats; else as in `finite_class_bound`.
    """
    return empirical + _deviation(complexity, n, delta)


def margin_rademacher_bound(empirical: float, complexity: float, n: int, delta: float, margin: float = 1.0) -> float:
    """`L^_gamma + (2 / gamma) R + 3 sqrt(log(2 / delta) / (2 n))` for the error of a binary classifier (12, 13).

    `empirical` is the share of examples with `y f(x) <= gamma`, `complexity` the empirical Rademacher complexity R
    of the class; `tangentlab.kernels.rademacher_exact` and its neighbours compute it for balls of kernels.
    """
    if not margin > 0:
        raise InputError(f"A margin is positive, not {margin}.")
    return empirical + 2 / margin * _checked(complexity) + 3 * _deviation(0.0, n, delta / 2)


def pac_bayes_bound(empirical: float, complexity: float, n: int, delta: float, *, printed: bool = False) -> float:
    """The mean loss of a posterior Q: `E_Q L^ + sqrt((KL(Q | Q0) + log(2 sqrt(n) / delta)) / (2 n))` (Maurer 2004).

    Args:
        empirical: E_Q L^.
        complexity: KL(Q | Q0), with Q0 fixed before the sample.
        n: number of examples.
        delta: probability of failure.
        printed: the form of equation 15, `log(1 / delta)` in place of `log(2 sqrt(n) / delta)`: without the term that
            the proofs need.
    """
    _check(n, delta)
    return empirical + _deviation(_checked(complexity) + (0.0 if printed else math.log(2 * math.sqrt(n))), n, delta)


def _deviation(complexity: float, n: int, delta: float) -> float:
    _check(n, delta)
    return math.sqrt((_checked(complexity) - math.log(delta)) / (2 * n))


def _check(n: int, delta: float) -> None:
    if n < 1 or not 0 < delta <= 1:
        raise InputError(f"A bound needs n >= 1 and 0 < delta <= 1, not n = {n} and delta = {delta}.")


def _checked(complexity: float) -> float:
    if not complexity >= 0:
        raise InputError(f"A complexity is not negative, not {complexity}.")
    return complexity
