"""Gaussian processes with any kernel: posterior, evidence and samples."""

import math
from dataclasses import dataclass

from torch import Tensor

from tangentlab.kernels.matrix import Kernel, check_targets, kernel_matrix
from tangentlab.kernels.ridge import predict
from tangentlab.linalg import damped_factor


@dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian process conditioned on noisy values.

    Attributes:
        mean: `(t,)` or `(t, c)`.
        covariance: of the noise-free function, `(t, t)`; `(t,)` when only variances were asked for; None when the
            prior at the new points was not given.
        log_marginal_likelihood: `log N(y; 0, K + noise I)`, a scalar or `(c,)`.
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
    """Posterior of `f ~ GP(0, k)` given `y = f(x) + N(0, noise)` (Rasmussen and Williams 2006, algorithm 2.1).

    With `A = K + noise I`: mean `k_*^T A^-1 y`, covariance `k_** - k_*^T A^-1 k_*`, log marginal likelihood
    `-1/2 y^T A^-1 y - 1/2 log det A - n/2 log 2 pi`. The mean is kernel ridge regression with `lambda n = noise`.

    Args:
        kernel: K, `(n, n)`.
        targets: y, `(n,)` or `(n, c)`, the columns being independent processes.
        noise: variance of the noise.
        cross_kernel: `(t, n)`; by default the new points are the training points.
        test_kernel: prior covariance `(t, t)` at the new points, or only its diagonal `(t,)`.

    Returns:
        A `GaussianProcess`. Cost: n^3 / 3 + n^2 t.

    Raises:
        SolveError: `K + noise I` is singular.
    """
    matrix = kernel_matrix(kernel)
    check_targets(matrix, targets)
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
