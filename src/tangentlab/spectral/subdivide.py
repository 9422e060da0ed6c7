"""Cutting all cells of a complex by many hyperplanes at once, in any dimension.

Every hyperplane is given by its values at the corners, which are affine on every cell. In a round each cell that is still
crossed is cut by the first hyperplane that crosses it, in one order for all. A face that is crossed is crossed in all cells
around it, and those all meet the same first hyperplane: so a face is cut once, whoever asks first, and neighbours go on
sharing its halves. To cut a face of dimension k:

* k = 1: a new corner where the value is 0;
* k > 1: facets on the positive side go to one half, the others to the other half, and both are closed by a new face, whose
  facets are those faces of dimension k - 2 that an odd number of facets on the positive side have (the border modulo 2).

No angle, no normal vector and no equation is computed; the only decision in floating point is the sign of a value at a
corner, taken once. Cost: linear in the number of new faces, times the number of rounds (about 2 log of the number of
hyperplanes that cross one cell), all in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangentlab.errors import NumericsError
from tangentlab.spectral.complexes import Complex, Floats, Ints, Lists, odd

Codes = NDArray[np.uint8]
PLUS, MINUS, CROSSED = 1, 2, 3
TOLERANCE = 1e-12
"""Values below this part of the largest one count as 0: the corner lies on the hyperplane."""


@dataclass(frozen=True)
class NewCorners:
    """Corners of one round: `(1 - t) first + t second`, in the order in which they were added."""

    first: Ints
    second: Ints
    t: Floats

    def interpolate(self, rows: Floats) -> Floats:
        """Rows of the new corners from rows of the earlier ones."""
        t = self.t[:, None]
        return (1 - t) * rows[self.first] + t * rows[self.second]


def codes_of(values: Floats, scale: Floats) -> Codes:
    """`PLUS`, `MINUS` or 0 for every value, `(corners, hyperplanes)`."""
    limit = TOLERANCE * scale
    return (PLUS * (values > limit) + MINUS * (values < -limit)).astype(np.uint8)


class Growing:
    """An array to which rows are added, with room for twice as many as there are."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows = self._room = rows

    def append(self, more: NDArray[Any]) -> None:
        """Add rows at the end; earlier views of `rows` stay as they are."""
        count = len(self.rows) + len(more)
        if count > len(self._room):
            room = np.empty((2 * count, *more.shape[1:]), dtype=more.dtype)
            room[: len(self.rows)] = self.rows
            self._room = room
        self._room[len(self.rows) : count] = more
        self.rows = self._room[:count]


