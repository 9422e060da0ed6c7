"""Orthonormal bases of one side of a Kronecker product: how vectors go into them and come back.

Every basis works on the last axis, x (..., groups, m, n); the left side of a matrix gets the transpose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

LEADING = 32
"""One in so many eigenvectors counts as leading. In float32 with k = 2048, n = 4608 and rest / weights = 2000 this brings the
relative error of the second coordinate from 7e-3 to 7e-5, that of a full basis, for 2 % of the time of a rotation."""


class Stored:
    """Something that holds tensors under the names of `stored`; None stands for one that it does without."""

    stored: ClassVar[tuple[str, ...]] = ()

    def tensors(self) -> list[Tensor]:
        """Stored tensors."""
        return [tensor for name in self.stored if (tensor := getattr(self, name)) is not None]

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same with a function applied to every stored tensor."""
        result = copy(self)
        for name in self.stored:
            if (tensor := getattr(self, name)) is not None:
                setattr(result, name, function(tensor))
        return result


class Basis(Stored, ABC):
    """Orthonormal columns U (groups, n, k).

    Attributes:
        size: n. kept: k, fewer than n in a thin basis.
        cost: multiplications per entry of a change of basis.
    """

    size: int
    kept: int
    cost: int

    @abstractmethod
    def into(self, x: Tensor) -> Tensor:
        """Coordinates x U."""

    @abstractmethod
    def out_of(self, y: Tensor) -> Tensor:
        """y U^T."""

    @abstractmethod
    def squares_out_of(self, y: Tensor) -> Tensor:
        """y (U^2)^T with the entries of U squared."""

    def stacks(self) -> list[Tensor]:
        """Eigenvectors of the stacks of the side whose basis this is."""
        return self.tensors()

    def transport(self, x: Tensor, old: Any) -> Tensor:
        """x |U_old^T U|^2: a diagonal of the old basis, read in this one."""
        return x

    def completed(self) -> Basis:
        """The basis extended to all n directions; the first k stay."""
        return self

    def spread(self, x: Tensor) -> Tensor:
        """From numbers per coordinate to numbers per direction of `completed`, on the last axis."""
        return x

    def divided(self, x: Tensor, coordinates: Tensor, divisor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """`back` of (x U / divisor) U^T, given x and its coordinates x U.

        `back` turns the other side out of its basis, which may be done before or after U^T: where it costs less.
        """
        return self.out_of(back(coordinates / divisor))

    def weighted(self, x: Tensor, weights: Tensor, rest: Tensor) -> Tensor:
        """x U diag(weights) U^T + rest (x - x U U^T), weights (groups, 1, k), rest (groups, 1, 1)."""
        return self.out_of(self.into(x) * weights)


class IdentityBasis(Basis):
    """The basis that is there."""

    cost = 0

    def __init__(self, size: int) -> None:
        self.size = self.kept = size

    def into(self, x: Tensor) -> Tensor:
        """x."""
        return x

    def out_of(self, y: Tensor) -> Tensor:
        """y."""
        return y

    def squares_out_of(self, y: Tensor) -> Tensor:
        """y."""
        return y


class DenseBasis(Basis):
    """Columns `vectors` (groups, n, k); if k < n, by falling eigenvalue."""

    stored = ("vectors",)

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.size, self.kept = vectors.shape[-2:]
        self.cost = self.kept

    def into(self, x: Tensor) -> Tensor:
        """x U."""
        return x @ self.vectors

    def out_of(self, y: Tensor) -> Tensor:
        """y U^T."""
        return y @ self.vectors.mT

    def squares_out_of(self, y: Tensor) -> Tensor:
        """y (U^2)^T."""
        return y @ self.vectors.square().mT

    def assembled(self, values: Tensor) -> Tensor:
        """U diag(values) U^T, (groups, n, n)."""
        return (self.vectors * values[..., None, :]) @ self.vectors.mT

    def transport(self, x: Tensor, old: DenseBasis) -> Tensor:
        """x |U_old^T U|^2."""
        return x @ (old.vectors.mT @ self.vectors).square()

    def completed(self) -> DenseBasis:
        """With any basis of the complement."""
        if self.kept == self.size:
            return self
        full = torch.linalg.qr(self.vectors, mode="complete")[0]
        return DenseBasis(torch.cat([self.vectors, full[..., self.kept :]], -1))

    def weighted(self, x: Tensor, weights: Tensor, rest: Tensor) -> Tensor:
        """x U diag(weights) U^T + rest (x - x U U^T)."""
        if self.kept == self.size:
            return super().weighted(x, weights, rest)
        rows = x.reshape(len(self.vectors), -1, self.size)  # more axes come with one group only
        return self.inside_and_rest(rows, rows @ self.vectors, weights, rest).reshape(x.shape)

    def inside_and_rest(self, x: Tensor, inside: Tensor, weights: Tensor, rest: Tensor) -> Tensor:
        """The same for x (groups, m, n), given inside = x U; weights and rest may differ from row to row.

        x rest + (x U (weights - rest)) U^T: along leading eigenvectors the weights are by orders of magnitude smaller than
        the rest, and the two terms cancel but for rounding. Those coordinates are therefore set to x U weights once more.
        """
        result = torch.baddbmm((x * rest).mT, self.vectors, (inside * (weights - rest)).mT)
        count = -(-self.kept // LEADING)
        leading, wanted = self.vectors[..., :count], inside[..., :count] * weights[..., :count]
        return result.baddbmm_(leading, wanted.mT - leading.mT @ result).mT
