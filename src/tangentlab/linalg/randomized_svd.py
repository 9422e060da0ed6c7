"""The leading singular triplets of a matrix given by its products and those of its transpose."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import NumericsError
from tangentlab.linalg._matvec import Matvec, at_least_one
from tangentlab.linalg.range_finder import range_finder


@dataclass(frozen=True)
class RandomizedSVD:
    """`A ~ sum_i s_i u_i v_i^T`.

    Attributes:
        left: `(k, rows)` the u_i, orthonormal.
        singular_values: `(k,)` descending.
        right: `(k, columns)` the v_i, orthonormal.
        residual_norms: `(k,)` `|A v_i - s_i u_i|`; a singular value of A lies within this distance of s_i.
    """

    left: Tensor
    singular_values: Tensor
    right: Tensor
    residual_norms: Tensor


def randomized_svd(
    matvec: Matvec,
    rmatvec: Matvec,
    columns: int,
    k: int,
    *,
    oversampling: int = 8,
    power_iterations: int = 2,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> RandomizedSVD:
    """The k leading singular triplets of any matrix (Halko, Martinsson and Tropp 2011).

    Finds the range Q of A, then decomposes `Q A`, which is exact when the rank of A is at most `k + oversampling`.

    Args:
        matvec: A, `(vectors, columns) -> (vectors, rows)`.
        rmatvec: A^T, `(vectors, rows) -> (vectors, columns)`.
        columns: number of columns of A.
        k: triplets wanted; fewer are returned when the numerical rank is smaller.
        oversampling: further random vectors.
        power_iterations: as in `range_finder`.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of randomness.

    Returns:
        A `RandomizedSVD` with residuals from one more product. Cost: `(2 power_iterations + 2) (k + oversampling)`
        products and `k` for the residuals.
    """
    at_least_one(k=k, columns=columns)
    basis = range_finder(
        matvec,
        columns,
        k + oversampling,
        rmatvec=rmatvec,
        power_iterations=power_iterations,
        dtype=dtype,
        device=device,
        generator=generator,
    )
    if not len(basis):
        empty = basis.new_zeros(0)
        return RandomizedSVD(basis, empty, basis.new_zeros(0, columns), empty)
    small = rmatvec(basis)
    if not bool(torch.isfinite(small).all()):
        raise NumericsError("A matrix-vector product returned non-finite numbers; check the matrix and its scale.")
    inner, singular, right = torch.linalg.svd(small, full_matrices=False)
    left = inner.T @ basis
    left, singular, right = left[:k], singular[:k], right[:k]
    residuals = (matvec(right) - singular[:, None] * left).norm(dim=1)
    return RandomizedSVD(left, singular, right, residuals)
