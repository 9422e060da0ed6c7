"""The two sides of a Kronecker product: second moments, eigenbasis or inverse, and how a gradient is turned into it.

A gradient is a stack of matrices (groups, rows, columns). Its left side acts on rows (output-gradients of a linear
layer), its right side on columns (inputs). Every side works on the last axis; the left one gets the transpose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.optim.lookup import LookupSum

Which = Literal["left", "right"]


class Side(ABC):
    """One side, of `size` entries per group; its second moment is a running average of what `measure` sums up.

    Attributes:
        size: n, entries of a vector on this side, the homogeneous 1 included.
        rotation: multiplications per entry that a change of basis costs.
        statistic: the second moment, in the form that the class keeps; None before the first measurement.
        values: eigenvalues S (groups, n) in the order of the basis; None before the first refresh.
    """

    size: int
    rotation: int
    statistic: Tensor | None = None
    values: Tensor | None = None

    @property
    @abstractmethod
    def kind(self) -> str:
        """What is kept of the second moment, in a word."""

    @abstractmethod
    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """Sum over cotangents, examples and positions of the outer products of this side's factors."""

    @abstractmethod
    def shape(self, groups: int) -> tuple[int, ...]:
        """Shape of the statistic."""

    @abstractmethod
    def into(self, x: Tensor) -> Tensor:
        """x U on the last axis; x (..., groups, anything, n)."""

    @abstractmethod
    def out_of(self, x: Tensor) -> Tensor:
        """x U^T on the last axis."""

    @abstractmethod
    def invert(self, shift: Tensor) -> None:
        """Prepare (statistic + shift I)^-1, shift (groups, 1)."""

    @abstractmethod
    def divide(self, x: Tensor) -> Tensor:
        """x (statistic + shift I)^-1 on the last axis, as prepared by `invert`."""

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """x times the second moment on the last axis."""

    @abstractmethod
    def mean_value(self) -> Tensor:
        """Trace over dimension, (groups, 1)."""

    def absorb(self, mean: Tensor, decay: float, rows: float) -> None:
        """statistic <- decay statistic + (1 - decay) mean, of so many rows; the first mean is taken as it is."""
        self.statistic = mean if self.statistic is None else self.statistic.mul_(decay).add_(mean, alpha=1 - decay)

    def divided(self, x: Tensor, coordinates: Tensor, divisor: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        """`back` of (x U / divisor) U^T, given x and its coordinates x U.

        `back` turns the other side out of its basis, which may be done before or after U^T: where it costs less.
        """
        return self.out_of(back(coordinates / divisor))

    def spread(self, x: Tensor) -> Tensor:
        """From numbers per coordinate to numbers per direction (..., n), on the last axis."""
        return x

    def matrices(self) -> list[DenseSide]:
        """What has to be decomposed at a refresh."""
        return []

    def refreshed(self) -> None:
        """Called after the matrices have a new basis."""
        return None

    def transport(self, x: Tensor, old: Tensor | None) -> Tensor:
        """x |U_old^T U|^2 on the last axis: a diagonal of the old basis, read in the new one."""
        return x

    def basis_copy(self) -> Tensor | None:
        """The basis as it is now, for `transport` after the next refresh."""
        return None

    def dense_basis(self, like: Tensor) -> Tensor:
        """U (groups, n, n), in the dtype and on the device of `like` (groups, ..., n)."""
        eye = torch.eye(self.size, dtype=like.dtype, device=like.device)
        return self.out_of(eye.expand(like.shape[0], -1, -1)).mT.contiguous()

    def dense_statistic(self, like: Tensor) -> Tensor:
        """The second moment as a matrix (groups, n, n)."""
        eye = torch.eye(self.size, dtype=like.dtype, device=like.device)
        return self.multiply(eye.expand(like.shape[0], -1, -1))

    def state(self) -> dict[str, Any]:
        """Everything that a later step depends on."""
        return {"statistic": self.statistic, "values": self.values}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        for key, value in state.items():
            setattr(self, key, value)


class DenseSide(Side):
    """A full second moment (groups, n, n) with its eigenvectors U as columns, by falling eigenvalue.

    Attributes:
        rank: how many of them the next basis shall have (`ThinSide`); None for all.
    """

    rank: int | None = None

    def __init__(self, size: int) -> None:
        self.size = self.rotation = size
        self.basis: Tensor | None = None
        self.inverse: Tensor | None = None

    @property
    def kind(self) -> str:
        """All of it."""
        return "full"

    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """(groups, n, n)."""
        return outer.side_covariance(which, sharing)

    def shape(self, groups: int) -> tuple[int, ...]:
        """(groups, n, n)."""
        return groups, self.size, self.size

    def into(self, x: Tensor) -> Tensor:
        """x U."""
        assert self.basis is not None
        return x @ self.basis

    def out_of(self, x: Tensor) -> Tensor:
        """x U^T."""
        assert self.basis is not None
        return x @ self.basis.mT

    def invert(self, shift: Tensor) -> None:
        """By Cholesky; n^3 operations, nine times fewer than an eigendecomposition. Falls back to a larger shift."""
        assert self.statistic is not None
        eye = torch.eye(self.size, dtype=self.statistic.dtype, device=self.statistic.device)
        for widening in (1.0, 10.0, 1000.0):
            lower, info = torch.linalg.cholesky_ex(self.statistic + widening * shift[..., None] * eye)
            if not bool(info.any()):
                self.inverse = torch.cholesky_inverse(lower)
                return
        scale = self.statistic.diagonal(dim1=-2, dim2=-1).abs() + shift.clamp_min(torch.finfo(shift.dtype).tiny)
        self.inverse = torch.diag_embed(1 / scale)

    def divide(self, x: Tensor) -> Tensor:
        """x times the inverse."""
        assert self.inverse is not None
        return x @ self.inverse

    def multiply(self, x: Tensor) -> Tensor:
        """x times the second moment."""
        assert self.statistic is not None
        return x @ self.statistic

    def mean_value(self) -> Tensor:
        """Mean of the diagonal."""
        assert self.statistic is not None
        return self.statistic.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)

    def matrices(self) -> list[DenseSide]:
        """This one."""
        return [self]

    def transport(self, x: Tensor, old: Tensor | None) -> Tensor:
        """x |U_old^T U|^2."""
        assert self.basis is not None
        return x if old is None else x @ (old.mT @ self.basis).square()

    def basis_copy(self) -> Tensor | None:
        """U."""
        return self.basis

    def placeholder(self) -> tuple[Tensor, Tensor]:
        """Room for values and basis that another process computes."""
        assert self.statistic is not None
        return torch.empty_like(self.statistic[..., 0]), torch.empty_like(self.statistic)

    def state(self) -> dict[str, Any]:
        """Second moment, eigenvalues, basis, inverse."""
        return {**super().state(), "basis": self.basis, "inverse": self.inverse}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        self._check_basis(state["basis"])
        super().load(state)

    def _check_basis(self, basis: Tensor | None) -> None:
        if basis is not None and basis.shape[-1] < self.size:
            raise InputError("This state has thin eigenbases: load it into a preconditioner with thin=True.")


