"""The leading eigenpairs of a large Gram matrix: in memory, by landmarks, or from products alone.

A tangent kernel has one dominant mode (close to constant), after which its eigenvalues fall slowly, like a power: the
thousandth is some 1e-5 of the first one and its neighbours are closer still. So residuals are asked for at the level of
rounding, and blocks keep the work in matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.linalg import lanczos, psd_thin_eigh, rounding_rtol, safe_eigh
from tangentlab.objects.fmat_implicit import FMatImplicit

BLOCK = 64
ALL_PAIRS = 1024
"""Matrices up to this size are decomposed completely."""


@dataclass(frozen=True)
class GramPairs:
    """The k largest eigenpairs of a Gram matrix.

    Attributes:
        values: `(k,)` descending.
        vectors: `(k, n)` orthonormal rows; the largest entry of each is positive.
        residual_norms: `(k,)` `|K v - s v|` of the matrix that was decomposed, which for landmarks is an approximation.
        converged: whether they are at the level of rounding.
        message: how they were found.
    """

    values: Tensor
    vectors: Tensor
    residual_norms: Tensor
    converged: bool
    message: str


def gram_eigenpairs(matrix: Tensor, k: int, *, generator: torch.Generator | None = None) -> GramPairs:
    """The k largest eigenpairs of a symmetric matrix in memory, `(n, n)`.

    Block Lanczos in the matrix's own precision down to rounding, twice eps relative to the largest eigenvalue; all pairs
    in float64 when k is a large part of n. Cost: about 8 k n^2 + 64 k^2 n operations against 9 n^3; extra memory 4 k n.
    """
    n = _size(matrix, k)
    if n <= max(3 * k, ALL_PAIRS):
        values, vectors = safe_eigh(matrix, precision=torch.float64)
        values, rows = values[-k:].flip(0), vectors[:, -k:].T.flip(0).contiguous()
        return signed_pairs(
            values, rows, _residuals(matrix, values, rows), True, f"all pairs of a {n:,} x {n:,} matrix"
        )
    _require_symmetric(matrix)
    start = generator if generator is not None else torch.Generator().manual_seed(0)
    found = lanczos(
        lambda rows: rows @ matrix,
        n,
        k,
        block_size=min(k, BLOCK),
        basis_size=max(2 * k, k + 4 * BLOCK),
        tol=2 * torch.finfo(matrix.dtype).eps,
        dtype=matrix.dtype,
        device=matrix.device,
        generator=start,
    )
    message = f"block Lanczos on a {n:,} x {n:,} matrix: {found.message}"
    return signed_pairs(found.eigenvalues, found.eigenvectors, found.residual_norms, found.converged, message)


def landmark_eigenpairs(columns: Tensor, core: Tensor, k: int) -> GramPairs:
    """The k largest eigenpairs of the Nystrom approximation `K_nm K_mm^+ K_mn`, exactly, without forming it.

    With `K_mm = U L U^T` and `B = K_nm U L^-1/2` the approximation is `B B^T`: its eigenvectors are the left singular
    vectors of B, orthonormal, and with all points as landmarks it is the Gram matrix itself. (Extending each eigenvector of
    K_mm by `K_nm u / l` gives neighbouring functions that are not orthogonal: see `Eigenfunctions.extend`.)

    Args:
        columns: `(n, m)` the kernel between all points and the landmarks.
        core: `(m, m)` the kernel of the landmarks.
        k: pairs wanted, at most the rank of the core.
    """
    m = _size(core, k)
    if columns.ndim != 2 or columns.shape[1] != m:
        raise InputError(f"The argument columns must be (n, {m}) for {m} landmarks, got {tuple(columns.shape)}.")
    values, vectors = safe_eigh(core, precision=torch.float64)
    keep = values > rounding_rtol(core.dtype, m) * values[-1]
    if int(keep.sum()) < k:
        raise InputError(
            f"{m} landmarks have a kernel of rank {int(keep.sum())}, which is less than k = {k}: take more."
        )
    factor = (vectors[:, keep] / values[keep].sqrt()).T @ columns.T
    squares, turned = psd_thin_eigh(factor)
    squares, rows = squares[-k:].flip(0), turned[:, -k:].T.flip(0)
    residuals = ((rows @ factor.T) @ factor - squares[:, None] * rows).norm(dim=1)
    return signed_pairs(squares, rows, residuals, True, f"Nystrom with {m:,} landmarks for {len(columns):,} points")


def product_eigenpairs(kernel: FMatImplicit, k: int, generator: torch.Generator | None = None) -> GramPairs:
    """The k largest eigenpairs of a kernel that is never stored, by Lanczos on kernel-vector products.

    Cost: a few k products, each one backward and one forward derivative over all data; memory 4 k n.
    """
    tol = 2 * torch.finfo(kernel._example().dtype).eps
    start = generator if generator is not None else torch.Generator().manual_seed(0)
    found = kernel.top_eigenpairs(k, tol=tol, generator=start)
    message = f"Lanczos on {found.matvecs:,} products: {found.message}"
    return signed_pairs(found.values, found.vectors.flat, found.residual_norms, found.converged, message)


def _size(matrix: Tensor, k: int) -> int:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"A square Gram matrix is needed, got {tuple(matrix.shape)}.")
    if not 1 <= k <= len(matrix):
        raise InputError(f"The argument k must be between 1 and {len(matrix)}, the size of the Gram matrix, not {k}.")
    return len(matrix)


def _require_symmetric(matrix: Tensor) -> None:
    """By its products with one vector from both sides, 4 n^2 operations."""
    vector = torch.arange(len(matrix), dtype=matrix.dtype, device=matrix.device).cos()
    if float((vector @ matrix - matrix @ vector).norm()) > torch.finfo(matrix.dtype).eps ** 0.5 * float(matrix.norm()):
        raise InputError("The Gram matrix is not symmetric.")


def _residuals(matrix: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    return (rows @ matrix - values[:, None] * rows).norm(dim=1)


def signed_pairs(values: Tensor, rows: Tensor, residuals: Tensor, converged: bool, message: str) -> GramPairs:
    """With signs that do not depend on the method: the entry of largest absolute value is positive."""
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return GramPairs(values, rows * largest.sign(), residuals, converged, message)
