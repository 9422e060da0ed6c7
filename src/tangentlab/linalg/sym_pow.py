"""Powers of symmetric matrices, with one convention for modes that are zero."""

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg.eigh import rounding_rtol, safe_eigh


def sym_pow(eigenvalues: Tensor, power: float, rtol: float | None = None) -> Tensor:
    """``s^power`` of the eigenvalues of a symmetric matrix, where a zero mode stays zero.

    An eigenvalue of size up to ``rtol * max|s|`` is a zero mode: its power is 0 for every exponent, so ``power = -1``
    is the pseudo-inverse, ``power = 0`` the projector onto the range, and ``s^p s^-p`` that projector for every p.
    With a positive integer power nothing is cut, as rounding does no harm there; with a fractional power, eigenvalues
    negative by rounding are zero modes too.

    Args:
        eigenvalues: any shape; the maximum is taken over the last axis.
        power: any real number; with a fractional one the matrix must be positive semi-definite.
        rtol: relative size of a zero; by default `rounding_rtol` of the number of eigenvalues. Give 0 for
            numbers that did not come out of a decomposition (a diagonal matrix), where small is not zero.

    Returns:
        The powers, in the shape, dtype and device of ``eigenvalues``. Cost: linear.

    Raises:
        NumericsError: non-finite eigenvalues, or a fractional power of a matrix with a truly negative eigenvalue.
    """
    if not eigenvalues.dtype.is_floating_point:
        raise InputError(f"eigenvalues must be real floating-point numbers, got {eigenvalues.dtype}")
    if eigenvalues.numel() == 0:
        return eigenvalues.clone()
    if not bool(torch.isfinite(eigenvalues).all()):
        raise NumericsError("the eigenvalues are not finite")
    integer = float(power).is_integer()
    if integer and power > 0:
        return eigenvalues**power
    rounding = rounding_rtol(eigenvalues.dtype, eigenvalues.shape[-1])
    largest = eigenvalues.abs().amax(-1, keepdim=True)
    threshold = (rounding if rtol is None else rtol) * largest
    # Sums over many batches leave more rounding than one decomposition does; ten times that is still no information.
    if not integer and bool((eigenvalues < -torch.maximum(threshold, 10 * rounding * largest)).any()):
        raise NumericsError(
            f"power {power} of a matrix with the negative eigenvalue {float(eigenvalues.min()):.3g} "
            f"(largest {float(eigenvalues.max()):.3g}); add damping or use an integer power"
        )
    zero = (eigenvalues if not integer else eigenvalues.abs()) <= threshold
    return torch.where(zero, 0.0, torch.where(zero, 1.0, eigenvalues) ** power)


def sym_matrix_pow(matrix: Tensor, power: float, rtol: float | None = None) -> Tensor:
    """``A^power = U s^power U^T`` of a symmetric matrix ``(n, n)``, as in `sym_pow`; about 13 n^3 operations."""
    values, vectors = safe_eigh(matrix)
    return (vectors * sym_pow(values, power, rtol)) @ vectors.T
