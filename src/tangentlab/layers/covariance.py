"""Covariances of a layer's inputs and output-gradients, without patches in memory where a cheaper way exists.

For a convolution with stride 1, the second moment of patches between taps k and k' is a sum over the
image of products of pixels that lie k' - k apart,

    A[k, k'] = sum_{u in window of k} x(u) x(u + k' - k)^T,

so the 81 products of a 3x3 kernel are 13 lagged products over the whole image (the others are their transposes), minus the
rows and columns at the border that lie outside the window of k, plus the corners that were taken off twice.
"""

from __future__ import annotations

from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.linalg.symmetric import symmetric_product

Interval = tuple[int, int]


def stacked_rows(factors: Tensor) -> Tensor:
    """(K, N, groups, T, F) as (groups, K * N * T, F)."""
    return factors.permute(2, 0, 1, 3, 4).flatten(1, 3)


def lags_apply(module: nn.modules.conv._ConvNd) -> bool:
    """Whether the lagged route exists for this convolution: two axes, one group, stride 1."""
    plane = len(module.kernel_size) == 2 and module.groups == 1
    return plane and tuple(module.stride) == (1, 1) and prod(module.kernel_size) > 1


def lagged_operations(module: nn.modules.conv._ConvNd, examples: int, size: tuple[int, ...]) -> float:
    """Operations of the lagged route: distinct lags times the image, with the strips at the border."""
    lags = (prod(2 * k - 1 for k in module.kernel_size) + 1) / 2
    border = sum(2 * (k - 1) / s for k, s in zip(module.kernel_size, size, strict=True))
    return 2 * lags * (1 + border) * examples * prod(size) * module.in_channels**2


def lagged_covariance(
    module: nn.modules.conv._ConvNd, padded: Tensor, size: tuple[int, ...], zeros: tuple[int, ...] = (0, 0)
) -> Tensor:
    """sum over examples and positions of patch patch^T, (columns, columns), for padded (N, C, H', W').

    zeros: how many leading rows and columns of the padded image are known to be zero, with as many at the end or more; they
    are cut off, which leaves little to correct at the border.
    """
    cut = [slice(z, n - z) for z, n in zip(zeros, padded.shape[2:], strict=True)]
    image = _LaggedImage(module, padded[:, :, cut[0], cut[1]])
    channels, kernel = padded.shape[1], module.kernel_size
    windows = [
        [(max(tap * d - z, 0), min(tap * d - z + s, n)) for tap in range(k)]
        for k, d, s, z, n in zip(kernel, module.dilation, size, zeros, image.extent, strict=True)
    ]
    result = padded.new_empty((*kernel, *kernel, channels, channels))
    taps = list(product(range(kernel[0]), range(kernel[1])))
    for (a, b), (p, q) in product(taps, taps):
        if (p, q) < (a, b):
            continue
        value = image.windowed((p - a, q - b), windows[0][a], windows[1][b])
        result[a, b, p, q] = value
        result[p, q, a, b] = value.t()
    return result.permute(4, 0, 1, 5, 2, 3).reshape(channels * prod(kernel), channels * prod(kernel))


def window_sums(module: nn.modules.conv._ConvNd, padded: Tensor, size: tuple[int, ...]) -> Tensor:
    """sum over examples and positions of every patch entry, (groups, columns / groups)."""
    total = padded.sum(0)
    parts = []
    for tap in product(*(range(k) for k in module.kernel_size)):
        view = total
        for axis, (t, d, s, n) in enumerate(zip(tap, module.dilation, module.stride, size, strict=True)):
            view = view.narrow(axis + 1, t * d, (n - 1) * s + 1)
            view = view[(slice(None),) * (axis + 1) + (slice(None, None, s),)]
        parts.append(view.flatten(1).sum(1))
    return torch.stack(parts, 1).reshape(module.groups, -1)


class _LaggedImage:
    """Products x(u) x(u + lag)^T over windows, by one flat shift of an image with margins wide enough to wrap into zeros."""

    def __init__(self, module: nn.modules.conv._ConvNd, padded: Tensor) -> None:
        reach = [(k - 1) * d for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        self.dilation, self.extent = module.dilation, tuple(padded.shape[2:])
        wide = F.pad(padded, (0, reach[1], 0, reach[0]))
        self.width = wide.shape[3]
        self.image = wide.transpose(0, 1).contiguous()
        self.flat = self.image.flatten(1)
        self._known: dict[tuple[tuple[int, int], Interval, Interval], Tensor] = {}
        self._rows = (0, self.extent[0])
        self._columns = (0, self.extent[1])

    def windowed(self, lag: tuple[int, int], rows: Interval, columns: Interval) -> Tensor:
        """sum over u in rows x columns, by inclusion and exclusion from the whole image."""
        total = self._rectangle(lag, self._rows, self._columns)
        for outside in _complement(rows, self._rows):
            total = total - self._rectangle(lag, outside, self._columns)
            for corner in _complement(columns, self._columns):
                total = total + self._rectangle(lag, outside, corner)
        for outside in _complement(columns, self._columns):
            total = total - self._rectangle(lag, self._rows, outside)
        return total

    def _rectangle(self, lag: tuple[int, int], rows: Interval, columns: Interval) -> Tensor:
        key = lag, rows, columns
        if key not in self._known:
            shift = (lag[0] * self.dilation[0], lag[1] * self.dilation[1])
            whole = (rows, columns) == (self._rows, self._columns)
            self._known[key] = self._whole(shift) if whole else self._part(shift, rows, columns)
        return self._known[key]

    def _whole(self, shift: tuple[int, int]) -> Tensor:
        """One product of the flat image with itself shifted; both may reach over the margin, where one of them is zero."""
        offset = shift[0] * self.width + shift[1]
        length = self.flat.shape[1] - abs(offset)
        first, second = self.flat.narrow(1, max(-offset, 0), length), self.flat.narrow(1, max(offset, 0), length)
        return symmetric_product(first) if offset == 0 else first @ second.t()

    def _part(self, shift: tuple[int, int], rows: Interval, columns: Interval) -> Tensor:
        height, width = self.image.shape[2:]
        rows = (max(rows[0], -shift[0]), min(rows[1], height - shift[0]))
        columns = (max(columns[0], -shift[1]), min(columns[1], width - shift[1]))
        if rows[0] >= rows[1] or columns[0] >= columns[1]:
            return self.flat.new_zeros((self.flat.shape[0],) * 2)
        here = self.image[:, :, rows[0] : rows[1], columns[0] : columns[1]]
        moved = (rows[0] + shift[0], rows[1] + shift[0]), (columns[0] + shift[1], columns[1] + shift[1])
        there = self.image[:, :, moved[0][0] : moved[0][1], moved[1][0] : moved[1][1]]
        return here.flatten(1) @ there.flatten(1).t()


def _complement(inside: Interval, whole: Interval) -> list[Interval]:
    return [part for part in ((whole[0], inside[0]), (inside[1], whole[1])) if part[0] < part[1]]
