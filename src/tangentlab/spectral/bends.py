"""Piecewise-linear functions of one number: where they bend, and their slopes between the bends.

`BENDS` maps the name of a torch function to the `Bend` of a call; pooling is brought to one form, windows on the last axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tangentlab.errors import ModelError


@dataclass(frozen=True)
class Bend:
    """A continuous function that is affine between its breaks.

    Args:
        function: the function itself, on tensors.
        breaks: where the slope changes, increasing.
        slopes: one more than there are breaks; numbers, or tensors that broadcast against the units (PReLU).
    """

    function: Callable[[Tensor], Tensor]
    breaks: tuple[float, ...]
    slopes: tuple[float | Tensor, ...]

    def pieces(self, values: Tensor) -> Tensor:
        """The number of the piece that every value lies in, int8: how many breaks are below it."""
        return torch.stack([values > at for at in self.breaks]).sum(0).to(torch.int8)

    def on_piece(self, values: Tensor, pieces: Tensor) -> Tensor:
        """The affine function of given pieces `(groups, ...)` at values `(any, groups, ...)`, also outside of the pieces."""
        anchors = torch.tensor([self.breaks[0], *self.breaks], dtype=torch.float64)  # a point of every closed piece
        heights = self.function(anchors) if self.breaks != (0.0,) else torch.zeros(2, dtype=torch.float64)
        slope = torch.as_tensor(self.slopes[-1], dtype=torch.float64)
        for number, other in enumerate(self.slopes[:-1]):
            slope = torch.where(pieces == number, torch.as_tensor(other, dtype=torch.float64), slope)
        found = values * slope
        if heights.any() or anchors.any():
            place = pieces.long()
            found += heights[place] - slope * anchors[place]
        return found


def _relu(rows: Tensor, inplace: bool = False) -> Bend:
    return Bend(torch.relu, (0.0,), (0.0, 1.0))


def _leaky_relu(rows: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Bend:
    return Bend(lambda z: F.leaky_relu(z, negative_slope), (0.0,), (negative_slope, 1.0))


def _rrelu(
    rows: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Bend:
    if training:
        raise ModelError("The model has a random RReLU in train mode: call model.eval().")
    return _leaky_relu(rows, (lower + upper) / 2)


def _prelu(rows: Tensor, weight: Tensor) -> Bend:
    slopes = weight.to(torch.float64)
    if slopes.numel() > 1:
        slopes = slopes.view(1, -1, *(1 for _ in range(rows.ndim - 2)))
    return Bend(lambda z: torch.where(z > 0, z, slopes * z), (0.0,), (slopes, 1.0))


def _abs(rows: Tensor) -> Bend:
    return Bend(torch.abs, (0.0,), (-1.0, 1.0))


def _clamp(rows: Tensor, min: Any = None, max: Any = None) -> Bend:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        raise ModelError("The operation clamp is followed with numbers as bounds, not with tensors.")
    if min is not None and max is not None and not min < max:
        raise ModelError(f"The operation clamp needs bounds in order, got {min} and {max}.")
    breaks = tuple(float(at) for at in (min, max) if at is not None)
    slopes = (*(() if min is None else (0.0,)), 1.0, *(() if max is None else (0.0,)))
    return Bend(lambda z: torch.clamp(z, min, max), breaks, slopes)


def _hardtanh(rows: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Bend:
    return _clamp(rows, min_val, max_val)


def _hardsigmoid(rows: Tensor, inplace: bool = False) -> Bend:
    return Bend(F.hardsigmoid, (-3.0, 3.0), (0.0, 1 / 6, 0.0))


def _softshrink(rows: Tensor, lambd: float = 0.5) -> Bend:
    return Bend(lambda z: F.softshrink(z, lambd), (-lambd, lambd), (1.0, 0.0, 1.0))


BENDS: dict[str, Callable[..., Bend]] = {
    "relu": _relu,
    "relu_": _relu,
    "relu6": lambda rows, inplace=False: _clamp(rows, 0.0, 6.0),
    "leaky_relu": _leaky_relu,
    "leaky_relu_": _leaky_relu,
    "rrelu": _rrelu,
    "prelu": _prelu,
    "abs": _abs,
    "abs_": _abs,
    "absolute": _abs,
    "__abs__": _abs,
    "clamp": _clamp,
    "clamp_": _clamp,
    "clip": _clamp,
    "clamp_min": lambda rows, min: _clamp(rows, min),
    "clamp_max": lambda rows, max: _clamp(rows, None, max),
    "hardtanh": _hardtanh,
    "hardtanh_": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "softshrink": _softshrink,
}


def pooling_windows(name: str, dimension: int, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The windows of max pooling, `(points, channels, ..., window)`; places outside of the image repeat one inside.

    The window of every output is found by pooling images with one bright pixel each: the outputs that see it are bright.
    Whatever the arguments (strides, padding, dilation, adaptive windows), the answer is that of torch. Cost: pixels^2.
    """
    pixels, count = rows.shape[2:], rows[0, 0].numel()
    pool = getattr(F, name)
    kwargs = {key: value for key, value in kwargs.items() if key != "return_indices"}
    outputs = pool(rows[:1], *args, **kwargs).shape[2:]
    bright, seeing = [], []
    for block in torch.arange(count).split(1024):
        images = F.one_hot(block, count).to(torch.float32).view(-1, 1, *pixels)
        pixel, output = (pool(images, *args, **kwargs).flatten(1) > 0).nonzero(as_tuple=True)
        bright.append(block[pixel])
        seeing.append(output)
    output, order = torch.cat(seeing).sort(stable=True)
    pixel, sizes = torch.cat(bright)[order], torch.bincount(output)
    first = sizes.cumsum(0) - sizes
    places = pixel[first].unsqueeze(1).repeat(1, int(sizes.max()))
    places[output, torch.arange(len(output)) - first[output]] = pixel
    return rows.flatten(2)[:, :, places].unflatten(2, outputs)
