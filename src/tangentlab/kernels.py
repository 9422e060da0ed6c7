"""Kernel methods on any kernel: ridge regression, RKHS norms, Gaussian processes, Rademacher complexity.

A kernel is a symmetric positive semi-definite matrix ``(n, n)``, or any object whose ``matrix()`` returns one (a tangent
kernel, say). Features Phi are ``(n, p)`` with ``K = Phi Phi^T``; targets are ``(n,)``, or ``(n, c)`` for c outputs that
share the kernel, and every result then has the same trailing axis.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import damped_factor, psd_thin_eigh, random_rows, safe_eigh, sym_pow
from tangentlab.linalg.damped import columnwise

EXACT_SIGNS_LIMIT = 16
"""Largest number of examples for which all sign vectors are enumerated (32768 of them)."""


class HasMatrix(Protocol):
    """Anything that can give its kernel matrix."""

    def matrix(self) -> Tensor:
        """The kernel matrix ``(n, n)``."""
        ...


Kernel = Tensor | HasMatrix


def kernel_matrix(kernel: Kernel) -> Tensor:
    """The matrix ``(n, n)`` of a kernel, checked to be square, nonempty and finite."""
    if not isinstance(kernel, Tensor) and not hasattr(kernel, "matrix"):
        raise InputError(f"a kernel is a tensor or an FMat, not a {type(kernel).__name__}: see torch.as_tensor")
    matrix = kernel if isinstance(kernel, Tensor) else kernel.matrix()
    if not matrix.is_floating_point():
        raise InputError(f"a kernel is of real numbers, this one of {matrix.dtype}: pass kernel.double()")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"a kernel is a nonempty square matrix (n, n), got shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise NumericsError("the kernel has non-finite entries")
    return matrix


def ridge_primal(features: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Ridge weights ``w* = (Phi^T Phi + lambda n I)^-1 Phi^T y``.

    They minimize ``1/n sum_i (<w, phi_i> - y_i)^2 + lambda |w|^2`` (George 2023, section 2.2, example 2); with
    ``lambda = 0``, the solution of least norm.

    Args:
        features: Phi, ``(n, p)``.
        targets: y, ``(n,)`` or ``(n, c)``.
        penalty: lambda; multiplied by n, as in the formula.

    Returns:
        ``(p,)`` or ``(p, c)``. Cost: O(n p^2 + p^3); with ``lambda = 0`` the smaller Gram matrix decides.
    """
    _check_targets(features, targets)
    moments = features.T @ targets
    if penalty == 0:
        values, vectors = psd_thin_eigh(features)
        return vectors @ columnwise(vectors.T @ moments, lambda columns: columns / values[:, None])
    return damped_factor(features.T @ features, penalty * len(features)).solve(moments)


def ridge_dual(kernel: Kernel, targets: Tensor, penalty: float) -> Tensor:
    """Kernel ridge coefficients ``c = (K + lambda n I)^-1 y`` of ``f*(.) = sum_i c_i k(x_i, .)``.

    In features, ``w* = Phi^T c`` (George 2023, section 2.2, example 3). With ``lambda = 0``, the pseudo-inverse.

    Args:
        kernel: K, ``(n, n)``.
        targets: y, ``(n,)`` or ``(n, c)``.
        penalty: lambda; multiplied by n, as in the formula.

    Returns:
        ``(n,)`` or ``(n, c)``. Cost: n^3 / 3 with a positive lambda, 9 n^3 with zero.
    """
    matrix = kernel_matrix(kernel)
    _check_targets(matrix, targets)
    return damped_factor(matrix, penalty * len(matrix), pseudo_inverse=True).solve(targets)


def predict(cross_kernel: Tensor, coefficients: Tensor) -> Tensor:
    """``f(x_j) = sum_i c_i k(x_j, x_i)`` at new points.

    Args:
        cross_kernel: ``(t, n)``, new points against training points.
        coefficients: ``(n,)`` or ``(n, c)``.

    Returns:
        ``(t,)`` or ``(t, c)``.
    """
    if cross_kernel.ndim != 2 or cross_kernel.shape[1] != len(coefficients):
        raise InputError(
            f"the cross kernel must be (new points, {len(coefficients)}), one column per coefficient; "
            f"got {tuple(cross_kernel.shape)}"
        )
    return cross_kernel @ coefficients


