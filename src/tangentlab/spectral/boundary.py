"""The decision boundary of a network on the domain of a partition, exactly, in any dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Complex, Floats, Ints, Lists
from tangentlab.spectral.cutter import Cutter
from tangentlab.spectral.partition import Partition
from tangentlab.spectral.simplices import simplices_of


@dataclass(frozen=True)
class Boundary:
    """Flat pieces between the domains of two classes.

    Args:
        pieces: simplices of dimension d - 1, `(pieces, d, d)`: in 2-D segments, by their two ends.
        classes: the classes on both sides, the lower first, `(pieces, 2)`.
        sizes: lengths in 2-D, areas in 3-D, `(pieces,)`.
    """

    pieces: Floats
    classes: Ints
    sizes: Floats


def decision_boundary(partition: Partition, level: float = 0.0) -> Boundary:
    """Where the largest output changes; with one output, where it passes `level` (class 0 is above it).

    The regions are cut where two outputs are equal and the larger of them leads, and the walls between different leaders are
    the boundary. Cost: linear in the number of regions.
    """
    if not np.isfinite(level):
        raise InputError(f"The argument level is a finite number, not {level}.")
    complex = partition.complex
    values = corner_values(partition)
    if values.shape[1] == 1:
        values = np.concatenate([values, np.full_like(values, level)], 1)
    rows = torch.from_numpy(values)[:, None]
    cutter = Cutter(complex)
    cutter.largest(rows)
    leaders = _leaders(cutter.complex, cutter.catch_up(rows)[:, 0].numpy())
    return _between(cutter.complex, leaders)


def corner_values(partition: Partition) -> Floats:
    """The outputs at every corner, `(corners, outputs)`, from the map of one of its regions."""
    lists = partition.complex.corners_of()
    cells = np.repeat(np.arange(len(lists)), lists.lengths())
    region = np.empty(len(partition.complex.corners), dtype=np.int64)
    region[lists.members] = cells
    return partition.at(region, partition.complex.corners)


def _leaders(complex: Complex, values: Floats) -> Ints:
    """The class of every cell: the largest output at its centre."""
    lists = complex.corners_of()
    return np.add.reduceat(values[lists.members], lists.starts[:-1]).argmax(1)


def _between(complex: Complex, leaders: Ints) -> Boundary:
    cells, walls = complex.facets[-1].gather(np.arange(complex.n_cells))
    sides = Lists.of(walls, leaders[cells], len(complex.walls))
    double = np.flatnonzero(sides.lengths() == 2)
    pairs = sides.members[sides.starts[double][:, None] + np.arange(2)]
    apart = pairs[:, 0] != pairs[:, 1]
    found = np.full((len(complex.walls), 2), -1)
    found[double[apart]] = np.sort(pairs[apart], axis=1)
    parts = simplices_of(complex, complex.dimension - 1)
    real = found[parts.owners, 0] >= 0
    return Boundary(complex.corners[parts.corners[real]], found[parts.owners[real]], parts.volumes[real])
