"""The exact Fourier transform of a piecewise-linear network: `f~(k) = integral of f(x) e^{-i k.x}`.

A continuous piecewise-linear function has a Laplacian that lives on the walls between its regions, with the jump of the slope
as density. So, with c_G the jump of the slope along the normal of the wall G and G~ the transform of the wall,

    f~(k) = -1/k^2  sum_G c_G G~(k)  +  border,

in d dimensions as for the kinks of a function of one variable (`f~(k) = -1/k^2 sum_j c_j e^{-i k x_j}`). It is Lemma 3.1 of
Rahaman, Baratin et al. (2019) after one step of their recursion over faces (with the sign c = -i, where they print i), and a
wall without a jump contributes nothing. On a box or any other domain, outside of which f counts as 0, the border adds
`i/k^2 (k.n) integral of f e^{-i k.x}` over every border wall with outward normal n, and its own slope. Near k = 0, where
`1/k^2` would amplify roundings, the integral over all regions is taken as a series.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import factorial

import numpy as np
import torch
from numpy.typing import ArrayLike

from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Floats, Ints
from tangentlab.spectral.divided import Waves, differences
from tangentlab.spectral.partition import Partition
from tangentlab.spectral.simplices import Simplices, simplices_of, wall_normals

SMALL = 0.5
"""Frequencies below this over the radius of the domain take the series over regions."""
CHUNK = 1 << 18
"""Phases that are held at a time."""


def frequencies(k: ArrayLike, dimension: int) -> tuple[Floats, tuple[int, ...]]:
    """Frequencies as `(K, d)` and the shape of the answer; in 1-D plain numbers are allowed."""
    found = np.asarray(k, dtype=np.float64)
    if dimension == 1 and (found.ndim == 0 or found.shape[-1] != 1):
        found = found[..., None]
    if found.ndim == 0 or found.shape[-1] != dimension or not np.isfinite(found).all():
        raise InputError(f"Frequencies are finite, with {dimension} numbers on the last axis; got shape {found.shape}.")
    return found.reshape(-1, dimension), found.shape[:-1]


@dataclass(frozen=True)
class Walls:
    """Faces of dimension d - 1 of a partition as simplices.

    Args:
        parts: simplices of all walls.
        jumps: of the slope of f across each wall, `(walls,)`; on the border, minus the slope outwards.
        normals: unit normals, outwards on the border, `(walls, d)`.
        border: numbers of the walls on the border.
        inside: the region next to each wall of the border.
    """

    parts: Simplices
    jumps: Floats
    normals: Floats
    border: Ints
    inside: Ints


def walls_of(partition: Partition, output: int | None = None) -> Walls:
    """The walls of a partition and the jumps of one output across them. Cost: linear in the number of faces."""
    complex = partition.complex
    weights, _ = partition.scalar(output)
    parts = simplices_of(complex, partition.dimension - 1)
    normals = wall_normals(complex, parts)
    lists = complex.facets[-1]
    cells, walls = lists.gather(np.arange(len(lists)))
    point = complex.corners[parts.corners[np.searchsorted(parts.owners, np.arange(len(normals))), 0]]
    outward = np.sign(np.einsum("pd,pd->p", point[walls] - complex.centres()[cells], normals[walls]))
    slopes = outward * np.einsum("pd,pd->p", weights[cells], normals[walls])
    jumps: Floats = -np.bincount(walls, slopes, minlength=len(normals)).astype(np.float64)
    outer = complex.walls[walls] < 0
    border = walls[outer]
    normals[border] *= outward[outer, None]
    return Walls(parts, jumps, normals, border, cells[outer])


class NetworkTransform:
    """The transform of one output of a network on the domain of its partition, at any frequencies.

    Args:
        partition: all regions of the domain.
        output: which output, where there are several.
        border: False for a function that is 0 on the border anyway (compact support): its terms are left out.
    """

    def __init__(self, partition: Partition, output: int | None = None, border: bool = True) -> None:
        self.partition, self.border = partition, border
        self.weights, self.biases = partition.scalar(output)
        self.walls = walls_of(partition, output)
        corners = partition.complex.corners
        self.centre = corners.mean(0)
        self.radius = float(np.linalg.norm(corners - self.centre, axis=1).max())

    def __call__(self, k: ArrayLike) -> Waves:
        """f~ at frequencies `(..., d)`; in 1-D also `(...)`. Cost: (simplices of walls) x (frequencies) sines and cosines."""
        flat, shape = frequencies(k, self.partition.dimension)
        found = np.zeros(len(flat), dtype=np.complex128)
        small = np.linalg.norm(flat, axis=1) * self.radius < SMALL
        for where, method in ((small, self.by_regions), (~small, self._by_walls)):
            if where.any():
                found[where] = method(flat[where])
        return found.reshape(shape)

    def by_regions(self, k: ArrayLike) -> Waves:
        """f~ as a sum over the simplices of all regions; right at every k, and what is used near 0.

        `d! vol sum_j f(v_j) e[t_0, ..., t_d, t_j]` with the divided differences e of `wave_differences`.
        """
        flat, shape = frequencies(k, self.partition.dimension)
        parts = self._regions
        points = self.partition.complex.corners[parts.corners]
        values = np.einsum("sd,scd->sc", self.weights[parts.owners], points) + self.biases[parts.owners][:, None]
        return self._integrals(flat, parts, values).reshape(shape)

    @cached_property
    def _regions(self) -> Simplices:
        return simplices_of(self.partition.complex, self.partition.dimension)

    def _by_walls(self, k: Floats) -> Waves:
        walls = self.walls
        square = (k**2).sum(1)
        total = -self._integrals(k, walls.parts, walls.jumps[walls.parts.owners])
        if self.border:
            total += 1j * self.border_integrals(k)
        return total / square

    def border_integrals(self, k: Floats) -> Waves:
        """sum over the border's walls of `(k.n) integral of f e^{-i k.x}`, one direction of normals at a time."""
        walls = self.walls
        place = np.full(len(walls.normals), -1)
        place[walls.border] = np.arange(len(walls.border))
        mine = place[walls.parts.owners] >= 0
        parts = Simplices(walls.parts.owners[mine], walls.parts.corners[mine], walls.parts.volumes[mine])
        cells = walls.inside[place[parts.owners]]
        points = self.partition.complex.corners[parts.corners]
        values = np.einsum("sd,scd->sc", self.weights[cells], points) + self.biases[cells][:, None]
        normals = walls.normals[parts.owners]
        moments = [self._integrals(k, parts, values * normals[:, i, None]) for i in range(k.shape[1])]
        return sum((k[:, i] * moment for i, moment in enumerate(moments)), np.zeros(len(k), dtype=np.complex128))

    def _integrals(self, k: Floats, parts: Simplices, values: Floats) -> Waves:
        """Integrals of `e^{-i k.x}` times functions on simplices: constants `(s,)`, or affine ones by corner, `(s, m + 1)`."""
        m = parts.corners.shape[1] - 1
        weights = torch.from_numpy(
            (factorial(m) * parts.volumes * values.T).astype(np.complex128)
        )  # (s,) or (m + 1, s)
        corners = torch.from_numpy(self.partition.complex.corners - self.centre).T
        places = torch.from_numpy(parts.corners.T.copy()).reshape(-1)
        found = torch.empty(len(k), dtype=torch.complex128)
        step = max(1, CHUNK // max(1, len(parts.volumes)))
        for start in range(0, len(k), step):
            some = torch.from_numpy(k[start : start + step])
            phases = (some @ corners)[:, places].view(len(some), m + 1, -1).transpose(0, 1)  # (m + 1, K, s)
            if values.ndim == 1:
                total = differences(phases) @ weights
            else:
                repeated = (torch.cat([phases, phases[corner : corner + 1]]) for corner in range(m + 1))
                total = sum(differences(nodes) @ weight for nodes, weight in zip(repeated, weights, strict=True))
            found[start : start + step] = total
        return found.numpy() * np.exp(-1j * (k @ self.centre))


def network_transform(partition: Partition, k: ArrayLike, output: int | None = None, border: bool = True) -> Waves:
    """f~ of a network on the domain of its partition at frequencies `(..., d)`; see `NetworkTransform`."""
    return NetworkTransform(partition, output, border)(k)


def kinks(partition: Partition, output: int | None = None) -> tuple[Floats, Floats]:
    """Places and slope jumps of a network of one input, sorted, without the ends of the interval and without jumps of 0."""
    if partition.dimension != 1:
        raise InputError(
            f"Kinks belong to functions of one variable; this partition has {partition.dimension} dimensions."
        )
    inner = partition.complex.walls >= 0
    jumps = walls_of(partition, output).jumps[inner]
    places, which = np.unique(partition.complex.corners[inner, 0], return_inverse=True)  # one in two parts counts once
    jumps = np.bincount(which, jumps, minlength=len(places)).astype(np.float64)
    real = np.abs(jumps) > 1e-13 * np.abs(jumps).max(initial=0.0)
    return places[real], jumps[real]


def kink_transform(places: ArrayLike, jumps: ArrayLike, k: ArrayLike) -> Waves:
    """`f~(k) = -1/k^2 sum_j c_j e^{-i k x_j}` of a compactly supported function with kinks at x_j, k not 0."""
    at, jump = np.asarray(places, dtype=np.float64), np.asarray(jumps, dtype=np.float64)
    waves = np.asarray(k, dtype=np.float64)
    if (waves == 0).any():
        raise InputError("The closed form divides by k^2: at k = 0 the transform is the integral of the function.")
    waved: Waves = np.exp(-1j * np.multiply.outer(waves, at))
    found: Waves = -np.tensordot(waved, jump, 1) / waves**2
    return found
