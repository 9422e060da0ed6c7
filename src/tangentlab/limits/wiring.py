"""The arrays of a network of plateau units, level by level, with one pass forward and one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def plateau(z: Array, offset: Array) -> Array:
    """`(s(z - o) + s(z + o)) / 2` with `s(z) = clip(2 z, -1, 1)`."""
    return (np.clip(2 * (z - offset), -1, 1) + np.clip(2 * (z + offset), -1, 1)) / 2


def plateau_slope(z: Array, offset: Array) -> Array:
    """Its derivative: 0 on the plateaus."""
    return (np.abs(z - offset) < 0.5).astype(z.dtype) + (np.abs(z + offset) < 0.5).astype(z.dtype)


@dataclass(frozen=True)
class Wiring:
    """Nodes in the order of their levels: the constant, the inputs, the units, the linear outputs.

    Attributes:
        n: number of inputs.
        outputs: number of linear output nodes, the last ones.
        levels: of every level of units: its first node and its last + 1, its first edge and its last + 1.
        sources: node that every edge comes from, edges in the order of the nodes they lead to.
        starts: first edge of every unit and output, relative to its level.
        targets: node that every edge leads to, relative to its level.
        offsets: of every unit.
        weights: of every edge, at the start.
    """

    n: int
    outputs: int
    levels: tuple[tuple[int, int, int, int], ...]
    sources: Array
    starts: Array
    targets: Array
    offsets: Array
    weights: Array

    @classmethod
    def of(
        cls,
        n: int,
        levels: Array,
        fan_in: Array,
        sources: Array,
        weights: Array,
        offsets: Array,
        outputs: Sequence[tuple[Sequence[int], Sequence[float]]],
    ) -> Wiring:
        """Sort units, given in any order of construction, by level; outputs come last."""
        unit_levels = levels[n + 1 :]
        order = np.argsort(unit_levels, kind="stable")
        place = np.arange(len(levels))
        place[n + 1 + order] = np.arange(n + 1, len(levels))
        first = np.cumsum(fan_in) - fan_in
        edges = _ranges(first[order], fan_in[order])
        sorted_sources = [place[sources[edges]], *(place[np.array(s, dtype=np.int64)] for s, _ in outputs)]
        sorted_weights = [weights[edges], *(np.array(w, dtype=np.float64) for _, w in outputs)]
        counts = np.concatenate([fan_in[order], [len(s) for s, _ in outputs]]).astype(np.int64)
        heights = np.concatenate([unit_levels[order], [unit_levels.max(initial=0) + 1] * len(outputs)])
        bounds = np.flatnonzero(np.diff(heights, prepend=-1, append=-1))
        ends = np.concatenate([[0], np.cumsum(counts)])
        slices = tuple(
            (int(a) + n + 1, int(b) + n + 1, int(ends[a]), int(ends[b]))
            for a, b in zip(bounds, bounds[1:], strict=False)
        )
        starts = np.concatenate([ends[a - n - 1 : b - n - 1] - lo for a, b, lo, _ in slices])
        local = np.concatenate([np.arange(b - a) for a, b, _, _ in slices])
        return cls(
            n,
            len(outputs),
            slices,
            np.concatenate(sorted_sources),
            starts,
            np.repeat(local, counts),
            np.concatenate([offsets[order], np.zeros(len(outputs))]),
            np.concatenate(sorted_weights),
        )

    @property
    def nodes(self) -> int:
        """The constant, the inputs, the units and the outputs."""
        return self.n + 1 + len(self.offsets)

    def forward(self, inputs: Array, weights: Array, slopes: bool) -> tuple[Array, Array | None]:
        """Values of all nodes `(nodes, m)` at inputs `(m, n)`, and the slopes of the units if asked for."""
        values = np.empty((self.nodes, len(inputs)), dtype=weights.dtype)
        values[0], values[1 : self.n + 1] = 1, inputs.T
        slope = np.ones((self.nodes, len(inputs)), dtype=weights.dtype) if slopes else None
        skip = self.n + 1
        for a, b, lo, hi in self.levels:
            products = weights[lo:hi, None] * values[self.sources[lo:hi]]
            z = np.add.reduceat(products, self.starts[a - skip : b - skip], axis=0)
            if b == self.nodes:
                values[a:b] = z
                break
            offset = self.offsets[a - skip : b - skip, None].astype(weights.dtype)
            values[a:b] = plateau(z, offset)
            if slope is not None:
                slope[a:b] = plateau_slope(z, offset)
        return values, slope

    def backward(self, gradient: Array, values: Array, slope: Array, weights: Array) -> tuple[Array, Array]:
        """Gradients of the inputs `(m, n)` and of the weights, from those of the outputs `(m, outputs)`.

        A level whose units are all flat, or get no gradient, adds nothing and is passed over.
        """
        down = np.zeros_like(values)
        down[self.nodes - self.outputs :] = gradient.T
        found = np.zeros_like(weights)
        for a, b, lo, hi in reversed(self.levels):
            through = down[a:b] * slope[a:b]
            live = np.flatnonzero(through.any(1))
            if not len(live):
                continue
            edges = lo + np.flatnonzero(np.isin(self.targets[lo:hi], live)) if len(live) < b - a else np.arange(lo, hi)
            flow = through[self.targets[edges]]
            found[edges] = (flow * values[self.sources[edges]]).sum(1)
            np.add.at(down, self.sources[edges], weights[edges, None] * flow)
        return down[1 : self.n + 1].T, found


def _ranges(first: Array, counts: Array) -> Array:
    """`first[0], ..., first[0] + counts[0] - 1, first[1], ...`."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
