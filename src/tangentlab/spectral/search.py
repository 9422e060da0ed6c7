"""All regions of a small network in a box of any dimension, by a search from region to region with linear programs.

No corner is ever computed: a region is its half-spaces. A half-space bounds the region if its value can pass the offset when
all others hold (one linear program each); on the other side of such a wall only the units whose hyperplane it is change their
piece. A region counts if a ball fits into it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.errors import InputError, NumericsError
from tangentlab.spectral.complexes import Floats, Ints
from tangentlab.spectral.follow import DTYPE
from tangentlab.spectral.patterns import Pattern, Region, _region, region_of
from tangentlab.spectral.regions import Box, box_limits, input_shape

THIN = 1e-10
"""Balls with a radius below this part of the box do not count."""


def search_regions(
    model: nn.Module,
    box: Box,
    shape: Sequence[int] | None = None,
    most: int = 10_000,
) -> list[Region]:
    """Every region with an interior in the box, in the order in which it is reached from the box's centre.

    Args:
        model: affine and piecewise-linear operations in eval mode.
        box: `(low, high)` of every input, `(d, 2)`.
        shape: of an input, with d numbers; default `(d,)`.
        most: an error is raised when there are more.

    Cost: one linear program per region and unit (about a millisecond each), whatever d is: for hundreds of regions.
    """
    limits = box_limits(box)
    inner = input_shape(shape, len(limits))
    size = float(np.ptp(limits, axis=1).min())
    start = _inside(model, torch.from_numpy(limits.mean(1)).view(inner), limits, size)
    seen, found, waiting = {_key(start.pattern)}, [], deque([start])
    while waiting:
        region = waiting.popleft()
        found.append(region)
        if len(found) > most:
            raise InputError(f"There are more than {most} regions: say most=, or use a smaller box.")
        for pattern in _neighbours(region, limits):
            if _key(pattern) not in seen:
                seen.add(_key(pattern))
                other = _region(model, torch.zeros(inner, dtype=DTYPE), pattern)
                if _radius(other, limits) > THIN * size:
                    waiting.append(other)
    return found


def _inside(model: nn.Module, centre: Tensor, limits: Floats, size: float) -> Region:
    """A region with an interior: that of the centre or of a point near it."""
    generator = torch.Generator().manual_seed(0)
    for attempt in range(100):
        region = region_of(model, centre)
        if _radius(region, limits) > THIN * size:
            return region
        centre = centre + size * 1e-3 * (attempt + 1) * torch.randn(centre.shape, generator=generator, dtype=DTYPE)
    raise NumericsError("No region with an interior was found near the centre of the box.")


def _key(pattern: Pattern) -> bytes:
    return b"".join(part.to(torch.int16).numpy().tobytes() for part in pattern)


def _solve(cost: Floats, normals: Floats, offsets: Floats, bounds: list[tuple[float, float]]) -> Floats | None:
    """argmin of cost.x under `normals x <= offsets` and bounds; None when nothing satisfies them."""
    from scipy.optimize import linprog

    result = linprog(cost, A_ub=normals, b_ub=offsets, bounds=bounds, method="highs")
    if result.status == 2:
        return None
    if result.status != 0:
        raise NumericsError(f"A linear program of the search was not solved: {result.message}")
    return np.asarray(result.x)


def _scaled(region: Region) -> tuple[Floats, Floats, Ints]:
    """Unit normals, their offsets, and which half-spaces they are; constant functions stay as they are."""
    normals, offsets = region.normals.numpy(), region.offsets.numpy()
    length = np.linalg.norm(normals, axis=1)
    real = length > 1e-14 * max(1e-300, length.max(initial=0.0))
    return normals[real] / length[real, None], offsets[real] / length[real], np.flatnonzero(real)


def _radius(region: Region, limits: Floats) -> float:
    """The radius of the largest ball in the region and the box; -1 when it is empty."""
    normals, offsets, _ = _scaled(region)
    d = len(limits)
    sides = np.concatenate([np.eye(d), -np.eye(d)])
    rows = np.concatenate([np.concatenate([normals, sides]), np.ones((len(normals) + 2 * d, 1))], 1)
    ends = np.concatenate([offsets, limits[:, 1], -limits[:, 0]])
    cost = np.zeros(d + 1)
    cost[-1] = -1.0
    free = [(float(low), float(high)) for low, high in limits]
    best = _solve(cost, rows, ends, [*free, (0.0, float(np.ptp(limits)))])
    return -1.0 if best is None else float(best[-1])


def _neighbours(region: Region, limits: Floats) -> list[Pattern]:
    """The patterns beyond all walls of a region."""
    normals, offsets, which = _scaled(region)
    size = float(np.abs(limits).max())
    rounded = np.round(np.concatenate([normals, offsets[:, None] / size], 1), 9)
    planes, group = np.unique(rounded, axis=0, return_inverse=True)
    first = [int(np.flatnonzero(group == number)[0]) for number in range(len(planes))]
    rows, ends = normals[first], offsets[first]
    bounds = [(float(low), float(high)) for low, high in limits]
    found = []
    for number in range(len(planes)):
        beyond = ends.copy()
        beyond[number] += size
        best = _solve(-rows[number], rows, beyond, bounds)
        if best is not None and rows[number] @ best > ends[number] + THIN * size:
            found.append(_flipped(region, which[np.flatnonzero(group.reshape(-1) == number)]))
    return found


def _flipped(region: Region, walls: Ints) -> Pattern:
    pattern = [part.clone() for part in region.pattern]
    for bend, unit, piece in region.beyond[torch.from_numpy(walls)].tolist():
        pattern[bend].view(-1)[unit] = piece
    return tuple(pattern)
