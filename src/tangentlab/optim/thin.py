"""The input side of a layer that saw fewer rows than it has columns: eigenvectors where there is something, one rest.

A second moment of k rows has rank k at most. Its eigenvectors of eigenvalue 0 are any basis of the complement, so the only
treatment of it that does not depend on that choice is the same for all directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tangentlab.errors import NumericsError
from tangentlab.linalg import low_rank_eigh
from tangentlab.linalg._threads import side_by_side
from tangentlab.objects.pmat.basis import DenseBasis
from tangentlab.optim.distributed import Processes
from tangentlab.optim.sides import DenseSide

Eigen = tuple[Tensor, Tensor]

FEW = 0.6
"""Rows per column up to which a thin basis is kept: rotation and eigenvectors then cost clearly less than the full ones."""

LEADING = 32
"""One in so many eigenvectors counts as leading. In float32 with r = 2048, n = 4608 and w_rest / w = 2000 this brings the
relative error of the second coordinate from 7e-3 to 7e-5, that of a full basis, for 2 % of the time of a rotation."""


class ThinSide(DenseSide):
    """A `DenseSide` whose basis U (groups, n, r) has r < n columns while its second moment is that of r rows.

    A vector x has r + 1 coordinates: x U, and the root of the mean square of what lies outside,
    `rest^2 = (|x|^2 - |x U|^2) / (n - r)`. Eigenvalues and the scale have r + 1 columns likewise, the last for each of the
    n - r directions outside, with eigenvalue 0. Turning m vectors there and back costs 4 m n r in place of 4 m n^2.
    """

    @property
    def outside(self) -> int:
        """n - r, the directions that share one coordinate."""
        return 0 if self.basis is None else self.size - self.basis.shape[-1]

    @property
    def kind(self) -> str:
        """The number of eigenvectors, if they are not all."""
        return f"thin {self.size - self.outside}" if self.outside else super().kind

    def absorb(self, mean: Tensor, decay: float, rows: float) -> None:
        """With an average over batches the rank grows from batch to batch, and the full basis is kept."""
        super().absorb(mean, decay, rows)
        self.rank = int(rows) if decay == 0 and rows <= FEW * self.size else None

    def into(self, x: Tensor) -> Tensor:
        """[x U, rest]."""
        inside = super().into(x)
        if not self.outside:
            return inside
        outside = _square_length(x) - _square_length(inside)
        return torch.cat([inside, outside.clamp_min(0).div(self.outside).sqrt()], -1)

    def divided(self, x: Tensor, coordinates: Tensor, divisor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """x w_rest + (x U (w - w_rest)) U^T for w = 1 / divisor: x U w U^T inside, x w_rest outside.

        Along leading eigenvectors w is by orders of magnitude smaller than w_rest, and the two terms cancel but for
        rounding. Those coordinates are therefore set to x U w once more.
        """
        if not self.outside:
            return super().divided(x, coordinates, divisor, back)
        assert self.basis is not None
        weights = 1 / divisor
        rest = weights[..., -1:]
        inside = coordinates[..., :-1] * (weights[..., :-1] - rest)
        result = torch.baddbmm((x * rest).mT, self.basis, inside.mT)
        count = -(-self.basis.shape[-1] // LEADING)
        leading, wanted = self.basis[..., :count], coordinates[..., :count] * weights[..., :count]
        return back(result.baddbmm_(leading, wanted.mT - leading.mT @ result).mT)

    def spread(self, x: Tensor) -> Tensor:
        """The last column once for every direction outside."""
        if not self.outside:
            return x
        return torch.cat([x[..., :-1], x[..., -1:].expand(*x.shape[:-1], self.outside)], -1)

    def dense_basis(self, like: Tensor) -> Tensor:
        """U and any basis of the complement."""
        assert self.basis is not None
        return DenseBasis(self.basis).completed().vectors

    def placeholder(self) -> tuple[Tensor, Tensor]:
        """r + 1 values and r vectors while the basis is to be thin."""
        if self.rank is None:
            return super().placeholder()
        assert self.statistic is not None
        groups = len(self.statistic)
        return (
            self.statistic.new_empty(groups, self.rank + 1),
            self.statistic.new_empty(groups, self.size, self.rank),
        )

    def _check_basis(self, basis: Tensor | None) -> None:
        return None


def _square_length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()


def refresh_thin(sides: Sequence[DenseSide], processes: Processes) -> None:
    """Thin eigenbases for the sides of low rank; those whose rank turns out to be larger get `rank = None`.

    Every process does its share. Eigenvalues that are not finite say that a decomposition was not accurate, so that all
    processes learn it from the values themselves.
    """
    for side, (values, basis) in zip(sides, processes.share(sides, _decompositions, list), strict=True):
        if bool(torch.isfinite(values).all()):
            side.values, side.basis = values, basis
        else:
            side.rank = None


def _decompositions(sides: Sequence[DenseSide]) -> list[Eigen]:
    return side_by_side(_decomposition, sides, [float(side.size) ** 2 * (side.rank or 0) for side in sides])


def _decomposition(side: DenseSide) -> Eigen:
    """Falling eigenvalues with the 0 of the complement (groups, r + 1), and eigenvectors (groups, n, r)."""
    assert side.statistic is not None and side.rank is not None
    pairs = [_pair(matrix, side.rank) for matrix in side.statistic]
    return torch.stack([values for values, _ in pairs]), torch.stack([basis for _, basis in pairs])


def _pair(matrix: Tensor, rank: int) -> Eigen:
    """The same for one group; NaN eigenvalues for a failure."""
    try:
        values, basis = low_rank_eigh(matrix, rank)
    except NumericsError:
        return matrix.new_full((rank + 1,), torch.nan), matrix.new_zeros(len(matrix), rank)
    return F.pad(values.flip(-1), (0, 1)), basis.flip(-1)
