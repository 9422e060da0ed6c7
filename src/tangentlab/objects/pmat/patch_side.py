"""The input side of a convolution whose pixels are taken as spatially uncorrelated (SUA, Grosse & Martens 2016).

Patches have columns (channel, tap), and a last one for the homogeneous 1 if there is a bias. With the second moment of
patches at T output positions replaced by what uncorrelated pixels would give,

    plain:    A / T = Sigma (x) I_taps,  and 1 for the bias               Sigma = mean of x x^T over pixels x
    centred:  A / T = Cov (x) I_taps + m m^T,  m = (mu (x) 1_taps; 1)     mu = mean of x, Cov = Sigma - mu mu^T

both are block-diagonal after an orthogonal change of the taps: one block (`head`) for the first tap together with the bias,
and one (`tail`) that all other taps share. Plain SUA leaves the taps alone; the centred one turns them so that the first is
their mean, which is the only one that sees mu.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tangentlab.linalg import safe_eigh_many, sym_pow


class PatchSide:
    """R blockdiag(head, tail, ..., tail) with R the rotation of the taps; what factors and bases share.

    head: (groups, channels + bias, channels + bias); tail: (groups, channels, channels); rotation: (taps, taps) or None.
    """

    def __init__(self, head: Tensor, tail: Tensor, taps: int, rotation: Tensor | None) -> None:
        self.head, self.tail, self.taps, self.rotation = head, tail, taps, rotation

    @property
    def channels(self) -> int:
        """Channels per group."""
        return self.tail.shape[-1]

    @property
    def bias(self) -> int:
        """1 if there is a homogeneous column, else 0."""
        return self.head.shape[-1] - self.channels

    @property
    def size(self) -> int:
        """Columns, the homogeneous one included."""
        return self.channels * self.taps + self.bias

    def tensors(self) -> list[Tensor]:
        """Stored tensors."""
        return [self.head, self.tail, *([] if self.rotation is None else [self.rotation])]

    def _apply(self, x: Tensor, head: Tensor, tail: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        """x (..., groups, m, size): taps turned by `before`, blocks applied, taps turned by `after`."""
        weight = x[..., : self.channels * self.taps].unflatten(-1, (self.channels, self.taps))
        weight = weight if before is None else weight @ before
        modes = weight.transpose(-1, -2)
        first = torch.cat([modes[..., 0, :], x[..., self.channels * self.taps :]], -1) @ head
        rest = modes[..., 1:, :] @ tail[:, None]
        modes = torch.cat([first[..., None, : self.channels], rest], -2)
        weight = modes.transpose(-1, -2)
        weight = weight if after is None else weight @ after
        return torch.cat([weight.flatten(-2), first[..., self.channels :]], -1)

    def _spread(self, head: Tensor, tail: Tensor) -> Tensor:
        """Numbers per head and tail coordinate, (groups, channels + bias) and (groups, channels), in column order."""
        modes = torch.cat([head[:, : self.channels, None], tail[..., None].expand(-1, -1, self.taps - 1)], -1)
        return torch.cat([modes.flatten(1), head[:, self.channels :]], -1)


class PatchBasis(PatchSide):
    """Orthonormal eigenvectors of a `PatchFactor`; coordinates are in the order of the columns, taps turned."""

    def into(self, x: Tensor) -> Tensor:
        """x U on the last axis, x (..., groups, m, size)."""
        return self._apply(x, self.head, self.tail, self.rotation, None)

    def out_of(self, y: Tensor) -> Tensor:
        """y U^T."""
        turned = None if self.rotation is None else self.rotation.t()
        return self._apply(y, self.head.transpose(-1, -2), self.tail.transpose(-1, -2), None, turned)

    def squares_out_of(self, y: Tensor) -> Tensor:
        """y (U^2)^T with the entries of U squared."""
        turned = None if self.rotation is None else self.rotation.t().square()
        head, tail = self.head.square().transpose(-1, -2), self.tail.square().transpose(-1, -2)
        return self._apply(y, head, tail, None, turned)

    def map(self, function: Callable[[Tensor], Tensor]) -> PatchBasis:
        """Another dtype or device."""
        rotation = None if self.rotation is None else function(self.rotation)
        return PatchBasis(function(self.head), function(self.tail), self.taps, rotation)


class PatchFactor(PatchSide):
    """The second moment A = R blockdiag(head, tail, ..., tail) R^T."""

    @classmethod
    def from_pixels(
        cls, second: Tensor, mean: Tensor, taps: int, bias: bool, positions: float, centred: bool
    ) -> PatchFactor:
        """From mean x x^T (groups, channels, channels) and mean x (groups, channels) over pixels; T positions."""
        if not centred:
            head = torch.nn.functional.pad(second, (0, int(bias), 0, int(bias)))
            if bias:
                head[:, -1, -1] = 1
            return cls(positions * head, positions * second, taps, None)
        tail = second - mean[:, :, None] * mean[:, None, :]
        direction = taps**0.5 * mean
        if bias:
            direction = torch.cat([direction, torch.ones_like(direction[:, :1])], 1)
        head = torch.nn.functional.pad(tail, (0, int(bias), 0, int(bias)))
        head = head + direction[:, :, None] * direction[:, None, :]
        return cls(positions * head, positions * tail, taps, _mean_first(taps, second))

    def right_product(self, x: Tensor) -> Tensor:
        """x A on the last axis, x (..., groups, m, size)."""
        turned = None if self.rotation is None else self.rotation.t()
        return self._apply(x, self.head, self.tail, self.rotation, turned)

    def dense(self) -> Tensor:
        """(groups, size, size)."""
        eye = torch.eye(self.size, dtype=self.head.dtype, device=self.head.device)
        return self.right_product(eye.expand(self.head.shape[0], -1, -1))

    def traces(self) -> Tensor:
        """(groups)."""
        head, tail = (matrix.diagonal(dim1=-2, dim2=-1).sum(-1) for matrix in (self.head, self.tail))
        return head + (self.taps - 1) * tail

    def squared_norms(self) -> Tensor:
        """|A|^2, (groups)."""
        head, tail = (matrix.square().sum((-1, -2)) for matrix in (self.head, self.tail))
        return head + (self.taps - 1) * tail

    def diagonals(self) -> Tensor:
        """(groups, size)."""
        head, tail = (matrix.diagonal(dim1=-2, dim2=-1) for matrix in (self.head, self.tail))
        modes = self._spread(head, tail)
        if self.rotation is None:
            return modes
        weight = modes[:, : self.channels * self.taps].unflatten(-1, (self.channels, self.taps))
        return torch.cat([(weight @ self.rotation.t().square()).flatten(1), modes[:, self.channels * self.taps :]], 1)

    def eigenpairs(self) -> tuple[Tensor, PatchBasis]:
        """Eigenvalues (groups, size) in the order of the coordinates, and the basis: two small decompositions."""
        pairs = safe_eigh_many([*self.head, *self.tail])
        groups = len(self.head)
        heads, tails = pairs[:groups], pairs[groups:]
        values = self._spread(torch.stack([s for s, _ in heads]), torch.stack([s for s, _ in tails]))
        vectors = torch.stack([v for _, v in heads]), torch.stack([v for _, v in tails])
        return values, PatchBasis(*vectors, self.taps, self.rotation)

    def power(self, exponent: float) -> PatchFactor:
        """A^exponent; a null mode is one that is null against the whole of A, not only against its own block."""
        values, basis = self.eigenpairs()
        powers = sym_pow(values, exponent)
        weight = powers[:, : self.channels * self.taps].unflatten(-1, (self.channels, self.taps))
        head = torch.cat([weight[..., 0], powers[:, self.channels * self.taps :]], -1)
        tail = weight[..., -1] if self.taps > 1 else torch.ones_like(weight[..., 0])
        blocks = [(u * s[:, None, :]) @ u.transpose(-1, -2) for u, s in ((basis.head, head), (basis.tail, tail))]
        return PatchFactor(blocks[0], blocks[1], self.taps, self.rotation)

    def scaled(self, factor: float | Tensor) -> PatchFactor:
        """factor A."""
        return PatchFactor(self.head * factor, self.tail * factor, self.taps, self.rotation)

    def map(self, function: Callable[[Tensor], Tensor]) -> PatchFactor:
        """Another dtype or device."""
        rotation = None if self.rotation is None else function(self.rotation)
        return PatchFactor(function(self.head), function(self.tail), self.taps, rotation)


def _mean_first(taps: int, like: Tensor) -> Tensor:
    """A symmetric orthogonal matrix (taps, taps) whose first column is 1 / sqrt(taps): a Householder reflection."""
    target = torch.full((taps,), taps**-0.5, dtype=like.dtype, device=like.device)
    eye = torch.eye(taps, dtype=like.dtype, device=like.device)
    normal = eye[0] - target
    length = normal.square().sum()
    return eye if float(length) == 0 else eye - 2 * torch.outer(normal, normal) / length
