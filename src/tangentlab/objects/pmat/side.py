"""One side of a Kronecker product: a symmetric matrix per group, in the form in which it is cheapest.

The Kronecker algebra that metrics and optimizers share has three pieces, each knowing nothing of the next:

    Side     A (groups, n, n)        `DenseSide`, `ThinSide` (R^T R of few rows R), `DiagonalSide`, `ChannelSide` (SUA)
    Basis    U (groups, n, k)        `DenseBasis` (thin if k < n), `IdentityBasis`, `ChannelBasis`
    blocks   L (x) R                 `KronBlock`, of two sides
             (U_L (x) U_R) diag(s)   `EigenBlock`, of two bases and a scale s (groups, k_L, k_R)

A side has eigenvalues and a basis (`decompose`), other eigenvalues in that basis make a side again (`of_eigen`), and whatever
acts on both sides of a matrix V, products L V R as well as coordinates U_L^T V U_R, is `both`. A metric sums a side up over
data once; an optimizer keeps a running average of one, with the basis or the inverse of some steps ago (`optim.sides`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tangentlab.linalg import psd_thin_eigh, safe_eigh
from tangentlab.objects.pmat.basis import Basis, DenseBasis, IdentityBasis, Stored
from tangentlab.parallel.threads import side_by_side

Eigen = tuple[Tensor, Basis]
"""Eigenvalues (groups, k) and the basis."""
Pairs = Sequence[tuple[Tensor, Tensor]]
"""Eigenvalues (groups, k) and eigenvectors (groups, n, k) of some stacks of matrices."""


class Side(Stored, ABC):
    """A stack of symmetric matrices A (groups, n, n); vectors are on the last axis, x (..., groups, m, n)."""

    size: int

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """x A."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """(groups, n)."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """|A|^2, (groups)."""

    def stacks(self) -> list[Tensor]:
        """Small matrices (groups, n, n), or rows (groups, m, n) of thin ones, whose eigenpairs make those of A."""
        return self.tensors()

    @abstractmethod
    def eigen_of(self, pairs: Pairs) -> Eigen:
        """Eigenvalues and basis, from the eigenpairs of those stacks."""

    @staticmethod
    @abstractmethod
    def of_eigen(values: Tensor, basis: Any) -> Side:
        """U diag(values) U^T for a basis of this kind of side."""

    @abstractmethod
    def inverse(self, shift: Tensor) -> Side:
        """(A + shift I)^-1, shift (groups, 1)."""

    @abstractmethod
    def parts(self) -> tuple[Side, Side]:
        """The diagonal blocks of all but the last entry, and of the last one (the homogeneous 1 of a bias)."""

    def dense(self) -> Tensor:
        """(groups, n, n)."""
        example = self.tensors()[0]
        eye = torch.eye(self.size, dtype=example.dtype, device=example.device)
        return self.product(eye.expand(len(example), -1, -1))

    def traces(self) -> Tensor:
        """(groups)."""
        return self.diagonal().sum(-1)

    def scaled(self, factor: Any) -> Side:
        """factor A."""
        return self.map(lambda tensor: tensor * factor)

    def blend_(self, other: Self, decay: float) -> None:
        """A <- decay A + (1 - decay) B, in place."""
        for own, its in zip(self.tensors(), other.tensors(), strict=True):
            own.mul_(decay).add_(its, alpha=1 - decay)


class DenseSide(Side):
    """All entries, `matrices` (groups, n, n)."""

    stored = ("matrices",)

    def __init__(self, matrices: Tensor) -> None:
        self.matrices, self.size = matrices, matrices.shape[-1]

    def product(self, x: Tensor) -> Tensor:
        """x A."""
        return x @ self.matrices

    def diagonal(self) -> Tensor:
        """(groups, n)."""
        return self.matrices.diagonal(dim1=-2, dim2=-1)

    def squared_norms(self) -> Tensor:
        """(groups)."""
        return self.matrices.square().sum((-1, -2))

    def eigen_of(self, pairs: Pairs) -> Eigen:
        """As they are."""
        ((values, vectors),) = pairs
        return values, DenseBasis(vectors)

    @staticmethod
    def of_eigen(values: Tensor, basis: DenseBasis) -> DenseSide:
        """A dense matrix."""
        return DenseSide(basis.assembled(values))

    def inverse(self, shift: Tensor) -> DenseSide:
        """By Cholesky; n^3 operations, nine times fewer than an eigendecomposition."""
        return DenseSide(damped_inverse(self.matrices, shift))

    def parts(self) -> tuple[DenseSide, DenseSide]:
        """Diagonal blocks."""
        return DenseSide(self.matrices[..., :-1, :-1]), DenseSide(self.matrices[..., -1:, -1:])

    def dense(self) -> Tensor:
        """The matrices."""
        return self.matrices


class ThinSide(Side):
    """R^T R for `rows` R (1, m, n), m < n: stored and decomposed in m dimensions."""

    stored = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.size = rows, rows.shape[-1]

    def product(self, x: Tensor) -> Tensor:
        """x R^T R."""
        return (x @ self.rows.mT) @ self.rows

    def diagonal(self) -> Tensor:
        """(1, n)."""
        return self.rows.square().sum(-2)

    def squared_norms(self) -> Tensor:
        """|R^T R|^2 = |R R^T|^2, (1)."""
        return (self.rows @ self.rows.mT).square().sum((-1, -2))

    def eigen_of(self, pairs: Pairs) -> Eigen:
        """By falling eigenvalue, without the null modes, of which one is kept where there is nothing else."""
        ((values, vectors),) = pairs
        if not values.numel():
            values, vectors = values.new_zeros(1, 1), torch.eye(self.size, 1).to(vectors)[None]
        return values.flip(-1), DenseBasis(vectors.flip(-1))

    of_eigen = staticmethod(DenseSide.of_eigen)

    def inverse(self, shift: Tensor) -> DenseSide:
        """Dense."""
        return DenseSide(self.dense()).inverse(shift)

    def parts(self) -> tuple[ThinSide, DenseSide]:
        """Columns of the rows."""
        return ThinSide(self.rows[..., :-1]), DenseSide(ThinSide(self.rows[..., -1:]).dense())

    def dense(self) -> Tensor:
        """(1, n, n)."""
        return self.rows.mT @ self.rows

    def scaled(self, factor: Any) -> Side:
        """factor R^T R; dense for a negative factor."""
        return ThinSide(self.rows * factor**0.5) if float(factor) >= 0 else DenseSide(self.dense() * factor)


class DiagonalSide(Side):
    """A diagonal, `values` (groups, n): exact for the one-hot inputs of an embedding."""

    stored = ("values",)

    def __init__(self, values: Tensor) -> None:
        self.values, self.size = values, values.shape[-1]

    def product(self, x: Tensor) -> Tensor:
        """Entrywise."""
        return x * self.values[:, None, :]

    def diagonal(self) -> Tensor:
        """The values."""
        return self.values

    def squared_norms(self) -> Tensor:
        """(groups)."""
        return self.values.square().sum(-1)

    def stacks(self) -> list[Tensor]:
        """None: the eigenvectors are there."""
        return []

    def eigen_of(self, pairs: Pairs) -> Eigen:
        """The values, as they are now."""
        return self.values.clone(), IdentityBasis(self.size)

    @staticmethod
    def of_eigen(values: Tensor, basis: IdentityBasis) -> DiagonalSide:
        """A diagonal."""
        return DiagonalSide(values)

    def inverse(self, shift: Tensor) -> DiagonalSide:
        """Entrywise."""
        return DiagonalSide(1 / (self.values + shift))

    def parts(self) -> tuple[DiagonalSide, DiagonalSide]:
        """Parts of the diagonal."""
        return DiagonalSide(self.values[..., :-1]), DiagonalSide(self.values[..., -1:])


def damped_inverse(matrices: Tensor, shift: Tensor) -> Tensor:
    """(matrices + shift I)^-1 by Cholesky, shift (groups, 1); falls back to a larger shift, at last to the diagonal."""
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    for widening in (1.0, 10.0, 1000.0):
        lower, info = torch.linalg.cholesky_ex(matrices + widening * shift[..., None] * eye)
        if not bool(info.any()):
            return torch.cholesky_inverse(lower)
    scale = matrices.diagonal(dim1=-2, dim2=-1).abs() + shift.clamp_min(torch.finfo(shift.dtype).tiny)
    return torch.diag_embed(1 / scale)


def decompose(sides: Sequence[Side]) -> list[Eigen]:
    """Eigenvalues and bases of all sides, their matrices side by side; thin bases for thin sides."""
    jobs = [(isinstance(side, ThinSide), matrix) for side in sides for stack in side.stacks() for matrix in stack]
    costs = [float(min(matrix.shape)) ** 3 for _, matrix in jobs]
    found = iter(side_by_side(lambda job: psd_thin_eigh(job[1]) if job[0] else safe_eigh(job[1]), jobs, costs))
    return [side.eigen_of([stacked([next(found) for _ in stack]) for stack in side.stacks()]) for side in sides]


def stacked(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Eigenpairs of several matrices as (groups, k) and (groups, n, k)."""
    return torch.stack([values for values, _ in pairs]), torch.stack([vectors for _, vectors in pairs])


def both(matrix: Tensor, left: Callable[[Tensor], Tensor], right: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of each side on matrices (..., groups, rows, columns): left on rows, right on columns."""
    return right(left(matrix.mT).mT)