class DiagonalSide(Side):
    """Only the diagonal of the second moment (groups, n), in the basis that is there.

    Exact for the input side of an embedding, whose one-hot vectors have a diagonal second moment; an approximation that
    fits in memory for a side that is too large for a matrix.
    """

    kind = "diagonal"
    rotation = 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.inverse: Tensor | None = None

    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """(groups, n)."""
        if which == "left" and isinstance(outer, LookupSum):
            return outer.counts()
        return outer.side_rows(which, sharing).square().sum(1)

    def shape(self, groups: int) -> tuple[int, ...]:
        """(groups, n)."""
        return groups, self.size

    def into(self, x: Tensor) -> Tensor:
        """x."""
        return x

    def out_of(self, x: Tensor) -> Tensor:
        """x."""
        return x

    def invert(self, shift: Tensor) -> None:
        """1 / (diagonal + shift)."""
        assert self.statistic is not None
        self.inverse = 1 / (self.statistic + shift)

    def divide(self, x: Tensor) -> Tensor:
        """x times the inverse diagonal."""
        assert self.inverse is not None
        return x * self.inverse[:, None, :]

    def multiply(self, x: Tensor) -> Tensor:
        """x times the diagonal."""
        assert self.statistic is not None
        return x * self.statistic[:, None, :]

    def mean_value(self) -> Tensor:
        """Mean of the diagonal."""
        assert self.statistic is not None
        return self.statistic.mean(-1, keepdim=True)

    def refreshed(self) -> None:
        """The eigenvalues are the diagonal as it is now."""
        assert self.statistic is not None
        self.values = self.statistic.clone()

    def state(self) -> dict[str, Any]:
        """Diagonal, eigenvalues, inverse."""
        return {**super().state(), "inverse": self.inverse}
