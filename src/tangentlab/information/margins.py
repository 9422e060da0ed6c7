"""Margins: bijections of single coordinates, which leave the mutual information as it is and make it easier to estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError

Margins = Literal["normal", "standard", "none"]
KNOTS = 1000


@dataclass(frozen=True)
class Margin:
    """A strictly increasing map of every coordinate, made on one sample and applied to others.

    "standard" subtracts the mean and divides by the standard deviation. "normal" maps quantiles to those of a normal
    distribution, linearly between up to 1000 of them, and grows logarithmically outside of their range: heavy tails become
    light and nothing is lost, since the map can be inverted. Examples with more than one axis (images) are standardized as a
    whole.
    """

    kind: Margins
    shift: Tensor
    scale: Tensor
    knots: Tensor | None = None
    normal: Tensor | None = None
    ties: bool = False

    @classmethod
    def of(cls, sample: Tensor, kind: Margins = "normal") -> Margin:
        """The map for `sample`, (n, features) or (n, ...)."""
        if kind not in ("normal", "standard", "none"):
            raise InputError(f"Margins are 'normal', 'standard' or 'none', not {kind!r}.")
        axes = (0,) if sample.ndim == 2 else tuple(range(sample.ndim))
        values = sample.double()
        scale = values.std(axes, correction=0, keepdim=True)
        constant = scale <= 1e-12 * values.abs().amax(axes, keepdim=True)
        scale = torch.where(constant, torch.ones_like(scale), scale)
        shift = values.mean(axes, keepdim=True)
        if kind != "normal" or sample.ndim != 2:
            return cls("standard" if kind == "normal" else kind, shift, scale)
        count = min(KNOTS, len(sample))
        levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        ordered = values.sort(0).values
        place = (levels * len(sample) - 0.5).clamp(0, len(sample) - 1)
        low = place.floor().long()
        part = (place - low)[:, None]
        knots = ordered[low] * (1 - part) + ordered[(low + 1).clamp(max=len(sample) - 1)] * part
        ties = bool((knots[1:] <= knots[:-1]).any())
        return cls("normal", shift, scale, knots.T.contiguous(), torch.special.ndtri(levels), ties)

    def __call__(self, sample: Tensor) -> Tensor:
        """The mapped sample, in its own precision."""
        values = sample.double()
        if self.kind == "none":
            return sample
        if self.knots is None or self.normal is None:
            return ((values - self.shift) / self.scale).to(sample)
        columns = values.T.contiguous()
        low = torch.searchsorted(self.knots, columns, side="left")
        high = torch.searchsorted(self.knots, columns, side="right") if self.ties else low
        return _between(self.knots, self.normal, columns, low, high, self.scale.T).T.to(sample)


def _between(knots: Tensor, normal: Tensor, values: Tensor, low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    """Normal scores: the mean of those that a value ties with, between two knots linear, outside logarithmic."""
    count = knots.shape[1]
    left, right = (low - 1).clamp(0, count - 1), low.clamp(max=count - 1)
    x0, x1 = knots.gather(1, left), knots.gather(1, right)
    width = torch.where(x1 > x0, x1 - x0, torch.ones_like(x0))
    inside = normal[left] + (normal[right] - normal[left]) * ((values - x0) / width).clamp(0, 1)
    tied = (normal[low.clamp(max=count - 1)] + normal[(high - 1).clamp(0, count - 1)]) / 2
    found = torch.where(high > low, tied, inside)
    below, above = (knots[:, :1] - values).clamp(min=0), (values - knots[:, -1:]).clamp(min=0)
    return found - (below / scale).log1p() + (above / scale).log1p()
