"""The eigenpairs of a positive semi-definite matrix that is known to have few of them."""

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg._matvec import random_rows
from tangentlab.linalg.symmetric import Decomposition, safe_eigh

_OVERSAMPLING = 16
"""One random vector more for so many wanted ones. The range is found by `A G`, whose condition is that of A times that
of a Gaussian matrix of `rank` rows: about `rank` if it is square, 70 with these few more columns at any size."""


def low_rank_eigh(matrix: Tensor, rank: int) -> Decomposition:
    """The largest `rank` eigenpairs of a matrix of at most this rank, which are all that matter: `A = U diag(s) U^T`.

    `Q = qr(A G)` with G Gaussian spans the range of A (Halko, Martinsson and Tropp 2011), `Q^T A Q = V diag(s) V^T`
    is small, and `U = Q V`. Both steps are orthogonal projections, so the error is of rounding size relative to the
    largest eigenvalue, as for a full decomposition. The answer is verified on random vectors.

    Cost: with k = 1.06 rank, `4 n^2 k + 8 n k^2 + 9 k^3` operations, nearly all in large products, in place of `9 n^3`.

    Args:
        matrix: symmetric and positive semi-definite, `(n, n)`.
        rank: an upper bound of the rank; a smaller true rank leaves eigenvalues of rounding size.

    Returns:
        Eigenvalues ascending `(rank,)`, nonnegative, and orthonormal eigenvectors as columns `(n, rank)`. The same
        bits for the same matrix: the random vectors are always the same ones. Half precision is computed in single.

    Raises:
        NumericsError: the rank is larger than promised, or no accurate decomposition was found.
    """
    size = len(matrix)
    if not 1 <= rank <= size:
        raise InputError(f"The argument rank must be between 1 and the size {size} of the matrix, got {rank}.")
    with torch.autocast(matrix.device.type, enabled=False):
        if matrix.dtype in (torch.float16, torch.bfloat16):
            values, vectors = _decomposed(matrix.float(), rank)
            return values.to(matrix.dtype), vectors.to(matrix.dtype)
        return _decomposed(matrix, rank)


def _decomposed(matrix: Tensor, rank: int) -> Decomposition:
    size = len(matrix)
    generator = torch.Generator().manual_seed(size)
    count = min(size, rank + max(8, rank // _OVERSAMPLING))
    sketch = random_rows(count, size, dtype=matrix.dtype, device=matrix.device, generator=generator).T
    span = torch.linalg.qr(matrix @ sketch).Q
    values, inner = safe_eigh(span.T @ (matrix @ span))
    values, vectors = values[-rank:].clamp_min(0), span @ inner[:, -rank:]
    vectors /= torch.linalg.vector_norm(vectors, dim=0)
    _verify(matrix, values, vectors)
    return values, vectors


def _verify(matrix: Tensor, values: Tensor, vectors: Tensor) -> None:
    """`A z = U s U^T z` on four random z, up to 20 (1 + sqrt n) machine epsilons, and `U^T U y = y` on four y."""
    size, rank = vectors.shape
    generator = torch.Generator().manual_seed(size + 1)
    options = {"dtype": matrix.dtype, "device": matrix.device, "generator": generator}
    outer, inner = (random_rows(4, dim, "rademacher", **options).T for dim in (size, rank))  # type: ignore[arg-type]
    tolerance = 20 * (1 + size**0.5) * torch.finfo(matrix.dtype).eps
    residual = (matrix @ outer - vectors @ (values[:, None] * (vectors.T @ outer))).norm() / outer.norm()
    skew = (vectors.T @ (vectors @ inner) - inner).norm() / inner.norm()
    # Not `>`: a NaN must count as inaccurate.
    if not (bool(residual <= tolerance * values[-1]) and bool(skew <= tolerance)):
        raise NumericsError(
            f"This {size} x {size} matrix is not that of its {rank} largest eigenpairs (relative error "
            f"{float(residual / values[-1]):.1e}): its rank is larger, so use safe_eigh."
        )
