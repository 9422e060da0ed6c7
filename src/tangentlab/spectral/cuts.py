"""Exact cuts of any piecewise-linear network, however many inputs it has: along a segment and on a triangle of inputs.

On a line or a plane in input space the network is piecewise linear in one or two coordinates. Coordinates are lengths: the
frame is orthonormal, so slopes are those of the network along the cut.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Complex
from tangentlab.spectral.follow import DTYPE
from tangentlab.spectral.partition import Frame, Partition
from tangentlab.spectral.regions import partition_of


def cut_segment(model: nn.Module, start: Tensor, end: Tensor) -> Partition:
    """The regions that the segment between two inputs passes; the coordinate is the distance from `start`.

    Args:
        model: affine and piecewise-linear operations in eval mode, a ResNet for instance.
        start, end: inputs without an axis of examples.

    Cost: three rows through the network per region.
    """
    frame, corners = _flat(start, [end])
    return partition_of(model, Complex.box(corners.min(0).values.numpy(), corners.max(0).values.numpy()), frame)


def cut_triangle(model: nn.Module, first: Tensor, second: Tensor, third: Tensor) -> Partition:
    """The regions on the triangle of three inputs. Coordinates are lengths: `first` is at 0, `second` on the first axis.

    Cost: four rows through the network per region. A triangle of three distant images may pass millions of regions, which
    are refused when they would not fit; make it smaller around a point of interest.
    """
    frame, corners = _flat(first, [second, third])
    return partition_of(model, Complex.simplex(corners.numpy()), frame)


def cut_rectangle(model: nn.Module, first: Tensor, second: Tensor, third: Tensor, margin: float = 0.0) -> Partition:
    """The regions on the rectangle around the triangle of three inputs, wider by a share `margin` on every side."""
    frame, corners = _flat(first, [second, third])
    low, high = corners.min(0).values, corners.max(0).values
    wider = margin * (high - low)
    return partition_of(model, Complex.box((low - wider).numpy(), (high + wider).numpy()), frame)


def _flat(origin: Tensor, others: list[Tensor]) -> tuple[Frame, Tensor]:
    """An orthonormal frame through inputs, and their coordinates `(points, d)`."""
    if any(one.shape != origin.shape for one in others):
        raise InputError(f"Inputs of one cut have one shape, got {[tuple(one.shape) for one in (origin, *others)]}.")
    start = origin.detach().to(DTYPE)
    away = torch.stack([one.detach().to(DTYPE) - start for one in others]).flatten(1)
    lengths = away.norm(dim=1)
    basis, triangle = torch.linalg.qr(away.T)
    if not bool((triangle.diagonal().abs() > 1e-9 * lengths.max()).all()) or not bool(torch.isfinite(away).all()):
        raise InputError("The inputs of a cut have to be different and, for a triangle, not on one line.")
    signs = triangle.diagonal().sign()
    corners = torch.cat([torch.zeros(1, len(others), dtype=DTYPE), (signs[:, None] * triangle).T])
    return Frame(start, (basis * signs).T.reshape(len(others), *origin.shape)), corners
