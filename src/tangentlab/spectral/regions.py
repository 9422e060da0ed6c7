"""All regions of a network inside of a box, a segment or a triangle of inputs, with their affine maps.

The network runs once on the corners of the cells; wherever it bends, the cells are cut (`Subdivision`) and the new corners
join the others. Values at a new corner are interpolated, since everything the network has computed so far is affine on the
cell that was cut. Afterwards one point of each cell gives its affine map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError, NumericsError
from tangentlab.spectral.bends import BENDS, Bend
from tangentlab.spectral.complexes import Complex, Floats, Ints
from tangentlab.spectral.follow import DTYPE, follow, plain_outputs
from tangentlab.spectral.partition import Frame, Partition
from tangentlab.spectral.patterns import OnOnePiece
from tangentlab.spectral.subdivide import TOLERANCE, NewCorners, Subdivision

CHUNK_BYTES = 1 << 26


class Cutter:
    """A traveller whose points are the corners of cells and that cuts the cells where the network bends."""

    def __init__(self, complex: Complex) -> None:
        self.complex = complex
        self.history: list[NewCorners] = []
        self.sizes = [len(complex.corners)]  # corners before every round
        self.bends: list[tuple[int, int]] = []  # first wall number, units
        self.widest = 1

    def catch_up(self, rows: Tensor) -> Tensor:
        """Rows of the corners that came later, by interpolation."""
        if len(rows) == self.sizes[-1]:
            return rows
        flat = rows.reshape(len(rows), -1).numpy()
        for new in self.history[self.sizes.index(len(rows)) :]:
            flat = np.concatenate([flat, new.interpolate(flat)])
        return torch.from_numpy(flat).view(-1, *rows.shape[1:])

    def bend(self, rows: Tensor, bend: Bend) -> Tensor:
        """Cut the cells where a unit passes a break, then apply the function at all corners."""
        flat = rows.reshape(len(rows), -1).numpy()
        first = sum(units for _, units in self.bends)
        self.widest = max(self.widest, flat.shape[1])
        columns = [_crossing(flat - at) for at in bend.breaks]
        breaks = np.repeat(bend.breaks, [len(one) for one in columns])
        units = np.concatenate(columns)
        self.bends.append((first, flat.shape[1]))
        if len(units):
            order = np.random.default_rng(0).permutation(
                len(units)
            )  # any fixed order; a sorted one could make deep trees
            units, breaks = units[order], breaks[order]
            cut = Subdivision(self.complex, flat[:, units] - breaks, first + units, self._room(flat.shape[1]))
            self._add(cut)
            rows = self.catch_up(rows)
            flat = rows.reshape(len(rows), -1).numpy()
            corner, plane = np.nonzero(cut.values == 0.0)
            flat[corner, units[plane]] = breaks[plane]
        return bend.function(rows)

    def largest(self, rows: Tensor) -> Tensor:
        """A tournament of pairs: `max(a, b) = b + relu(a - b)`."""
        relu = BENDS["relu"](rows)
        while rows.shape[-1] > 1:
            half = rows.shape[-1] // 2
            gain = self.bend(rows[..., :half] - rows[..., half : 2 * half], relu)
            rows = self.catch_up(rows)
            rows = torch.cat([rows[..., half : 2 * half] + gain, rows[..., 2 * half :]], -1)
        return rows.squeeze(-1)

    def _add(self, cut: Subdivision) -> None:
        self.complex = cut.complex
        for new in cut.rounds:
            self.history.append(new)
            self.sizes.append(self.sizes[-1] + len(new.t))

    def _room(self, units: int) -> Callable[[int, int], None]:
        d = self.complex.dimension

        def room(cells: int, corners: int) -> None:
            need = corners * (2 * units + d) * 8 + cells * 3**d * 40
            require_memory(
                need,
                f"A partition of more than {cells} regions",
                "Use a smaller box, triangle or segment.",
            )

        return room


def _crossing(values: Floats) -> Ints:
    """Columns with values on both sides of 0."""
    limit = TOLERANCE * np.abs(values).max(0, initial=0.0)
    return np.flatnonzero((values.max(0) > limit) & (values.min(0) < -limit))


def enumerate_regions(
    model: nn.Module, box: Sequence[Sequence[float]] | Floats | Tensor, shape: Sequence[int] | None = None
) -> Partition:
    """All regions of a network inside of a box, exactly: one cell for every activation pattern that occurs there.

    Args:
        model: affine and piecewise-linear operations in eval mode, for batches `(examples, *shape)`.
        box: `(low, high)` of every input, `(d, 2)`; for one input also `(low, high)`.
        shape: of an input, with d numbers; default `(d,)`.

    Cost: about 20 microseconds per region in 2-D. The number of regions grows like `(units)^d`: meant for d up to 3, and for
    small networks beyond (`search_regions` needs no faces).
    """
    limits = np.asarray(box, dtype=np.float64)
    limits = limits[None] if limits.shape == (2,) else limits
    if (
        limits.ndim != 2
        or limits.shape[1] != 2
        or not np.isfinite(limits).all()
        or not (limits[:, 0] < limits[:, 1]).all()
    ):
        raise InputError(f"The argument box is a finite (low, high) with low < high for every input, got {box!r}.")
    d = len(limits)
    require_memory(3**d * 50, f"The faces of a box in {d} dimensions", "Use search_regions, or a cut.")
    inner = tuple(shape) if shape is not None else (d,)
    frame = Frame(torch.zeros(inner, dtype=DTYPE), torch.eye(d, dtype=DTYPE).view(d, *inner))
    return partition_of(model, Complex.box(limits[:, 0], limits[:, 1]), frame)


def partition_of(model: nn.Module, domain: Complex, frame: Frame) -> Partition:
    """Cut a domain, given in the coordinates of a frame, by a network."""
    cutter = Cutter(domain)
    follow(model, frame.points(torch.from_numpy(domain.corners)), cutter)
    weights, biases = affine_maps(model, frame, cutter.complex.centres(), cutter.widest)
    partition = Partition(cutter.complex, frame, weights, biases, tuple(cutter.bends))
    _check(model, partition)
    return partition


def affine_maps(model: nn.Module, frame: Frame, bases: Floats, widest: int) -> tuple[Floats, Floats]:
    """Slopes `(points, outputs, d)` in the frame and constants `(points, outputs)` of the affine maps around points."""
    d = bases.shape[1]
    step = max(1, CHUNK_BYTES // (8 * (1 + d) * widest))
    slopes, constants = [], []
    for start in range(0, len(bases), step):
        base = bases[start : start + step]
        moved = np.concatenate([base[None], base[None] + np.eye(d)[:, None]]).reshape(-1, d)
        rows = follow(model, frame.points(torch.from_numpy(moved)), OnOnePiece(len(base))).numpy()
        rows = rows.reshape(1 + d, len(base), -1)
        slope = np.moveaxis(rows[1:] - rows[0], 0, -1)
        slopes.append(slope)
        constants.append(rows[0] - np.einsum("pod,pd->po", slope, base))
    return np.concatenate(slopes), np.concatenate(constants)


def _check(model: nn.Module, partition: Partition) -> None:
    """The affine maps against the network itself at up to 256 centres: whatever was followed wrongly shows here."""
    centres = partition.complex.centres()
    some = np.linspace(0, len(centres) - 1, min(256, len(centres))).astype(int)
    truth = plain_outputs(model, partition.frame.points(torch.from_numpy(centres[some]))).numpy()
    ours = np.einsum("pod,pd->po", partition.weights[some], centres[some]) + partition.biases[some]
    error, size = np.abs(truth - ours).max(), 1 + np.abs(truth).max() + np.abs(partition.weights[some]).max()
    if not error <= 1e-8 * size:
        raise NumericsError(
            f"The affine maps differ from the network by {error:.2g}: it does something that is not followed, such as mixing "
            "examples or changing a tensor in place that is used again."
        )
