"""The input side of a layer that saw fewer rows than it has columns: eigenvectors where there is something, one rest.

A second moment of k rows has rank k at most. Its eigenvectors of eigenvalue 0 are any basis of the complement, so the only
treatment of it that does not depend on that choice is the same for all directions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tangentlab.objects.pmat.basis import Basis, DenseBasis
from tangentlab.objects.pmat.side import Pairs, Side
from tangentlab.optim.sides import RunningDense

FEW = 0.6
"""Rows per column up to which a thin basis is kept: rotation and eigenvectors then cost clearly less than the full ones."""


class RestBasis(DenseBasis):
    """A basis U (groups, n, r) with r < n columns and one coordinate for all directions outside.

    A vector x has r + 1 coordinates: x U, and the root of the mean square of what lies outside,
    `rest^2 = (|x|^2 - |x U|^2) / (n - r)`. Eigenvalues and the scale have r + 1 columns likewise, the last for each of the
    n - r directions outside, with eigenvalue 0. Turning m vectors there and back costs 4 m n r in place of 4 m n^2.
    """

    @property
    def outside(self) -> int:
        """n - r, the directions that share one coordinate."""
        return self.size - self.kept

    def into(self, x: Tensor) -> Tensor:
        """[x U, rest]."""
        inside = super().into(x)
        outside = _square_length(x) - _square_length(inside)
        return torch.cat([inside, outside.clamp_min(0).div(self.outside).sqrt()], -1)

    def divided(self, x: Tensor, coordinates: Tensor, divisor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """x U w U^T inside, x w_rest outside, for w = 1 / divisor."""
        weights = 1 / divisor
        return back(self.inside_and_rest(x, coordinates[..., :-1], weights[..., :-1], weights[..., -1:]))

    def spread(self, x: Tensor) -> Tensor:
        """The last column once for every direction outside."""
        return torch.cat([x[..., :-1], x[..., -1:].expand(*x.shape[:-1], self.outside)], -1)


class RunningThin(RunningDense):
    """A full second moment whose basis is thin while it is that of few rows."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The number of eigenvectors, if they are not all."""
        return f"thin {self.basis.kept}" if isinstance(self.basis, RestBasis) else "full"

    def absorb(self, mean: Side, decay: float, rows: float) -> None:
        """With an average over batches the rank grows from batch to batch, and the full basis is kept."""
        super().absorb(mean, decay, rows)
        self.rank = int(rows) if decay == 0 and rows <= FEW * self.size else None

    def refreshed(self, pairs: Pairs) -> None:
        """Thin, or full."""
        ((self.values, vectors),) = pairs
        self.basis = self.load_basis(vectors)

    def load_basis(self, *tensors: Tensor) -> Basis:
        """Thin, or full."""
        return RestBasis(*tensors) if tensors[0].shape[-1] < self.size else DenseBasis(*tensors)


def _square_length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