def rkhs_norm(kernel: Kernel, coefficients: Tensor) -> Tensor:
    """Norm of ``f = sum_i a_i k(x_i, .)`` in the kernel's function space: ``sqrt(a^T K a)``.

    In features ``f = <w, phi>`` with ``w = Phi^T a``, and the norm is ``|w|``.

    Args:
        kernel: K, ``(n, n)``.
        coefficients: a, ``(n,)`` or ``(n, c)``.

    Returns:
        A scalar, or ``(c,)``.
    """
    matrix = kernel_matrix(kernel)
    _check_targets(matrix, coefficients)
    return (coefficients * (matrix @ coefficients)).sum(0).clamp_min(0).sqrt()


def mercer_features(kernel: Kernel, rank: int | None = None) -> Tensor:
    """Features ``phi_j = sqrt(lambda_j) u_j`` at the kernel's own points, so that ``Phi Phi^T = K``.

    Args:
        kernel: K, ``(n, n)``.
        rank: how many to keep, the largest lambda_j first; by default all that are above rounding.

    Returns:
        Phi, ``(n, r)``. Cost: 9 n^3.
    """
    values, vectors = safe_eigh(kernel_matrix(kernel))
    features = (vectors * sym_pow(values, 0.5)).flip(1)
    return features[:, : min(int((features != 0).any(0).sum()), len(features) if rank is None else rank)]


def feature_distances(kernel: Kernel) -> Tensor:
    """``|phi(x_i) - phi(x_j)| = sqrt(k_ii + k_jj - 2 k_ij)``, ``(n, n)``."""
    matrix = kernel_matrix(kernel)
    squares = matrix.diagonal()
    return (squares[:, None] + squares - 2 * matrix).clamp_min(0).sqrt().fill_diagonal_(0)


def lipschitz_bound(kernel: Kernel, norm: Tensor | float) -> Tensor:
    """Largest ``|f(x_i) - f(x_j)|`` of a function of given RKHS norm: ``|w| |phi(x_i) - phi(x_j)|``.

    Equation 2.2.9 of George (2023).

    Args:
        kernel: K, ``(n, n)``.
        norm: ``|w|``, a scalar (see `rkhs_norm`).

    Returns:
        ``(n, n)``.
    """
    return feature_distances(kernel) * norm


@dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian process conditioned on noisy values.

    Attributes:
        mean: ``(t,)`` or ``(t, c)``.
        covariance: of the noise-free function, ``(t, t)``; ``(t,)`` when only variances were asked for; None when the
            prior at the new points was not given.
        log_marginal_likelihood: ``log N(y; 0, K + noise I)``, a scalar or ``(c,)``.
    """

    mean: Tensor
    covariance: Tensor | None
    log_marginal_likelihood: Tensor


def gaussian_process(
    kernel: Kernel,
    targets: Tensor,
    noise: float,
    *,
    cross_kernel: Tensor | None = None,
    test_kernel: Tensor | None = None,
) -> GaussianProcess:
    """Posterior of ``f ~ GP(0, k)`` given ``y = f(x) + N(0, noise)`` (Rasmussen and Williams 2006, algorithm 2.1).

    With ``A = K + noise I``: mean ``k_*^T A^-1 y``, covariance ``k_** - k_*^T A^-1 k_*``, log marginal likelihood
    ``-1/2 y^T A^-1 y - 1/2 log det A - n/2 log 2 pi``. The mean is kernel ridge regression with ``lambda n = noise``.

    Args:
        kernel: K, ``(n, n)``.
        targets: y, ``(n,)`` or ``(n, c)``, the columns being independent processes.
        noise: variance of the noise.
        cross_kernel: ``(t, n)``; by default the new points are the training points.
        test_kernel: prior covariance ``(t, t)`` at the new points, or only its diagonal ``(t,)``.

    Returns:
        A `GaussianProcess`. Cost: n^3 / 3 + n^2 t.

    Raises:
        SolveError: ``K + noise I`` is singular.
    """
    matrix = kernel_matrix(kernel)
    _check_targets(matrix, targets)
    if cross_kernel is None:
        cross_kernel, test_kernel = matrix, matrix if test_kernel is None else test_kernel
    factor = damped_factor(matrix, noise)
    weights = factor.solve(targets)
    covariance = None
    if test_kernel is not None:
        explained = factor.solve(cross_kernel.T)
        if test_kernel.ndim == 1:
            covariance = (test_kernel - (cross_kernel * explained.T).sum(1)).clamp_min(0)
        else:
            covariance = test_kernel - cross_kernel @ explained
            covariance = (covariance + covariance.T) / 2
    constant = factor.logdet() + len(matrix) * math.log(2 * math.pi)
    likelihood = -0.5 * ((targets * weights).sum(0) + constant)
    return GaussianProcess(predict(cross_kernel, weights), covariance, likelihood)


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
    """Empirical Rademacher complexity of the ball ``{<w, phi> : |w| <= B}``, over all sign vectors.

    ``R = E_sigma sup_w |1/n sum_i sigma_i <w, phi_i>| = (B / n) E_sigma sqrt(sigma^T K sigma)`` (George 2023, section
    2.5). It lies between ``1/sqrt(2)`` times `rademacher_trace_bound` and that bound (Latala and Oleszkiewicz 1994).

    Args:
        kernel: K, ``(n, n)`` with n at most 16.
        radius: B.

    Returns:
        A scalar. Cost: ``2^(n-1) n^2``, as sigma and -sigma count the same.
    """
    matrix = _ball(kernel, radius)
    n = len(matrix)
    if n > EXACT_SIGNS_LIMIT:
        raise InputError(f"{n} examples have 2^{n} sign vectors; use rademacher_monte_carlo above {EXACT_SIGNS_LIMIT}")
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
        kernel: K, ``(n, n)``.
        radius: B.
        samples: number of sign vectors, at least 2.
        confidence: of the interval.
        generator: source of randomness.

    Returns:
        A `RademacherEstimate`. Cost: ``samples * n^2``.
    """
    matrix = _ball(kernel, radius)
    if samples < 2:
        raise InputError(f"an interval needs at least 2 samples, got {samples}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence}")
    n = len(matrix)
    signs = random_rows(samples, n, "rademacher", dtype=matrix.dtype, device=matrix.device, generator=generator)
    values = _correlations(matrix, signs) * (radius / n)
    error = values.std() / samples**0.5
    width = error * torch.special.ndtri(torch.tensor((1 + confidence) / 2, dtype=torch.float64)).item()
    mean = values.mean()
    return RademacherEstimate(mean, (mean - width).clamp_min(0), mean + width, confidence, error)


