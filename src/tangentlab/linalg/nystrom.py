"""Randomized Nystrom approximation of a positive semi-definite matrix."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg._estimate import Estimate, mean_with_error
from tangentlab.linalg._matvec import Matvec, at_least_one, product, random_rows
from tangentlab.linalg.orthonormalize import row_factors
from tangentlab.linalg.symmetric import safe_eigh


@dataclass(frozen=True)
class Nystrom:
    """The approximation `A ~ V^T diag(s) V`, never larger than A in the positive semi-definite order.

    Attributes:
        eigenvalues: `(r,)` descending, nonnegative.
        eigenvectors: `(r, dim)` orthonormal rows V.
        matvecs: products with the matrix that were spent.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor
    matvecs: int

    def matvec(self, rows: Tensor) -> Tensor:
        """The approximation applied to row-batched vectors `(vectors, dim)`; 4 r dim operations each."""
        return ((rows @ self.eigenvectors.T) * self.eigenvalues) @ self.eigenvectors

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """`(V^T diag(s) V + damping I)^-1` applied to rows `(vectors, dim)`."""
        if damping <= 0:
            raise InputError(f"A low-rank matrix has an inverse only with a positive damping, got {damping}.")
        factors = 1 / (self.eigenvalues + damping) - 1 / damping
        return ((rows @ self.eigenvectors.T) * factors) @ self.eigenvectors + rows / damping

    def precondition(self, rows: Tensor, damping: float) -> Tensor:
        """The preconditioner of Frangella, Tropp and Udell (2023) for `A + damping I`, applied to rows.

        `P^-1 = (s_r + damping) V^T (diag(s) + damping)^-1 V + (I - V^T V)`, s_r the smallest eigenvalue kept: the
        approximated modes are flattened to the level of the rest, with no 1 / damping blow-up.
        """
        if not len(self.eigenvalues):
            return rows
        factors = (self.eigenvalues[-1] + damping) / (self.eigenvalues + damping) - 1
        return ((rows @ self.eigenvectors.T) * factors) @ self.eigenvectors + rows

    def frobenius_error(self, matvec: Matvec, probes: int = 8, generator: torch.Generator | None = None) -> Estimate:
        """`|A - approximation|_F^2` by Hutchinson: the mean of `|(A - approximation) z|^2` over Gaussian z."""
        at_least_one(probes=probes)
        z = random_rows(
            probes,
            self.eigenvectors.shape[1],
            dtype=self.eigenvectors.dtype,
            device=self.eigenvectors.device,
            generator=generator,
        )
        return mean_with_error((product(matvec, z) - self.matvec(z)).square().sum(1), probes)


def nystrom(
    matvec: Matvec,
    dim: int,
    rank: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Nystrom:
    """`A ~ (A G) (G^T A G)^-1 (A G)^T` with G an orthonormalized Gaussian sketch.

    The matrix is shifted by `v = sqrt(dim) eps |A G|` before the inversion and the shift is taken off the
    eigenvalues at the end, which keeps the small Cholesky factorization stable (Tropp, Yurtsever, Udell and Cevher
    2017). Exact, up to that shift, when the rank of A is at most `rank`. Expected error in trace norm at most
    `(1 + k / (rank - k - 1)) sum_{i > k} s_i` for every `k < rank - 1`.

    Args:
        matvec: positive semi-definite A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        rank: products to spend, cut to `dim`.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of randomness.

    Returns:
        A `Nystrom`; modes that do not rise above the shift are dropped. Cost: `rank` products, O(rank^2 dim).

    Raises:
        NumericsError: A has clearly negative directions.
    """
    at_least_one(dim=dim, rank=rank)
    gaussian = random_rows(min(rank, dim), dim, dtype=dtype, device=device, generator=generator)
    sketch = torch.linalg.qr(gaussian.T).Q.T
    images = product(matvec, sketch)
    shift = dim**0.5 * torch.finfo(images.dtype).eps * float(images.norm())
    if shift == 0:
        return Nystrom(images.new_zeros(0), images.new_zeros(0, dim), len(sketch))
    shifted = images + shift * sketch
    core = shifted @ sketch.T
    values, vectors = safe_eigh((core + core.T) / 2)
    if float(values[0]) < -10 * shift:
        raise NumericsError(
            f"The matrix is not positive semi-definite: a direction of curvature {float(values[0]):.3g} was met."
        )
    keep = values > shift / 10
    half = (vectors[:, keep] / values[keep].sqrt()).T @ shifted
    basis, left, singular, *_ = row_factors(half, rtol=0.0)
    eigenvalues = singular.square() - shift
    alive = eigenvalues > shift
    return Nystrom(eigenvalues[alive], left[:, alive].T @ basis, len(sketch))
