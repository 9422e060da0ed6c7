"""The two sides of a layer over a training: a running second moment, and its basis or inverse of some steps ago.

A gradient is a stack of matrices (groups, rows, columns). Its left side acts on rows (output-gradients of a linear
layer), its right side on columns (inputs). The algebra is that of `objects.pmat.side`; here is what changes with time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any, Literal

from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.layers.conv import pixel_columns
from tangentlab.layers.lookup import LookupSum
from tangentlab.linalg.symmetric import symmetric_product
from tangentlab.objects.pmat.basis import Basis, DenseBasis, IdentityBasis
from tangentlab.objects.pmat.channels import ChannelBasis, ChannelSide
from tangentlab.objects.pmat.side import DenseSide, DiagonalSide, Pairs, Side
from tangentlab.optim.sums import Sample

Which = Literal["left", "right"]


class RunningSide(ABC):
    """One side, of `size` entries per group; its second moment is a running average of what `measure` sums up.

    Attributes:
        kind: what is kept of the second moment, in a word. form: the class of that.
        size: n, entries of a vector on this side, the homogeneous 1 included.
        statistic: the second moment; None before the first measurement.
        values, basis: its eigenvalues (groups, k) and eigenvectors at the last refresh; None before the first.
        inverse: (statistic + shift I)^-1 at the last refresh, where that is what is kept.
        rank: how many eigenvectors the next basis shall have; None for all.
    """

    kind: str
    form: type[Side]
    statistic: Side | None = None
    values: Tensor | None = None
    basis: Basis | None = None
    inverse: Side | None = None
    rank: int | None = None

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """Sum over cotangents, examples and positions of the outer products of this side's factors."""

    @abstractmethod
    def shape(self, groups: int) -> tuple[int, ...]:
        """Shape of what is measured."""

    def side(self, mean: Tensor, positions: float) -> Side:
        """The second moment, from the mean over examples of what was measured, at so many positions per example."""
        return self.form(mean)  # type: ignore[call-arg]

    def load_side(self, *tensors: Tensor) -> Side:
        """A second moment, or an inverse, from its tensors."""
        return self.form(*tensors)  # type: ignore[call-arg]

    @abstractmethod
    def load_basis(self, *tensors: Tensor) -> Basis:
        """A basis from its tensors."""

    def absorb(self, mean: Side, decay: float, rows: float) -> None:
        """statistic <- decay statistic + (1 - decay) mean, of so many rows; the first mean is taken as it is."""
        if self.statistic is None:
            self.statistic = mean
        else:
            self.statistic.blend_(mean, decay)

    def mean_value(self) -> Tensor:
        """Trace over dimension, (groups, 1)."""
        assert self.statistic is not None
        return self.statistic.diagonal().mean(-1, keepdim=True)

    def invert(self, shift: Tensor) -> None:
        """Prepare (statistic + shift I)^-1, shift (groups, 1)."""
        assert self.statistic is not None
        self.inverse = self.statistic.inverse(shift)

    def refreshed(self, pairs: Pairs) -> None:
        """Take up the eigenpairs of the statistic's stacks."""
        assert self.statistic is not None
        self.values, self.basis = self.statistic.eigen_of(pairs)

    def state(self) -> dict[str, Any]:
        """Everything that a later step depends on."""
        kept = {"statistic": self.statistic, "basis": self.basis, "inverse": self.inverse}
        tensors = {key: None if one is None else dict(enumerate(one.tensors())) for key, one in kept.items()}
        return {**tensors, "values": self.values}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        makers = {"statistic": self.load_side, "basis": self.load_basis, "inverse": self.load_side}
        found = {key: None if state[key] is None else make(*state[key].values()) for key, make in makers.items()}
        for key, value in {**found, "values": state["values"]}.items():
            setattr(self, key, value)


class RunningDense(RunningSide):
    """A full second moment, its eigenvectors by falling eigenvalue."""

    kind, form = "full", DenseSide

    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """(groups, n, n)."""
        return outer.side_covariance(which, sharing)

    def shape(self, groups: int) -> tuple[int, ...]:
        """(groups, n, n)."""
        return groups, self.size, self.size

    def load_basis(self, *tensors: Tensor) -> Basis:
        """Vectors, as many as there are entries."""
        if tensors[0].shape[-1] < self.size:
            raise InputError("This state has thin eigenbases: load it into a preconditioner with thin=True.")
        return DenseBasis(*tensors)


class RunningDiagonal(RunningSide):
    """Only the diagonal of the second moment, in the basis that is there.

    Exact for the input side of an embedding, whose one-hot vectors have a diagonal second moment; an approximation that
    fits in memory for a side that is too large for a matrix.
    """

    kind, form = "diagonal", DiagonalSide

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.basis = IdentityBasis(size)

    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """(groups, n)."""
        if which == "left" and isinstance(outer, LookupSum):
            return outer.counts()
        return outer.side_rows(which, sharing).square().sum(1)

    def shape(self, groups: int) -> tuple[int, ...]:
        """(groups, n)."""
        return groups, self.size

    def load_basis(self, *tensors: Tensor) -> Basis:
        """It needs none."""
        return IdentityBasis(self.size)


class RunningChannels(RunningSide):
    """Inputs of a convolution whose sites are taken as uncorrelated (SUA, Grosse & Martens 2016, uncentred)."""

    kind, form = "channels", ChannelSide

    def __init__(self, channels: int, taps: int, bias: bool) -> None:
        super().__init__(channels * taps + bias)
        self.channels, self.taps, self.bias = channels, taps, bias

    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """Inputs are measured by `measure_inputs`, not through their patches."""
        raise NotImplementedError

    def measure_inputs(self, sample: Sample, groups: int) -> Tensor:
        """sum over examples and sites of x x^T times output positions per site, (groups, channels, channels)."""
        total: Tensor | None = None
        for use in sample.uses:
            (inputs,) = use.inputs
            sites, positions = prod(inputs.shape[2:]), prod(use.grads.shape[3:])
            found = symmetric_product(pixel_columns(inputs, groups)) * (positions / sites)
            total = found if total is None else total + found
        assert total is not None
        return total

    def shape(self, groups: int) -> tuple[int, ...]:
        """(groups, channels, channels)."""
        return groups, self.channels, self.channels

    def side(self, mean: Tensor, positions: float) -> ChannelSide:
        """A = T (Sigma (x) I_taps), and T for the bias."""
        return ChannelSide.plain(mean, self.taps, self.bias, positions)

    def load_side(self, *tensors: Tensor) -> ChannelSide:
        """Head and tail."""
        head, tail = tensors
        return ChannelSide(head, tail, self.taps, None)

    def load_basis(self, *tensors: Tensor) -> Basis:
        """Head and tail."""
        head, tail = tensors
        return ChannelBasis(head, tail, self.taps, None)
