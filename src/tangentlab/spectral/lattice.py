"""The face lattice of a complex with its directions: what the recursion over faces needs, computed once for all frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tangentlab.spectral.complexes import Complex, Floats, Ints
from tangentlab.spectral.divided import NEAR, Waves, wave_differences
from tangentlab.spectral.simplices import Simplices, simplices_of


@dataclass(frozen=True)
class Incidence:
    """All pairs (face F, facet G of F) of one dimension.

    Args:
        faces, facets: numbers of both, `(pairs,)`.
        outward: the unit normal of G that lies in the span of F and points out of it, `(pairs, d)`.
    """

    faces: Ints
    facets: Ints
    outward: Floats


class Lattice:
    """Faces of every dimension with orthonormal bases of their directions, their volumes and outward normals.

    Args:
        complex: cells with their faces.

    Attributes:
        bases: `bases[m]` are orthonormal directions of the faces of dimension m, `(faces, m, d)`.
        incidences: `incidences[m]` are the pairs of faces of dimension m and their facets.
    """

    def __init__(self, complex: Complex) -> None:
        self.complex = complex
        d = complex.dimension
        self.bases: list[Floats] = [np.zeros((len(complex.corners), 0, d))]
        self.incidences: list[Incidence] = [Incidence(*(np.zeros(0, dtype=np.int64),) * 2, np.zeros((0, d)))]
        points = complex.corners
        centres = points
        for level in range(1, d + 1):
            lists = complex.facets[level - 1]
            faces, facets = lists.gather(np.arange(len(lists)))
            below, centres = centres, complex.centres(level)
            away = below[facets] - centres[faces]
            basis = self.bases[-1][facets]
            for _ in range(2):  # the second time takes away what roundings left
                away = away - np.einsum("pm,pmd->pd", np.einsum("pmd,pd->pm", basis, away), basis)
            length = np.linalg.norm(away, axis=1)
            outward = np.divide(away, length[:, None], out=np.zeros_like(away), where=length[:, None] > 0)
            order = np.lexsort((-length, faces))
            farthest = order[lists.starts[:-1]]
            self.bases.append(np.concatenate([basis[farthest], outward[farthest][:, None]], 1))
            self.incidences.append(Incidence(faces, facets, outward))

    @cached_property
    def simplices(self) -> list[Simplices]:
        """The simplices of the faces of every dimension."""
        return [simplices_of(self.complex, level) for level in range(self.complex.dimension + 1)]

    @cached_property
    def volumes(self) -> list[Floats]:
        """The volume of every face of every dimension."""
        return [
            np.bincount(parts.owners, parts.volumes, minlength=len(self.bases[level])).astype(np.float64)
            for level, parts in enumerate(self.simplices)
        ]

    @cached_property
    def diameters(self) -> list[Floats]:
        """Twice the largest distance of a corner from the centre, of every face of every dimension."""
        found = [np.zeros(len(self.complex.corners))]
        for level in range(1, self.complex.dimension + 1):
            lists = self.complex.corners_of(level)
            owners = np.repeat(np.arange(len(lists)), lists.lengths())
            away = np.linalg.norm(self.complex.corners[lists.members] - self.complex.centres(level)[owners], axis=1)
            found.append(2 * np.maximum.reduceat(away, lists.starts[:-1]))
        return found

    def along(self, level: int, k: Floats) -> Floats:
        """`Proj_F(k)` for every frequency and face, `(K, faces, d)`."""
        basis = self.bases[level]
        return np.einsum("kfm,fmd->kfd", np.einsum("fmd,kd->kfm", basis, k), basis)

    def transforms(self, k: Floats) -> list[Waves]:
        """`F~(k) = integral over F of e^{-i k.x}` of all faces of all dimensions, each once: `(K, faces)` per dimension.

        The recursion of Diaz, Le and Robins: `F~ = i / |p|^2 sum_G (p.N_F(G)) G~` with `p = Proj_F(k)`. Edges are
        `length e^{-i k.middle} sinc`, and so need no case; where |p| times the diameter of a larger face is below 1, the
        series over its simplices is taken, which holds at p = 0 as well.
        """
        phases = k @ self.complex.corners.T
        found = [np.exp(-1j * phases)]
        for level in range(1, self.complex.dimension + 1):
            if level == 1:
                ends = self.complex.facets[0].members.reshape(-1, 2)
                found.append(self.volumes[1] * wave_differences(np.moveaxis(phases[:, ends], 2, 0)))
            else:
                found.append(self._recursion(level, k, found[-1], phases))
        return found

    def _recursion(self, level: int, k: Floats, below: Waves, phases: Floats) -> Waves:
        pairs = self.incidences[level]
        along = self.along(level, k)
        square = (along**2).sum(2)
        near = np.sqrt(square) * self.diameters[level] < NEAR
        weight = np.einsum("kpd,pd->kp", along[:, pairs.faces], pairs.outward)
        terms = weight * below[:, pairs.facets]
        total: Waves = np.add.reduceat(terms, self.complex.facets[level - 1].starts[:-1], axis=1)
        total = 1j * total / np.where(near, 1.0, square)
        if near.any():
            parts = self.simplices[level]
            which, part = np.nonzero(near[:, parts.owners])
            nodes = phases[which[:, None], parts.corners[part]].T
            size = np.prod(np.arange(1.0, level + 1)) * parts.volumes[part]
            flat = which * near.shape[1] + parts.owners[part]
            values = size * wave_differences(nodes)
            summed = [
                np.bincount(flat, part, minlength=near.size).reshape(near.shape) for part in (values.real, values.imag)
            ]
            total = np.where(near, summed[0] + 1j * summed[1], total)
        return total
