"""How fast the transform of a network falls off in a direction, and which faces are the cause (theorem 3.3).

Along `k = t khat` the transform is a sum over faces F that khat is orthogonal to: a face of codimension Delta contributes
`t^{-(Delta + 1)}` with a phase of its own. Almost every direction is orthogonal to corners only and gives `t^{-(d + 1)}`;
normals of walls give `t^{-2}`. The weight of a face is carried down from the jumps of the slope at the walls,

    c_G = sum_F c_F  i (p.N_F(G)) / |p|^2,    p = Proj_F(khat),

and may vanish: a wall without a jump, or a corner at which two folds cross and leave each other alone. Such faces are skipped
(the paper's C_n is O(1), not Theta(1)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Floats, Ints
from tangentlab.spectral.divided import Waves
from tangentlab.spectral.lattice import Lattice
from tangentlab.spectral.network_fourier import NetworkTransform, walls_of
from tangentlab.spectral.partition import Partition

ORTHOGONAL = 1e-9
"""|Proj_F(khat)| below this counts as 0."""
NOTHING = 1e-9
"""Weights below this part of the largest jump count as 0."""


@dataclass(frozen=True)
class Decay:
    """`|f~(t khat)|` falls off as `t^-exponent`.

    Args:
        exponent: Delta + 1; infinity where the transform vanishes in this direction.
        codimension: Delta of the faces that cause it, 0 where there are none.
        faces: their numbers among the faces of dimension `d - Delta` of the partition's complex.
        weights: their weights: `f~(t khat) = -t^{-exponent} sum_F weights_F e^{-i t khat.x_F}` up to faster terms.
        places: a point x_F of each, `(faces, d)`.
    """

    exponent: float
    codimension: int
    faces: Ints
    weights: Waves
    places: Floats


def decay_along(partition: Partition, direction: ArrayLike, output: int | None = None) -> Decay:
    """The decay of the transform in one direction, from the geometry alone.

    The border of the domain does not count: it is the network that is asked about, not the box around it.

    Args:
        partition: all regions of a domain, in one part.
        direction: any vector `(d,)` but 0.
        output: which output, where there are several.
    """
    d = partition.dimension
    towards = np.asarray(direction, dtype=np.float64).reshape(-1)
    if len(towards) != d or not np.isfinite(towards).all() or not towards.any():
        raise InputError(f"A direction has {d} finite numbers that are not all 0, got {direction!r}.")
    if partition.parts > 1:
        raise InputError("The domain was cut in parts, whose cells share no faces: use a smaller domain or network.")
    towards = towards / np.linalg.norm(towards)
    lattice = Lattice(partition.complex)
    inner = partition.complex.walls >= 0
    jumps = np.where(inner, walls_of(partition, output).jumps, 0.0)
    weights: Waves = jumps.astype(np.complex128)
    floor = NOTHING * np.abs(jumps).max(initial=0.0) * lattice.volumes[d - 1].max(initial=0.0)
    border = ~inner
    for level in range(d - 1, -1, -1):
        along = lattice.along(level, towards[None])[0]
        square = (along**2).sum(1)
        ends = np.sqrt(square) < ORTHOGONAL
        here: Waves = weights * (lattice.volumes[level] * (ends & ~border))
        found = _of_level(lattice, level, here, towards, floor)
        if found is not None:
            return Decay(float(d - level + 1), d - level, *found)
        if level > 0:
            pairs = lattice.incidences[level]
            share = (
                np.einsum("pd,pd->p", along[pairs.faces], pairs.outward) / np.where(ends, np.inf, square)[pairs.faces]
            )
            below = 1j * weights[pairs.faces] * share
            count = len(lattice.bases[level - 1])
            on_border = np.bincount(pairs.facets[border[pairs.faces]], minlength=count) > 0
            weights = np.bincount(pairs.facets, below.real, count) + 1j * np.bincount(pairs.facets, below.imag, count)
            border = on_border
    return Decay(float("inf"), 0, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.complex128), np.zeros((0, d)))


def _of_level(
    lattice: Lattice, level: int, weights: Waves, towards: Floats, floor: float
) -> tuple[Ints, Waves, Floats] | None:
    """Faces with a weight, unless those of one phase cancel: `(faces, weights, places)`; None when nothing is left."""
    some = np.flatnonzero(np.abs(weights) > floor)
    places = lattice.complex.corners if level == 0 else lattice.complex.centres(level)
    size = np.abs(lattice.complex.corners).max()
    phases = np.unique(np.round(places[some] @ towards / size, 9), return_inverse=True)[1].reshape(-1)
    total = np.bincount(phases, weights[some].real) + 1j * np.bincount(phases, weights[some].imag)
    some = some[np.abs(total[phases]) > floor]
    return (some, weights[some], places[some]) if len(some) else None


def envelope_slope(
    transform: NetworkTransform, direction: ArrayLike, low: float, high: float, octaves: int = 8, per_octave: int = 400
) -> float:
    """The slope of log |f~| against log t along a direction, from the largest value in each of some bands of t.

    A measurement to set against `decay_along`; phases make |f~| itself swing.
    """
    towards = np.asarray(direction, dtype=np.float64)
    edges = np.geomspace(low, high, octaves + 1)
    t = np.concatenate([np.linspace(a, b, per_octave) for a, b in zip(edges[:-1], edges[1:], strict=True)])
    sizes = np.abs(transform(t[:, None] * (towards / np.linalg.norm(towards)))).reshape(octaves, per_octave).max(1)
    return float(np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(sizes), 1)[0])
