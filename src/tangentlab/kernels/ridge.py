"""Ridge regression with any kernel, RKHS norms, and the features that belong to a kernel.

A kernel is a symmetric positive semi-definite matrix `(n, n)`, or any object whose `matrix()` returns one (a tangent
kernel, say). Features Phi are `(n, p)` with `K = Phi Phi^T`; targets are `(n,)`, or `(n, c)` for c outputs that
share the kernel, and every result then has the same trailing axis.
"""

from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.matrix import Kernel, check_targets, kernel_matrix
from tangentlab.linalg import damped_factor, psd_thin_eigh, safe_eigh, sym_pow
from tangentlab.linalg.damped import columnwise


def ridge_primal(features: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Ridge weights `w* = (Phi^T Phi + lambda n I)^-1 Phi^T y`.

    They minimize `1/n sum_i (<w, phi_i> - y_i)^2 + lambda |w|^2` (George 2023, section 2.2, example 2); with
    `lambda = 0`, the solution of least norm.

    Args:
        features: Phi, `(n, p)`.
        targets: y, `(n,)` or `(n, c)`.
        penalty: lambda; multiplied by n, as in the formula.

    Returns:
        `(p,)` or `(p, c)`. Cost: O(n p^2 + p^3); with `lambda = 0` the smaller Gram matrix decides.
    """
    check_targets(features, targets)
    moments = features.T @ targets
    if penalty == 0:
        values, vectors = psd_thin_eigh(features)
        return vectors @ columnwise(vectors.T @ moments, lambda columns: columns / values[:, None])
    return damped_factor(features.T @ features, penalty * len(features)).solve(moments)


def ridge_dual(kernel: Kernel, targets: Tensor, penalty: float) -> Tensor:
    """Kernel ridge coefficients `c = (K + lambda n I)^-1 y` of `f*(.) = sum_i c_i k(x_i, .)`.

    In features, `w* = Phi^T c` (George 2023, section 2.2, example 3). With `lambda = 0`, the pseudo-inverse.

    Args:
        kernel: K, `(n, n)`.
        targets: y, `(n,)` or `(n, c)`.
        penalty: lambda; multiplied by n, as in the formula.

    Returns:
        `(n,)` or `(n, c)`. Cost: n^3 / 3 with a positive lambda, 9 n^3 with zero.
    """
    matrix = kernel_matrix(kernel)
    check_targets(matrix, targets)
    return damped_factor(matrix, penalty * len(matrix), pseudo_inverse=True).solve(targets)


def predict(cross_kernel: Tensor, coefficients: Tensor) -> Tensor:
    """`f(x_j) = sum_i c_i k(x_j, x_i)` at new points.

    Args:
        cross_kernel: `(t, n)`, new points against training points.
        coefficients: `(n,)` or `(n, c)`.

    Returns:
        `(t,)` or `(t, c)`.
    """
    if cross_kernel.ndim != 2 or cross_kernel.shape[1] != len(coefficients):
        raise InputError(
            f"The cross kernel must be (new points, {len(coefficients)}), one column per coefficient; "
            f"got {tuple(cross_kernel.shape)}."
        )
    return cross_kernel @ coefficients


def rkhs_norm(kernel: Kernel, coefficients: Tensor) -> Tensor:
    """Norm of `f = sum_i a_i k(x_i, .)` in the kernel's function space: `sqrt(a^T K a)`.

    In features `f = <w, phi>` with `w = Phi^T a`, and the norm is `|w|`.

    Args:
        kernel: K, `(n, n)`.
        coefficients: a, `(n,)` or `(n, c)`.

    Returns:
        A scalar, or `(c,)`.
    """
    matrix = kernel_matrix(kernel)
    check_targets(matrix, coefficients)
    return (coefficients * (matrix @ coefficients)).sum(0).clamp_min(0).sqrt()


def mercer_features(kernel: Kernel, rank: int | None = None) -> Tensor:
    """Features `phi_j = sqrt(lambda_j) u_j` at the kernel's own points, so that `Phi Phi^T = K`.

    Args:
        kernel: K, `(n, n)`.
        rank: how many to keep, the largest lambda_j first; by default all that are above rounding.

    Returns:
        Phi, `(n, r)`. Cost: 9 n^3.
    """
    values, vectors = safe_eigh(kernel_matrix(kernel))
    features = (vectors * sym_pow(values, 0.5)).flip(1)
    return features[:, : min(int((features != 0).any(0).sum()), len(features) if rank is None else rank)]


def feature_distances(kernel: Kernel) -> Tensor:
    """`|phi(x_i) - phi(x_j)| = sqrt(k_ii + k_jj - 2 k_ij)`, `(n, n)`."""
    matrix = kernel_matrix(kernel)
    squares = matrix.diagonal()
    return (squares[:, None] + squares - 2 * matrix).clamp_min(0).sqrt().fill_diagonal_(0)


def lipschitz_bound(kernel: Kernel, norm: Tensor | float) -> Tensor:
    """Largest `|f(x_i) - f(x_j)|` of a function of given RKHS norm: `|w| |phi(x_i) - phi(x_j)|`.

    Equation 2.2.9 of George (2023).

    Args:
        kernel: K, `(n, n)`.
        norm: `|w|`, a scalar (see `rkhs_norm`).

    Returns:
        `(n, n)`.
    """
    return feature_distances(kernel) * norm