def rademacher_trace_bound(kernel: Kernel, radius: float = 1.0) -> Tensor:
    """``(B / n) sqrt(tr K)``, an upper bound of `rademacher_exact` by Jensen's inequality; a scalar."""
    matrix = _ball(kernel, radius)
    return matrix.diagonal().sum().clamp_min(0).sqrt() * (radius / len(matrix))


def generalization_bound(complexity: Tensor | float, n: int, delta: float) -> Tensor | float:
    """Equation 2.5.2 of George (2023): ``gap <= 2 R_n + sqrt(log(1 / delta) / (2 n))`` with probability ``1 - delta``.

    Holds for all functions of a class with losses in [0, 1] at once.

    Args:
        complexity: R_n, the expected Rademacher complexity of the class.
        n: number of examples.
        delta: probability of failure.
    """
    _check_bound(n, delta)
    return 2 * complexity + math.sqrt(math.log(1 / delta) / (2 * n))


def empirical_generalization_bound(complexity: Tensor | float, n: int, delta: float) -> Tensor | float:
    """Equation 2.5.4 of George (2023): ``gap <= 2 R^_n + sqrt(log(2 / delta) / n)``, R^_n the empirical complexity.

    Arguments as in `generalization_bound`, with the complexity measured on the sample itself.
    """
    _check_bound(n, delta)
    return 2 * complexity + math.sqrt(math.log(2 / delta) / n)


def _check_bound(n: int, delta: float) -> None:
    if n < 1 or not 0 < delta <= 1:
        raise InputError(f"a bound needs n >= 1 and 0 < delta <= 1, got n = {n} and delta = {delta}")


def _check_targets(rows: Tensor, targets: Tensor) -> None:
    if targets.ndim not in (1, 2) or len(targets) != len(rows) or not len(rows):
        raise InputError(
            f"one row of targets per example is needed, (n,) or (n, c); got {tuple(targets.shape)} for {len(rows)} examples"
        )
    if targets.dtype != rows.dtype:
        raise InputError(f"kernel or features are {rows.dtype}, targets {targets.dtype}: convert one with .to(dtype)")


def _ball(kernel: Kernel, radius: float) -> Tensor:
    if radius < 0:
        raise InputError(f"the radius of a norm ball cannot be negative, got {radius}")
    return kernel_matrix(kernel)


def _correlations(matrix: Tensor, signs: Tensor) -> Tensor:
    """``sqrt(sigma^T K sigma)`` for every row sigma."""
    return (signs * (signs @ matrix)).sum(1).clamp_min(0).sqrt()
