"""Rademacher complexity of a norm ball: exact, by Monte Carlo, by the trace bound, and what it guarantees."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.matrix import Kernel, kernel_matrix
from tangentlab.linalg import random_rows

EXACT_SIGNS_LIMIT = 16
"""Largest number of examples for which all sign vectors are enumerated (32768 of them)."""


@dataclass(frozen=True)
class RademacherEstimate:
    """A Monte-Carlo estimate of a Rademacher complexity with its confidence interval.

    Attributes:
        estimate: the mean over sign vectors.
        lower: lower end of the interval.
        upper: upper end of the interval.
        confidence: probability that the interval covers the truth, by the normal approximation.
        standard_error: of the estimate.
    """

    estimate: Tensor
    lower: Tensor
    upper: Tensor
    confidence: float
    standard_error: Tensor


def rademacher_exact(kernel: Kernel, radius: float = 1.0) -> Tensor:
    """Empirical Rademacher complexity of the ball `{<w, phi> : |w| <= B}`, over all sign vectors.

    `R = E_sigma sup_w |1/n sum_i sigma_i <w, phi_i>| = (B / n) E_sigma sqrt(sigma^T K sigma)` (George 2023, section
    2.5). It lies between `1/sqrt(2)` times `rademacher_trace_bound` and that bound (Latala and Oleszkiewicz 1994).

    Args:
        kernel: K, `(n, n)` with n at most 16.
        radius: B.

    Returns:
        A scalar. Cost: `2^(n-1) n^2`, as sigma and -sigma count the same.
    """
    matrix = _ball(kernel, radius)
    n = len(matrix)
    if n > EXACT_SIGNS_LIMIT:
        raise InputError(f"{n} examples have 2^{n} sign vectors; use rademacher_monte_carlo above {EXACT_SIGNS_LIMIT}.")
    codes = torch.arange(2 ** (n - 1), device=matrix.device)[:, None] >> torch.arange(n, device=matrix.device)
    return _correlations(matrix, 1 - 2 * (codes & 1).to(matrix)).mean() * (radius / n)


def rademacher_monte_carlo(
    kernel: Kernel,
    radius: float = 1.0,
    *,
    samples: int = 1000,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RademacherEstimate:
    """The complexity of `rademacher_exact` as a mean over random sign vectors, for any n.

    Args:
        kernel: K, `(n, n)`.
        radius: B.
        samples: number of sign vectors, at least 2.
        confidence: of the interval.
        generator: source of randomness.

    Returns:
        A `RademacherEstimate`. Cost: `samples * n^2`.
    """
    matrix = _ball(kernel, radius)
    if samples < 2:
        raise InputError(f"An interval needs at least 2 samples, got {samples}.")
    if not 0 < confidence < 1:
        raise InputError(f"The argument confidence must be between 0 and 1, got {confidence}.")
    n = len(matrix)
    signs = random_rows(samples, n, "rademacher", dtype=matrix.dtype, device=matrix.device, generator=generator)
    values = _correlations(matrix, signs) * (radius / n)
    error = values.std() / samples**0.5
    width = error * torch.special.ndtri(torch.tensor((1 + confidence) / 2, dtype=torch.float64)).item()
    mean = values.mean()
    return RademacherEstimate(mean, (mean - width).clamp_min(0), mean + width, confidence, error)


def rademacher_trace_bound(kernel: Kernel, radius: float = 1.0) -> Tensor:
    """`(B / n) sqrt(tr K)`, an upper bound of `rademacher_exact` by Jensen's inequality; a scalar."""
    matrix = _ball(kernel, radius)
    return matrix.diagonal().sum().clamp_min(0).sqrt() * (radius / len(matrix))


def generalization_bound(complexity: Tensor | float, n: int, delta: float) -> Tensor | float:
    """Equation 2.5.2 of George (2023): `gap <= 2 R_n + sqrt(log(1 / delta) / (2 n))` with probability `1 - delta`.

    Holds for all functions of a class with losses in [0, 1] at once.

    Args:
        complexity: R_n, the expected Rademacher complexity of the class.
        n: number of examples.
        delta: probability of failure.
    """
    _check_bound(n, delta)
    return 2 * complexity + math.sqrt(math.log(1 / delta) / (2 * n))


def empirical_generalization_bound(complexity: Tensor | float, n: int, delta: float) -> Tensor | float:
    """Equation 2.5.4 of George (2023): `gap <= 2 R^_n + sqrt(log(2 / delta) / n)`, R^_n the empirical complexity.

    Arguments as in `generalization_bound`, with the complexity measured on the sample itself.
    """
    _check_bound(n, delta)
    return 2 * complexity + math.sqrt(math.log(2 / delta) / n)


def _check_bound(n: int, delta: float) -> None:
    if n < 1 or not 0 < delta <= 1:
        raise InputError(f"A bound needs n >= 1 and 0 < delta <= 1, got n = {n} and delta = {delta}.")


def _ball(kernel: Kernel, radius: float) -> Tensor:
    if radius < 0:
        raise InputError(f"The radius of a norm ball cannot be negative, got {radius}.")
    return kernel_matrix(kernel)


def _correlations(matrix: Tensor, signs: Tensor) -> Tensor:
    """`sqrt(sigma^T K sigma)` for every row sigma."""
    return (signs * (signs @ matrix)).sum(1).clamp_min(0).sqrt()
