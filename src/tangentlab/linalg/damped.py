"""Solves and log-determinants of a positive semi-definite matrix plus a multiple of the identity."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError, SolveError
from tangentlab.linalg.symmetric import rounding_rtol, safe_eigh, sym_pow


@dataclass(frozen=True)
class DampedFactor:
    """`A + damping I`, factorized.

    Attributes:
        solve: its inverse applied to `(n,)` or to columns `(n, c)`.
        logdet: its log-determinant, a scalar.
    """

    solve: Callable[[Tensor], Tensor]
    logdet: Callable[[], Tensor]


def damped_factor(matrix: Tensor, damping: float = 0.0, *, pseudo_inverse: bool = False) -> DampedFactor:
    """Factorizes `A + damping I`: by Cholesky, or by the spectrum of A where rounding makes Cholesky fail.

    Args:
        matrix: A, symmetric positive semi-definite, `(n, n)`.
        damping: at least zero.
        pseudo_inverse: with no damping, solve by the pseudo-inverse instead of asking for a regular matrix.

    Returns:
        A `DampedFactor`. Cost: n^3 / 3 by Cholesky, 9 n^3 by the spectrum. Half precision is computed in single precision,
        with the rounding of half precision.

    Raises:
        InputError: negative damping.
        NumericsError: A has clearly negative eigenvalues.
        SolveError: singular to working precision, and no pseudo-inverse was asked for.
    """
    if damping < 0:
        raise InputError(f"A damping, penalty or noise variance cannot be negative, got {damping}.")
    if matrix.dtype in (torch.float16, torch.bfloat16):
        factor = _factorized(matrix.float(), damping, pseudo_inverse, rounding_rtol(matrix.dtype, len(matrix)))
        return DampedFactor(
            lambda rhs: factor.solve(rhs.float()).to(rhs.dtype), lambda: factor.logdet().to(matrix.dtype)
        )
    return _factorized(matrix, damping, pseudo_inverse, rounding_rtol(matrix.dtype, len(matrix)))


def _factorized(matrix: Tensor, damping: float, pseudo_inverse: bool, rtol: float) -> DampedFactor:
    """`damped_factor`, where entries of the matrix are known up to the relative error `rtol` of its largest eigenvalue."""
    if damping > 0 or not pseudo_inverse:
        shifted = matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        lower, failed = torch.linalg.cholesky_ex(shifted)
        # The factorization of a singular matrix may also pass, with pivots that are nothing but rounding.
        noise = rtol * float(shifted.diagonal().max())
        if not int(failed) and float(lower.diagonal().min()) ** 2 > noise:
            return DampedFactor(
                lambda rhs: columnwise(rhs, lambda columns: torch.cholesky_solve(columns, lower)),
                lambda: 2 * lower.diagonal().log().sum(),
            )
    values, vectors = safe_eigh(matrix)
    rounding = rtol * float(values.abs().max())
    if float(values[0]) < -10 * rounding:
        raise NumericsError(f"The matrix is not positive semi-definite: smallest eigenvalue {float(values[0]):.3g}.")
    if damping == 0 and not pseudo_inverse:
        raise SolveError(f"The matrix is singular to working precision; add a damping or noise above {rounding:.2g}.")
    damped = values.clamp_min(0) + damping
    inverse = sym_pow(values, -1, rtol) if damping == 0 else 1 / damped
    return DampedFactor(
        lambda rhs: vectors @ columnwise(vectors.T @ rhs, lambda columns: inverse[:, None] * columns),
        lambda: damped.log().sum(),
    )


def columnwise(values: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies a function of columns `(n, c)` to columns, or to a vector `(n,)` as one column."""
    return function(values) if values.ndim == 2 else function(values[:, None])[:, 0]
