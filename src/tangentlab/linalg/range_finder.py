"""The dominant range of a matrix from random products."""

import torch
from torch import Tensor

from tangentlab.linalg._matvec import Matvec, at_least_one, random_rows
from tangentlab.linalg.orthonormalize import orthonormal_rows


def range_finder(
    matvec: Matvec,
    dim: int,
    rank: int,
    *,
    rmatvec: Matvec | None = None,
    power_iterations: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Orthonormal rows whose span nearly contains the dominant range of A (Halko, Martinsson and Tropp 2011).

    `Q = orth(A (A^T A)^q G)` with G Gaussian, orthonormalized between products. It contains the whole range when the
    rank of A is at most `rank`.

    Args:
        matvec: A, `(vectors, dim) -> (vectors, rows)`, symmetric or not, square or not.
        dim: size of the vectors that A takes.
        rank: number of random vectors (the wanted rank and some more).
        rmatvec: A^T, `(vectors, rows) -> (vectors, dim)`; by default A itself, for a symmetric matrix.
        power_iterations: q; each costs two more batched products and sharpens slowly decaying spectra.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of randomness.

    Returns:
        `(r, rows)` orthonormal rows, `r <= rank`. Cost: `(2 q + 1) rank` products and O(rank^2 dim) operations.
    """
    at_least_one(rank=rank)
    transposed = rmatvec or matvec
    rows = matvec(random_rows(min(rank, dim), dim, dtype=dtype, device=device, generator=generator))
    for _ in range(power_iterations):
        basis = orthonormal_rows(rows)
        if not len(basis):
            break
        rows = matvec(orthonormal_rows(transposed(basis)))
    return orthonormal_rows(rows)
