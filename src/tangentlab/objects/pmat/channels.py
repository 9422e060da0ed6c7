"""The input side of a convolution whose pixels are taken as spatially uncorrelated (SUA, Grosse & Martens 2016).

Patches have columns (channel, tap), and a last one for the homogeneous 1 if there is a bias. With the second moment of
patches at T output positions replaced by what uncorrelated pixels would give,

    plain:    A / T = Sigma (x) I_taps,  and 1 for the bias               Sigma = mean of x x^T over pixels x
    centred:  A / T = Cov (x) I_taps + m m^T,  m = (mu (x) 1_taps; 1)     mu = mean of x, Cov = Sigma - mu mu^T

both are block-diagonal after an orthogonal change of the taps: one block (`tail`) that taps share, and one (`head`) for the
rest. Plain SUA leaves the taps alone, all share the tail, and the head is the bias alone; the centred one turns the taps so
that the first is their mean, the only one that sees mu, and has it in the head, together with the bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.objects.pmat.basis import Basis, Stored
from tangentlab.objects.pmat.side import DenseSide, Eigen, Pairs, Side, damped_inverse


class _Channels(Stored):
    """R blockdiag(tail, ..., tail, head) with R the rotation of the taps; what the side and its basis share.

    tail: (groups, channels, channels). head: (groups, h, h) with h = bias, and the channels of the first tap if there is a
    rotation (taps, taps).
    """

    stored = ("head", "tail", "rotation")

    def __init__(self, head: Tensor, tail: Tensor, taps: int, rotation: Tensor | None) -> None:
        self.head, self.tail, self.taps, self.rotation = head, tail, taps, rotation
        self.channels, self.alike = tail.shape[-1], taps - (rotation is not None)
        self.size = self.alike * self.channels + head.shape[-1]

    def _turned(self, rotation: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Columns (..., m, size) as channels of the taps that are alike, (..., m alike, channels), and the head's columns."""
        count = self.channels * self.taps
        weight, bias = x[..., :count].unflatten(-1, (self.channels, self.taps)), x[..., count:]
        if rotation is None:
            return weight.mT.flatten(-3, -2), bias
        modes = (weight @ rotation).mT
        return modes[..., 1:, :].flatten(-3, -2), torch.cat([modes[..., 0, :], bias], -1)

    def _columns(self, rotation: Tensor | None, rest: Tensor, head: Tensor) -> Tensor:
        """The inverse."""
        modes = rest.unflatten(-2, (-1, self.alike))
        if rotation is None:
            return _joined(modes.mT.flatten(-2), head)
        modes = torch.cat([head[..., None, : self.channels], modes], -2)
        return _joined((modes.mT @ rotation.mT).flatten(-2), head[..., self.channels :])

    def _coordinates(self, rest: Tensor, head: Tensor) -> Tensor:
        """Coordinates (..., m, size): those of the taps that are alike, one after the other, then the head's."""
        return _joined(rest.unflatten(-2, (-1, self.alike)).flatten(-2), head)

    def _parts(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse."""
        count = self.alike * self.channels
        return y[..., :count].unflatten(-1, (self.alike, -1)).flatten(-3, -2), y[..., count:]

    def stacks(self) -> list[Tensor]:
        """The tail, and the head if it is more than a number."""
        return [self.tail] if self.rotation is None else [self.tail, self.head]


class ChannelBasis(_Channels, Basis):
    """Orthonormal eigenvectors of a `ChannelSide`; every tap keeps coordinates of its own, though taps share a basis."""

    def __init__(self, head: Tensor, tail: Tensor, taps: int, rotation: Tensor | None) -> None:
        super().__init__(head, tail, taps, rotation)
        self.kept, self.cost = self.size, self.channels

    def into(self, x: Tensor) -> Tensor:
        """x U."""
        rest, head = self._turned(self.rotation, x)
        return self._coordinates(rest @ self.tail, head @ self.head)

    def out_of(self, y: Tensor) -> Tensor:
        """y U^T."""
        rest, head = self._parts(y)
        return self._columns(self.rotation, rest @ self.tail.mT, head @ self.head.mT)

    def squares_out_of(self, y: Tensor) -> Tensor:
        """y (U^2)^T."""
        rest, head = self._parts(y)
        rotation = None if self.rotation is None else self.rotation.square()
        return self._columns(rotation, rest @ self.tail.square().mT, head @ self.head.square().mT)

    def transport(self, x: Tensor, old: ChannelBasis) -> Tensor:
        """On channels, tap by tap."""
        rest, head = self._parts(x)
        squares = [(before.mT @ now).square() for before, now in ((old.tail, self.tail), (old.head, self.head))]
        return self._coordinates(rest @ squares[0], head @ squares[1])


class ChannelSide(_Channels, Side):
    """The second moment A = R blockdiag(tail, ..., tail, head) R^T. Memory 2 channels^2 at most, whatever the kernel."""

    @classmethod
    def plain(cls, second: Tensor, taps: int, bias: bool, positions: float) -> ChannelSide:
        """From T mean x x^T (groups, channels, channels) over pixels; T positions."""
        return cls(second.new_full((len(second), int(bias), int(bias)), positions), second, taps, None)

    @classmethod
    def centred(cls, second: Tensor, mean: Tensor, taps: int, bias: bool, positions: float) -> ChannelSide:
        """From mean x x^T (groups, channels, channels) and mean x (groups, channels) over pixels; T positions."""
        tail = second - mean[:, :, None] * mean[:, None, :]
        direction = nn.functional.pad(taps**0.5 * mean, (0, int(bias)), value=1.0)
        head = nn.functional.pad(tail, (0, int(bias), 0, int(bias))) + direction[:, :, None] * direction[:, None, :]
        return cls(positions * head, positions * tail, taps, _mean_first(taps, second))

    def product(self, x: Tensor) -> Tensor:
        """x A."""
        rest, head = self._turned(self.rotation, x)
        return self._columns(self.rotation, rest @ self.tail, head @ self.head)

    def diagonal(self) -> Tensor:
        """(groups, n)."""
        tail, head = (matrix.diagonal(dim1=-2, dim2=-1)[:, None] for matrix in (self.tail, self.head))
        rotation = None if self.rotation is None else self.rotation.square()
        return self._columns(rotation, tail.expand(-1, self.alike, -1), head)[:, 0]

    def squared_norms(self) -> Tensor:
        """(groups)."""
        tail, head = (matrix.square().sum((-1, -2)) for matrix in (self.tail, self.head))
        return head + self.alike * tail

    def eigen_of(self, pairs: Pairs) -> Eigen:
        """Values in the order of the coordinates: those of the tail once per tap."""
        (values, tail), *rest = pairs
        of_head, head = rest[0] if rest else (self.head.diagonal(dim1=-2, dim2=-1), torch.ones_like(self.head))
        basis = ChannelBasis(head, tail, self.taps, self.rotation)
        return torch.cat([values.repeat(1, self.alike), of_head], -1), basis

    @staticmethod
    def of_eigen(values: Tensor, basis: ChannelBasis) -> ChannelSide:
        """Taps that are alike have values that are alike, but for rounding; the first ones count."""
        parts = (basis.head, values[:, basis.alike * basis.channels :]), (basis.tail, values[:, : basis.channels])
        head, tail = ((u * s[:, None, :]) @ u.mT for u, s in parts)
        return ChannelSide(head, tail, basis.taps, basis.rotation)

    def inverse(self, shift: Tensor) -> ChannelSide:
        """Of tail and head."""
        head, tail = (damped_inverse(matrices, shift) for matrices in (self.head, self.tail))
        return ChannelSide(head, tail, self.taps, self.rotation)

    def parts(self) -> tuple[ChannelSide, Side]:
        """Without the last row and column of the head, and those alone."""
        weight = ChannelSide(self.head[..., :-1, :-1], self.tail, self.taps, self.rotation)
        return weight, DenseSide(self.head[..., -1:, -1:])

    def scaled(self, factor: Any) -> ChannelSide:
        """factor A."""
        return ChannelSide(self.head * factor, self.tail * factor, self.taps, self.rotation)


def _joined(weight: Tensor, head: Tensor) -> Tensor:
    """One after the other; where there is no head, without a copy."""
    return torch.cat([weight, head], -1) if head.shape[-1] else weight


def _mean_first(taps: int, like: Tensor) -> Tensor:
    """A symmetric orthogonal matrix (taps, taps) whose first column is 1 / sqrt(taps): a Householder reflection."""
    target = torch.full((taps,), taps**-0.5, dtype=like.dtype, device=like.device)
    eye = torch.eye(taps, dtype=like.dtype, device=like.device)
    normal = eye[0] - target
    length = normal.square().sum()
    return eye if float(length) == 0 else eye - 2 * torch.outer(normal, normal) / length
