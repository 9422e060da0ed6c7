"""The input side of a convolution under SUA: spatially uncorrelated activations (Grosse & Martens 2016)."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.layers import OuterSum
from tangentlab.linalg.symmetric import symmetric_product
from tangentlab.optim.sides import DenseSide, Side, Which
from tangentlab.optim.sums import Sample


class ChannelSide(Side):
    """Inputs of a convolution whose sites are taken as uncorrelated: A = T (Sigma (x) I_taps), and T for the bias.

    Sigma (groups, channels, channels) is the mean over input sites of x x^T (SUA, Grosse & Martens 2016, uncentred), T
    the number of output positions. The basis turns channels and leaves the taps of the kernel alone; columns are in the
    order (channel, tap) of the weight, the bias last.
    """

    kind = "channels"

    def __init__(self, channels: int, taps: int, bias: bool) -> None:
        self.channels, self.taps, self.bias = DenseSide(channels), taps, bias
        self.size, self.rotation = channels * taps + bias, channels
        self.ones: Tensor | None = None
        self.ones_inverse: Tensor | None = None

    def measure(self, outer: OuterSum, which: Which, sharing: str) -> Tensor:
        """Inputs are measured by `measure_inputs`, not through their patches."""
        raise NotImplementedError

    def measure_inputs(self, sample: Sample) -> Tensor:
        """sum over examples and sites of x x^T times output positions per site, (groups, channels, channels)."""
        total: Tensor | None = None
        for use in sample.uses:
            module = use.site.module
            assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            sites, positions = prod(use.inputs.shape[2:]), prod(use.grads.shape[3:])
            columns = use.inputs.flatten(2).unflatten(1, (module.groups, -1)).permute(1, 2, 0, 3).flatten(2)
            found = symmetric_product(columns) * (positions / sites)
            total = found if total is None else total + found
        assert total is not None
        return total

    def absorb(self, mean: Tensor, decay: float, rows: float) -> None:
        """Channels only; `absorb_ones` takes the mean number of positions."""
        self.channels.absorb(mean, decay, rows)
        self.statistic = self.channels.statistic

    def absorb_ones(self, positions: float, decay: float) -> None:
        """Second moment of the homogeneous 1: positions per example."""
        assert self.statistic is not None
        fresh = self.statistic.new_full((self.statistic.shape[0], 1), positions)
        self.ones = fresh if self.ones is None else self.ones * decay + fresh * (1 - decay)

    def _by_tap(self, x: Tensor) -> Tensor:
        """Columns (channel, tap) of x (..., m, columns) as rows of channels, (..., m taps, channels): one large product."""
        weights = x[..., :-1] if self.bias else x
        return weights.unflatten(-1, (-1, self.taps)).mT.flatten(-3, -2)

    def _by_mode(self, y: Tensor) -> Tensor:
        """The same for columns (tap, mode), the order inside the basis."""
        weights = y[..., :-1] if self.bias else y
        return weights.unflatten(-1, (self.taps, -1)).flatten(-3, -2)

    def _joined(self, turned: Tensor, like: Tensor, channels_first: bool, factor: Tensor | None = None) -> Tensor:
        """Rows (..., m taps, channels) as columns again, with the bias of `like` (times a factor) last."""
        rows = turned.unflatten(-2, (-1, self.taps))
        columns = (rows.mT if channels_first else rows).flatten(-2)
        if not self.bias:
            return columns
        last = like[..., -1:]
        return torch.cat([columns, last if factor is None else last * factor[:, None, :]], -1)

    def shape(self, groups: int) -> tuple[int, ...]:
        """(groups, channels, channels)."""
        return self.channels.shape(groups)

    def into(self, x: Tensor) -> Tensor:
        """Channels turned by U_Sigma; the modes of one tap lie next to each other."""
        assert self.channels.basis is not None
        return self._joined(self._by_tap(x) @ self.channels.basis, x, channels_first=False)

    def out_of(self, x: Tensor) -> Tensor:
        """Channels turned back."""
        assert self.channels.basis is not None
        return self._joined(self._by_mode(x) @ self.channels.basis.mT, x, channels_first=True)

    def invert(self, shift: Tensor) -> None:
        """(T Sigma + shift)^-1 on channels, 1 / (T + shift) on the bias."""
        self.channels.invert(shift)
        if self.bias:
            assert self.ones is not None
            self.ones_inverse = 1 / (self.ones + shift)

    def divide(self, x: Tensor) -> Tensor:
        """As prepared by `invert`."""
        assert self.channels.inverse is not None
        return self._joined(self._by_tap(x) @ self.channels.inverse, x, True, self.ones_inverse)

    def multiply(self, x: Tensor) -> Tensor:
        """x A."""
        assert self.statistic is not None
        return self._joined(self._by_tap(x) @ self.statistic, x, True, self.ones)

    def mean_value(self) -> Tensor:
        """Trace over size, the bias included."""
        total = self.channels.mean_value() * self.channels.size * self.taps
        if self.bias:
            assert self.ones is not None
            total = total + self.ones
        return total / self.size

    def matrices(self) -> list[DenseSide]:
        """The channels' second moment."""
        return [self.channels]

    def refreshed(self) -> None:
        """Eigenvalues of the channels, once per tap; T for the bias."""
        assert self.channels.values is not None
        values = self.channels.values.repeat(1, self.taps)
        self.values = torch.cat([values, self.ones], -1) if self.bias and self.ones is not None else values

    def transport(self, x: Tensor, old: Tensor | None) -> Tensor:
        """On channels, tap by tap."""
        assert self.channels.basis is not None
        if old is None:
            return x
        return self._joined(self._by_mode(x) @ (old.mT @ self.channels.basis).square(), x, channels_first=False)

    def basis_copy(self) -> Tensor | None:
        """Basis of the channels."""
        return self.channels.basis

    def state(self) -> dict[str, Any]:
        """Channels and positions."""
        own = {"values": self.values, "ones": self.ones, "ones_inverse": self.ones_inverse}
        return {**own, "channels": self.channels.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        super().load({key: value for key, value in state.items() if key != "channels"})
        self.channels.load(state["channels"])
        self.statistic = self.channels.statistic
