"""Cells in d dimensions with all their faces, each stored once.

A face of dimension k is known by its facets, the faces of dimension k - 1 on its border; an edge by its two corners. Nothing
else is stored: no order of corners, no orientation, no equations. A cell is a face of dimension d, and neighbours share faces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lists:
    """Lists of integers end to end: the i-th is `members[starts[i] : starts[i + 1]]`."""

    starts: Ints
    members: Ints

    @classmethod
    def of(cls, owners: Ints, members: Ints, count: int) -> Lists:
        """From pairs (owner, member); owners are numbers below `count`."""
        order = np.argsort(owners, kind="stable")
        return cls(np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]), members[order])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self) -> Ints:
        """How long every list is."""
        return np.diff(self.starts)

    def gather(self, which: Ints) -> tuple[Ints, Ints]:
        """(place in `which`, member) of all members of the lists asked for, in order."""
        first = self.starts[which]
        lengths = self.starts[which + 1] - first
        owners = np.repeat(np.arange(len(which)), lengths)
        ends = np.cumsum(lengths)
        shift = np.repeat(first - ends + lengths, lengths)
        return owners, self.members[shift + np.arange(len(shift))]

    def extended(self, more: Lists) -> Lists:
        """These lists and then those."""
        return Lists(
            np.concatenate([self.starts, self.starts[-1] + more.starts[1:]]),
            np.concatenate([self.members, more.members]),
        )


def distinct(owners: Ints, members: Ints) -> tuple[Ints, Ints]:
    """Pairs (owner, member) without repetitions, in order."""
    width = int(members.max()) + 1 if len(members) else 1
    keys = np.unique(owners * width + members)
    return keys // width, keys % width


def odd(owners: Ints, members: Ints) -> tuple[Ints, Ints]:
    """Pairs (owner, member) that occur an odd number of times, in order: a border modulo 2."""
    width = int(members.max()) + 1 if len(members) else 1
    keys, counts = np.unique(owners * width + members, return_counts=True)
    keys = keys[counts % 2 == 1]
    return keys // width, keys % width


@dataclass
class Complex:
    """Cells that fill a domain.

    Args:
        corners: `(corners, d)`.
        facets: `facets[k - 1]` lists, for every face of dimension k = 1 ... d, its facets.
        walls: for every face of dimension d - 1, what made it: a number per bend (see `BendWalls`), below 0 the border.
    """

    corners: Floats
    facets: list[Lists]
    walls: Ints

    @property
    def dimension(self) -> int:
        """d."""
        return len(self.facets)

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return len(self.facets[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of corners and lists."""
        lists = sum(one.starts.nbytes + one.members.nbytes for one in self.facets)
        return self.corners.nbytes + self.walls.nbytes + lists

    def faces_of(self, dimension: int, which: Ints, of: int | None = None) -> tuple[Ints, Ints]:
        """Pairs (place in `which`, face of that dimension) of faces of dimension `of` (default: cells), without repetitions."""
        top = self.dimension if of is None else of
        owners, found = np.arange(len(which)), which
        for level in range(top, dimension, -1):
            inner, found = self.facets[level - 1].gather(found)
            owners, found = distinct(owners[inner], found)
        return owners, found

    def corners_of(self, dimension: int | None = None) -> Lists:
        """The corners of every face of a dimension (default: of every cell)."""
        level = self.dimension if dimension is None else dimension
        count = len(self.facets[level - 1])
        owners, found = self.faces_of(0, np.arange(count), of=level)
        return Lists.of(owners, found, count)

    def centres(self, dimension: int | None = None) -> Floats:
        """The mean of every face's corners, `(faces, d)`: a point of its interior."""
        lists = self.corners_of(dimension)
        return np.add.reduceat(self.corners[lists.members], lists.starts[:-1]) / lists.lengths()[:, None]

    def restricted(self, cells: Ints, all_corners: bool = False) -> Complex:
        """The cells asked for and their faces, numbered anew. Cost: linear in the size.

        Args:
            cells: their numbers.
            all_corners: keep corners that no cell has, so that corners keep their numbers.
        """
        facets: list[Lists] = []
        keep = cells
        walls = self.walls
        for level in range(self.dimension, 0, -1):
            owners, members = self.facets[level - 1].gather(keep)
            below = np.arange(len(self.corners)) if all_corners and level == 1 else np.unique(members)
            facets.append(Lists.of(owners, np.searchsorted(below, members), len(keep)))
            keep = below
            if level == self.dimension:
                walls = self.walls[below]
        return Complex(self.corners[keep], facets[::-1], walls)

    def merged(self, groups: Ints) -> Complex:
        """Cells of one group become one: their facets modulo 2. Groups are numbered from 0; corners keep their numbers."""
        cells, walls = self.facets[-1].gather(np.arange(self.n_cells))
        count = int(groups.max()) + 1
        outer = Lists.of(*odd(groups[cells], walls), count)
        whole = Complex(self.corners, [*self.facets[:-1], outer], self.walls)
        return whole.restricted(np.arange(count), all_corners=True)

    @classmethod
    def union(cls, parts: list[Complex]) -> Complex:
        """Complexes side by side, without shared faces."""
        facets = []
        for level in range(parts[0].dimension):
            below = [len(part.corners if level == 0 else part.facets[level - 1]) for part in parts]
            shifts = np.cumsum([0, *below[:-1]])
            moved = [
                Lists(p.facets[level].starts, p.facets[level].members + s) for p, s in zip(parts, shifts, strict=True)
            ]
            facets.append(reduce(Lists.extended, moved))
        return cls(np.concatenate([p.corners for p in parts]), facets, np.concatenate([p.walls for p in parts]))

    @classmethod
    def box(cls, low: Floats, high: Floats) -> Complex:
        """The cell `low <= x <= high`. Its wall with x_i = low_i is number -1 - 2 i, the opposite one -2 - 2 i."""
        d = len(low)
        faces: list[list[tuple[int, ...]]] = [[] for _ in range(d + 1)]
        for signs in product((0, 1, 2), repeat=d):  # 2: the whole side
            faces[signs.count(2)].append(signs)
        places = [{signs: number for number, signs in enumerate(level)} for level in faces]
        facets = []
        for level in range(1, d + 1):
            rows = [
                [
                    places[level - 1][(*signs[:i], end, *signs[i + 1 :])]
                    for i in range(d)
                    if signs[i] == 2
                    for end in (0, 1)
                ]
                for signs in faces[level]
            ]
            facets.append(Lists(np.arange(len(rows) + 1) * 2 * level, np.array(rows, dtype=np.int64).reshape(-1)))
        corners = np.where(np.array(faces[0]).reshape(-1, d) == 1, high, low).astype(np.float64)
        sides = [next((i, signs[i]) for i in range(d) if signs[i] != 2) for signs in faces[d - 1]]
        return cls(corners, facets, np.array([-1 - 2 * i - end for i, end in sides], dtype=np.int64))

    @classmethod
    def simplex(cls, corners: Floats) -> Complex:
        """The cell spanned by d + 1 points, `(d + 1, d)`. The wall opposite to corner i is number -1 - i."""
        d = corners.shape[1]
        faces = [list(combinations(range(d + 1), level + 1)) for level in range(d + 1)]
        places = [{face: number for number, face in enumerate(level)} for level in faces]
        facets = []
        for level in range(1, d + 1):
            rows = [[places[level - 1][face[:i] + face[i + 1 :]] for i in range(level + 1)] for face in faces[level]]
            facets.append(Lists(np.arange(len(rows) + 1) * (level + 1), np.array(rows, dtype=np.int64).reshape(-1)))
        walls = [-1 - next(i for i in range(d + 1) if i not in face) for face in faces[d - 1]]
        return cls(corners.astype(np.float64), facets, np.array(walls, dtype=np.int64))
