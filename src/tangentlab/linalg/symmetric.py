"""Dense symmetric matrices: products with the symmetric half computed once, eigendecompositions that do not crash and do not
return rubbish, and powers with one convention for modes that are zero."""

from collections.abc import Callable, Iterator, Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.parallel.threads import side_by_side

Decomposition = tuple[Tensor, Tensor]
_SMALLEST_BLOCK = 32
_ALIGNMENT = 16
"""Blocks of a multiple of this size run at full speed."""
_WORTH_CUTTING = 4e6
"""Products below which one call costs less than several."""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What many products of a dtype are added up in: float32 for 16 bits, in which long sums come to a halt."""
    return torch.promote_types(dtype, torch.float32)


def symmetric_product(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """`rows rows^T` for rows `(..., m, k)`: about half the operations of a plain product.

    The result is cut into blocks; those above the diagonal are computed and mirrored. Small results are one plain
    product, because a block must be large enough to run at full speed.

    Args:
        rows: `(..., m, k)`.
        out: `(..., m, m)`, contiguous and symmetric, to add to in place, of `sum_dtype` too; a new tensor by default.
    """
    size = rows.shape[-2]
    block = max(_SMALLEST_BLOCK, _ALIGNMENT * ceil(size / (8 * _ALIGNMENT)))
    if size < 2 * block or size**2 * rows.shape[-1] < _WORTH_CUTTING or (out is not None and out.dtype != rows.dtype):
        product = rows @ rows.transpose(-1, -2)
        return product if out is None else out.add_(product)
    result = rows.new_zeros((*rows.shape[:-1], size)) if out is None else out
    for matrix, one in zip(result.view(-1, size, size), rows.reshape(-1, *rows.shape[-2:]), strict=True):
        for start in range(0, size, block):
            stop = min(start + block, size)
            matrix[start:stop, start:].addmm_(one[start:stop], one[start:].t())
            matrix[stop:, start:stop] = matrix[start:stop, stop:].t()
    return result


def rounding_rtol(dtype: torch.dtype, size: int) -> float:
    """Relative size below which a computed eigenvalue is rounding: `min(4 + sqrt(size), 64)` machine epsilons.

    Zero eigenvalues of rank-deficient Gram matrices come out below `1 + 0.13 sqrt(size)` epsilons times the largest,
    measured over ranks, spectra and sizes up to 1500 in both precisions.
    """
    return min(4 + size**0.5, 64.0) * torch.finfo(dtype).eps


def safe_eigh(matrix: Tensor, *, precision: torch.dtype | None = None) -> Decomposition:
    """Eigenvalues and eigenvectors of a symmetric matrix, `A = U diag(s) U^T`, verified.

    A float32 matrix is decomposed in float32; the answer is kept if `A z = U s U^T z` and `U U^T z = z` hold to
    rounding on a few random z, and otherwise the work is redone in float64. If that does not converge either (it
    happens to divide and conquer on badly scaled matrices), a small multiple of the identity is added and taken off
    again, and then two other LAPACK algorithms are tried. Cost: about 9 n^3 operations, the check 20 n^2.

    Args:
        matrix: symmetric, `(n, n)`; a rounding-size asymmetry is averaged away.
        precision: dtype to decompose in; by default that of the matrix (float32 for 16-bit floats).

    Returns:
        Eigenvalues ascending `(n,)` and eigenvectors as columns `(n, n)`, in the dtype and device of the matrix.

    Raises:
        InputError: not square, or not symmetric.
        NumericsError: non-finite entries, or no algorithm gave an accurate decomposition.
    """
    return safe_eigh_many([matrix], precision=precision)[0]


def safe_eigh_many(
    matrices: Sequence[Tensor], *, precision: torch.dtype | None = None, names: Sequence[str] | None = None
) -> list[Decomposition]:
    """`safe_eigh` of many matrices, side by side.

    On CPU every decomposition runs on one thread, as many at a time as torch has threads; only one that dominates the
    total gets all threads, and only when no other process wants the processors. On other devices: one after another.

    Args:
        matrices: symmetric matrices of any sizes.
        precision: as in `safe_eigh`.
        names: what to call the matrices in an error message.

    Returns:
        For each matrix its eigenvalues ascending `(n,)` and eigenvectors `(n, n)` as columns.
    """
    labels = [f"matrix {i} of {len(matrices)}" for i in range(len(matrices))] if names is None else list(names)
    jobs = list(zip(matrices, labels, strict=True))

    def decompose(job: tuple[Tensor, str]) -> Decomposition:
        return _decompose(job[0].detach(), job[1], precision)

    if all(matrix.device.type == "cpu" for matrix in matrices):
        return side_by_side(decompose, jobs, [float(matrix.shape[-1]) ** 3 for matrix in matrices])
    return [decompose(job) for job in jobs]


def psd_thin_eigh(rows: Tensor, *, rtol: float | None = None) -> Decomposition:
    """Nonzero eigenpairs of `R^T R` for rows R, by whichever of `R^T R` and `R R^T` is smaller.

    With fewer rows than columns, `R R^T u = s u` gives `v = R^T u / sqrt(s)`; the basis stays thin. The Gram matrix
    of float32 rows is formed and decomposed in float64, since it squares the condition number. Cost: with
    `k = min(m, d)`, 2 k^2 max(m, d) for the Gram, 9 k^3 for its decomposition, 2 m d r for the basis.

    Args:
        rows: `(m, d)`.
        rtol: eigenvalues up to `rtol * largest` are dropped; by default `rounding_rtol`.

    Returns:
        Eigenvalues ascending `(r,)` and orthonormal eigenvectors as columns `(d, r)`, r the numerical rank
        (0 for zero rows).
    """
    if rows.ndim != 2:
        raise InputError(f"The argument rows must be a matrix (m, d), got shape {tuple(rows.shape)}.")
    count, dim = rows.shape
    wide = count < dim
    working = rows.detach().to(torch.promote_types(rows.dtype, torch.float64))
    values, vectors = safe_eigh(working @ working.T if wide else working.T @ working)
    cut = rounding_rtol(rows.dtype, min(count, dim)) if rtol is None else rtol
    keep = values > cut * values[-1:].clamp_min(0)
    values, vectors = values[keep], vectors[:, keep]
    if wide:
        vectors = _orthonormal_columns((working.T @ vectors) / values.sqrt())
    return values.to(rows.dtype), vectors.to(rows.dtype)


def _orthonormal_columns(columns: Tensor) -> Tensor:
    """Columns that are orthonormal up to Gram rounding, made exactly so; the last (most accurate) column leads."""
    size = columns.shape[1]
    identity = torch.eye(size, dtype=columns.dtype, device=columns.device)
    if size == 0 or float((columns.T @ columns - identity).abs().max()) < 100 * torch.finfo(columns.dtype).eps:
        return columns
    basis, triangle = torch.linalg.qr(columns.flip(1))
    signs: Tensor = torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return torch.flip(basis * signs, (1,))


def _decompose(matrix: Tensor, label: str, precision: torch.dtype | None) -> Decomposition:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{label}: a square matrix is needed, got shape {tuple(matrix.shape)}.")
    if not matrix.dtype.is_floating_point:
        raise InputError(f"{label}: a real floating-point matrix is needed, got {matrix.dtype}.")
    size = len(matrix)
    if size == 0:
        return matrix.new_zeros(0), matrix.new_zeros(0, 0)
    working = matrix.to(precision or torch.promote_types(matrix.dtype, torch.float32))
    scale = torch.maximum(working.amax(), -working.amin())
    if not bool(torch.isfinite(scale)):
        raise NumericsError(f"{label}: non-finite entries; look for an overflow or a division by zero upstream.")
    if not bool(scale > 0):
        return matrix.new_zeros(size), torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    working = working / scale
    asymmetry = working - working.T
    allowed = max(1e-3, 4 * torch.finfo(matrix.dtype).eps)
    if float(asymmetry.amax()) > allowed:
        raise InputError(f"{label}: not symmetric (A and A^T differ by more than {allowed:.0e} of the largest entry).")
    working.sub_(asymmetry, alpha=0.5)
    for attempt in _attempts(working):
        try:
            values, vectors = attempt()
        except (torch.linalg.LinAlgError, np.linalg.LinAlgError):
            continue
        if _is_accurate(working, values, vectors):
            return (values * scale).to(matrix.dtype), vectors.to(matrix.dtype)
    raise NumericsError(
        f"{label}: no algorithm decomposed this {size} x {size} matrix; its entries may span too many magnitudes. "
        f"Add damping, or rescale the parameters or outputs that make its largest entries."
    )


def _attempts(matrix: Tensor) -> Iterator[Callable[[], Decomposition]]:
    if matrix.dtype != torch.float64:
        yield lambda: torch.linalg.eigh(matrix)
    double = matrix.double()
    yield lambda: torch.linalg.eigh(double)
    yield lambda: _jittered(double)
    yield lambda: _other_driver(double, "evr")
    yield lambda: _other_driver(double, "ev")


def _jittered(matrix: Tensor) -> Decomposition:
    jitter = 1e-13 * len(matrix)
    values, vectors = torch.linalg.eigh(matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype).to(matrix))
    return values - jitter, vectors


def _other_driver(matrix: Tensor, driver: str) -> Decomposition:
    import scipy.linalg  # only when LAPACK through torch has failed: it takes longer to import than to use

    values, vectors = scipy.linalg.eigh(matrix.cpu().numpy(), driver=driver)
    return torch.from_numpy(values).to(matrix), torch.from_numpy(vectors).to(matrix)


def _is_accurate(matrix: Tensor, values: Tensor, vectors: Tensor) -> bool:
    """Whether `A z = U s U^T z` and `U U^T z = z` on four random z, up to 20 (1 + sqrt n) machine epsilons.

    Over Wishart, rank-deficient, graded and repeated spectra of size 2 to 1500, LAPACK stays below sqrt(n) epsilons.
    """
    size = len(values)
    signs = torch.randint(0, 2, (size, 4), generator=torch.Generator().manual_seed(size))
    probes = (2 * signs - 1).to(values)
    coefficients = vectors.T @ probes
    tolerance = 20 * (1 + size**0.5) * torch.finfo(values.dtype).eps * float(probes.norm())
    residual = (matrix.to(values) @ probes - vectors @ (values[:, None] * coefficients)).norm()
    orthogonality = (vectors @ coefficients - probes).norm()
    # Not `>`: a NaN must count as inaccurate.
    return bool(residual <= tolerance * values.abs().max()) and bool(orthogonality <= tolerance)


def sym_pow(eigenvalues: Tensor, power: float, rtol: float | None = None) -> Tensor:
    """`s^power` of the eigenvalues of a symmetric matrix, where a zero mode stays zero.

    An eigenvalue of size up to `rtol * max|s|` is a zero mode: its power is 0 for every exponent, so `power = -1`
    is the pseudo-inverse, `power = 0` the projector onto the range, and `s^p s^-p` that projector for every p.
    With a positive integer power nothing is cut, as rounding does no harm there; with a fractional power, eigenvalues
    negative by rounding are zero modes too.

    Args:
        eigenvalues: any shape; the maximum is taken over the last axis.
        power: any real number; with a fractional one the matrix must be positive semi-definite.
        rtol: relative size of a zero; by default `rounding_rtol` of the number of eigenvalues. Give 0 for
            numbers that did not come out of a decomposition (a diagonal matrix), where small is not zero.

    Returns:
        The powers, in the shape, dtype and device of `eigenvalues`. Cost: linear.

    Raises:
        NumericsError: non-finite eigenvalues, or a fractional power of a matrix with a truly negative eigenvalue.
    """
    if not eigenvalues.dtype.is_floating_point:
        raise InputError(f"The argument eigenvalues must be real floating-point numbers, got {eigenvalues.dtype}.")
    if eigenvalues.numel() == 0:
        return eigenvalues.clone()
    if not bool(torch.isfinite(eigenvalues).all()):
        raise NumericsError("The eigenvalues are not finite.")
    integer = float(power).is_integer()
    if integer and power > 0:
        return eigenvalues**power
    rounding = rounding_rtol(eigenvalues.dtype, eigenvalues.shape[-1])
    largest = eigenvalues.abs().amax(-1, keepdim=True)
    threshold = (rounding if rtol is None else rtol) * largest
    # Sums over many batches leave more rounding than one decomposition does; ten times that is still no information.
    if not integer and bool((eigenvalues < -torch.maximum(threshold, 10 * rounding * largest)).any()):
        raise NumericsError(
            f"The power {power} of a matrix with the negative eigenvalue {float(eigenvalues.min()):.3g} "
            f"(largest {float(eigenvalues.max()):.3g}); add damping or use an integer power."
        )
    zero = (eigenvalues if not integer else eigenvalues.abs()) <= threshold
    return torch.where(zero, 0.0, torch.where(zero, 1.0, eigenvalues) ** power)


def sym_matrix_pow(matrix: Tensor, power: float, rtol: float | None = None) -> Tensor:
    """`A^power = U s^power U^T` of a symmetric matrix `(n, n)`, as in `sym_pow`; about 13 n^3 operations."""
    values, vectors = safe_eigh(matrix)
    return (vectors * sym_pow(values, power, rtol)) @ vectors.T