class Subdivision:
    """Cuts the cells of a complex; `complex`, `origins` (cells that the new ones are parts of), `values` and `rounds` tell how.

    Args:
        complex: the cells to cut.
        values: of every hyperplane at every corner, `(corners, hyperplanes)`.
        walls: the numbers that the new faces of each hyperplane get.
        scale: the size of each hyperplane's values; default: the largest that is given.
        room: called with the numbers of cells and corners before each round. It may refuse by an exception, or stop the work by
            returning False: `finished` is False then, and `complex` holds the cells as cut so far.
    """

    def __init__(
        self,
        complex: Complex,
        values: Floats,
        walls: Ints,
        scale: Floats | None = None,
        room: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.complex = complex
        self.facets = list(complex.facets)
        self.corners = complex.corners
        self.made_by = complex.walls
        self.walls = walls
        self._values = Growing(values)
        self.scale = np.abs(values).max(0, initial=0.0) if scale is None else scale
        self._codes = Growing(codes_of(values, self.scale))
        self.d = complex.dimension
        self.halves = [np.full((len(one), 3), -1, dtype=np.int64) for one in self.facets]  # plus, minus, cut
        self.rounds: list[NewCorners] = []
        self.finished = True
        alive = np.ones(complex.n_cells, dtype=bool)
        self.origins = np.arange(complex.n_cells)
        cells, planes = self._crossings()
        while len(cells):
            start = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]]))
            cut, by = cells[start], planes[start]
            if room is not None and not room(int(alive.sum()) + len(cut), len(self.corners)):
                self.finished = False
                break
            self._cut(cut, by)
            alive[cut] = False
            alive = np.concatenate([alive, np.ones(2 * len(cut), dtype=bool)])
            self.origins = np.concatenate([self.origins, np.repeat(self.origins[cut], 2)])
            left = np.ones(len(cells), dtype=bool)
            left[start] = False
            cells, planes = self._inherit(cells[left], planes[left], cut)
        whole = Complex(self.corners, self.facets, self.made_by)
        self.origins = self.origins[alive]
        self.complex = whole.restricted(np.flatnonzero(alive), all_corners=True) if self.rounds else complex

    @property
    def values(self) -> Floats:
        """Of every hyperplane at every corner, those that were added included."""
        return self._values.rows

    @property
    def codes(self) -> Codes:
        """The sides on which the corners lie, likewise."""
        return self._codes.rows

    def _crossings(self) -> tuple[Ints, Ints]:
        """Pairs (cell, hyperplane) of all crossings, in the order of cells and then hyperplanes."""
        lists = self.complex.corners_of()
        crossed = np.bitwise_or.reduceat(self.codes[lists.members], lists.starts[:-1], axis=0) == CROSSED
        cells, planes = np.nonzero(crossed)
        return cells, planes

    def _cut(self, cells: Ints, by: Ints) -> None:
        """Cut each cell by one hyperplane, its faces first."""
        width = len(self.walls)
        faces, planes = [cells], [by]
        incidence: list[tuple[Ints, Ints]] = []
        for level in range(self.d, 0, -1):
            owners, found = self.facets[level - 1].gather(faces[-1])
            keys, place = np.unique(found * width + planes[-1][owners], return_inverse=True)
            incidence.append((owners, place))
            faces.append(keys // width)
            planes.append(keys % width)
        codes: Codes = self.codes[faces[-1], planes[-1]]
        for level in range(1, self.d + 1):
            position = self.d - level
            owners, place = incidence[position]
            inner = codes[place]
            starts = np.searchsorted(owners, np.arange(len(faces[position])))
            codes = np.bitwise_or.reduceat(inner, starts)
            new = (codes == CROSSED) & (self.halves[level - 1][faces[position], 0] < 0)
            if level == 1:
                self._cut_edges(faces[position][new], planes[position][new])
            else:
                rank = np.cumsum(new) - 1
                part = new[owners]
                members = faces[position + 1][place[part]]
                self._cut_faces(
                    level, faces[position][new], planes[position][new], rank[owners[part]], members, inner[part]
                )

    def _cut_edges(self, edges: Ints, planes: Ints) -> None:
        ends = self.facets[0].members.reshape(-1, 2)[edges]
        first, second = ends[:, 0], ends[:, 1]
        here, there = self.values[first, planes], self.values[second, planes]
        new = NewCorners(first, second, here / (here - there))
        rows = new.interpolate(self.values)
        rows[np.arange(len(edges)), planes] = 0.0
        numbers = len(self.corners) + np.arange(len(edges))
        self.corners = np.concatenate([self.corners, new.interpolate(self.corners)])
        self._values.append(rows)
        self._codes.append(codes_of(rows, self.scale))
        self.rounds.append(new)
        plus = np.where(here > 0, first, second)
        minus = np.where(here > 0, second, first)
        halves = np.stack([plus, numbers, minus, numbers], 1).reshape(-1, 2)
        self._add_halves(1, edges, Lists(2 * np.arange(len(halves) + 1), halves.reshape(-1)), numbers)
        if self.d == 1:
            self.made_by = np.concatenate([self.made_by, self.walls[planes]])

    def _cut_faces(self, level: int, faces: Ints, planes: Ints, owners: Ints, members: Ints, codes: Codes) -> None:
        """owners, members, codes: (place in `faces`, facet, its code) of all facets of the faces to cut."""
        count = len(faces)
        below = self.halves[level - 2][members]
        crossed = codes == CROSSED
        positive = crossed | (codes == PLUS)
        negative = crossed | ~positive
        plus = owners[positive], np.where(crossed, below[:, 0], members)[positive]
        minus = owners[negative], np.where(crossed, below[:, 1], members)[negative]
        inside, ridges = self.facets[level - 2].gather(plus[1])
        border_owner, border = odd(plus[0][inside], ridges)
        closing = Lists.of(border_owner, border, count)
        if level == 2 and not bool((closing.lengths() == 2).all()):
            raise NumericsError(
                "A cell of the partition is too thin for float64: its corners do not tell on which side of a hyperplane they "
                "are. Use a larger scale or another box."
            )
        cuts = len(self.facets[level - 2]) + np.arange(count)
        self.facets[level - 2] = self.facets[level - 2].extended(closing)
        self.halves[level - 2] = np.concatenate([self.halves[level - 2], np.full((count, 3), -1, dtype=np.int64)])
        if level == self.d:
            self.made_by = np.concatenate([self.made_by, self.walls[planes]])
        everyone = np.arange(count)
        half = np.concatenate([2 * plus[0], 2 * minus[0] + 1, 2 * everyone, 2 * everyone + 1])
        halves = Lists.of(half, np.concatenate([plus[1], minus[1], cuts, cuts]), 2 * count)
        self._add_halves(level, faces, halves, cuts)

    def _add_halves(self, level: int, faces: Ints, halves: Lists, cuts: Ints) -> None:
        """Both halves of every face, one after the other, as new faces."""
        first = len(self.facets[level - 1]) + 2 * np.arange(len(faces))
        self.facets[level - 1] = self.facets[level - 1].extended(halves)
        self.halves[level - 1][faces] = np.stack([first, first + 1, cuts], 1)
        self.halves[level - 1] = np.concatenate([self.halves[level - 1], np.full((len(halves), 3), -1, dtype=np.int64)])
        if level == self.d - 1:
            self.made_by = np.concatenate([self.made_by, np.repeat(self.made_by[faces], 2)])

    def _inherit(self, cells: Ints, planes: Ints, cut: Ints) -> tuple[Ints, Ints]:
        """Crossings that are left: those of cells that were cut are looked for in both halves."""
        order = np.argsort(cut)
        place = np.searchsorted(cut[order], cells)
        place = np.minimum(place, len(cut) - 1)
        halved = cut[order][place] == cells
        children = self.halves[self.d - 1][cells[halved], :2].reshape(-1)
        theirs = np.repeat(planes[halved], 2)
        young, which = np.unique(children, return_inverse=True)
        if not len(young):
            return cells[~halved], planes[~halved]
        whole = Complex(self.corners, self.facets, self.made_by)
        lists = Lists.of(*whole.faces_of(0, young), len(young))
        pair, corner = lists.gather(which)
        seen = self.codes[corner, theirs[pair]]
        starts = np.searchsorted(pair, np.arange(len(which)))
        crossed = np.bitwise_or.reduceat(seen, starts) == CROSSED
        cells = np.concatenate([cells[~halved], children[crossed]])
        planes = np.concatenate([planes[~halved], theirs[crossed]])
        order = np.lexsort((planes, cells))
        return cells[order], planes[order]
