"""A traveller through a network that carries the corners of cells and cuts the cells where the network bends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.spectral.bends import Bend
from tangentlab.spectral.complexes import Complex, Floats, Ints
from tangentlab.spectral.subdivide import TOLERANCE, NewCorners, Subdivision

NOISE = 1e-13
BYTES_PER_FACE = 100
"""Of a finished region and its affine map, for each of the 3^d faces that a cube has."""
GROWTH = 4
"""How far the rows of one bend may grow beyond the limit while it is cut."""


class TooLarge(Exception):
    """The rows of all corners take more memory than a part may have; `complex` holds the cells as cut so far."""

    def __init__(self, complex: Complex) -> None:
        super().__init__()
        self.complex = complex


class Cutter:
    """Cells and what has been done to them on the way through a network.

    Args:
        complex: the cells at the start.
        limit: bytes that the corners' rows of one bend may take before the work is divided (by `TooLarge`).
        found: regions that other parts of the domain have given already.
        scales: the largest value of every unit at each bend, from an earlier way through the network over a larger domain.
            Shared by all parts, so that a corner that lay on a unit's hyperplane still does.
    """

    def __init__(
        self, complex: Complex, limit: int = 1 << 62, found: int = 0, scales: list[Floats] | None = None
    ) -> None:
        self.complex, self.limit, self.found = complex, limit, found
        self.scales = scales if scales is not None else []
        self.history: list[NewCorners] = []
        self.sizes = [len(complex.corners)]  # numbers of corners before each round and now
        self.bends: list[tuple[int, int]] = []  # first wall number, units
        self.widest = 1

    def catch_up(self, rows: Tensor) -> Tensor:
        """Rows of the corners that came later, by interpolation: what was computed before a cut is affine across it."""
        if len(rows) == self.sizes[-1]:
            return rows
        start = len(rows)
        full = rows.new_empty((self.sizes[-1], *rows.shape[1:]))
        full[:start] = rows
        flat = full.view(len(full), -1).numpy()
        for new in self.history[self.sizes.index(start) :]:
            flat[start : start + len(new.t)] = new.interpolate(flat)
            start += len(new.t)
        return full

    def bend(self, rows: Tensor, bend: Bend) -> Tensor:
        """Cut the cells where a unit passes a break, then apply the function at all corners."""
        return bend.function(self._cut(rows, bend.breaks)[0])

    def largest(self, rows: Tensor) -> Tensor:
        """The maximum over the last axis, by a tournament of pairs: cells are cut where a - b passes 0.

        A hyperplane between two losers changes nothing: cells with the same winners that came from one are joined again.
        """
        windows = rows
        origins = np.arange(self.complex.n_cells)
        while rows.shape[-1] > 1:
            half = rows.shape[-1] // 2
            origins = origins[self._cut(rows[..., :half] - rows[..., half : 2 * half], (0.0,))[1]]
            rows = self.catch_up(rows)
            winners = torch.maximum(rows[..., :half], rows[..., half : 2 * half])
            rows = torch.cat([winners, rows[..., 2 * half :]], -1)
        self._join(origins, self.catch_up(windows))
        return rows.squeeze(-1)

    def _cut(self, rows: Tensor, breaks: tuple[float, ...]) -> tuple[Tensor, Ints]:
        """Rows with one for every new corner, exact on the hyperplanes, and the cells that the cells are parts of."""
        flat = rows.reshape(len(rows), -1).numpy()
        units = flat.shape[1]
        self._divide(units)
        scale = self._scale(flat)
        first = self.bends[-1][0] + self.bends[-1][1] if self.bends else 0
        self.bends.append((first, units))
        columns = [_crossing(flat, at, scale) for at in breaks]
        values_at = np.repeat(breaks, [len(one) for one in columns])
        chosen = np.concatenate(columns)
        if not len(chosen):
            return rows, np.arange(self.complex.n_cells)
        order = np.random.default_rng(0).permutation(
            len(chosen)
        )  # one order for all cells; a sorted one makes deep trees
        chosen, values_at = chosen[order], values_at[order]
        sizes = scale[chosen] + np.abs(values_at)
        cut = Subdivision(self.complex, flat[:, chosen] - values_at, first + chosen, sizes, self._room(units))
        if not cut.finished:
            raise TooLarge(cut.complex)
        self.complex = cut.complex
        for new in cut.rounds:
            self.history.append(new)
            self.sizes.append(self.sizes[-1] + len(new.t))
        rows = self.catch_up(rows).clone() if not cut.rounds else self.catch_up(rows)
        corner, plane = np.nonzero(cut.values == 0.0)
        rows.view(len(rows), -1).numpy()[corner, chosen[plane]] = values_at[plane]
        return rows, cut.origins

    def _scale(self, flat: Floats) -> Floats:
        """The size of every unit's values, remembered for other parts of the domain."""
        number = len(self.bends)
        if number == len(self.scales):
            self.scales.append(np.abs(flat).max(0, initial=0.0))
        return self.scales[number]

    def _join(self, origins: Ints, windows: Tensor) -> None:
        """Join cells of one origin whose centres have the same winners."""
        lists = self.complex.corners_of()
        flat = windows.reshape(len(windows), -1).numpy()
        centres = np.add.reduceat(flat[lists.members], lists.starts[:-1]) / lists.lengths()[:, None]
        winners = centres.reshape(len(centres), -1, windows.shape[-1]).argmax(-1)
        keys = np.concatenate([origins[:, None], winners], 1)
        groups = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        if int(groups.max()) + 1 < len(groups):
            self.complex = self.complex.merged(groups)

    def _divide(self, units: int) -> None:
        self.widest = max(self.widest, units)
        if self.sizes[-1] * units * 8 > self.limit and self.complex.n_cells > 1:
            raise TooLarge(self.complex)

    def _room(self, units: int) -> Callable[[int, int], bool]:
        """Refuses regions that would not fit in the memory budget, and stops where the rows of one part would not."""
        d = self.complex.dimension
        before = self.complex.n_cells

        def room(cells: int, corners: int) -> bool:
            require_memory(
                (self.found + cells) * 3**d * BYTES_PER_FACE,
                f"A partition of at least {self.found + cells:,} regions",
                "Use a smaller box, triangle or segment.",
            )
            return corners * units * 8 <= GROWTH * self.limit or cells < 2 * before

        return room


def _crossing(flat: Floats, at: float, scale: Floats) -> Ints:
    """Columns with values on both sides of a break; one that is tiny beside the others is 0 with roundings."""
    limit = TOLERANCE * (scale + abs(at))
    real = scale > NOISE * scale.max(initial=0.0)
    return np.flatnonzero((flat.max(0) - at > limit) & (flat.min(0) - at < -limit) & real)
