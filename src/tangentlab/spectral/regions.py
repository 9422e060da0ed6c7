"""All regions of a network inside of a box, a segment or a triangle of inputs, with their affine maps.

The network runs once on the corners of the cells; wherever it bends, the cells are cut (`Subdivision`) and the new corners
join the others. Values at a new corner are interpolated, since everything the network has computed so far is affine on the
cell that was cut. Afterwards one point of each cell gives its affine map.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.engine.memory import memory_budget, require_memory
from tangentlab.errors import InputError, NumericsError
from tangentlab.spectral.complexes import Complex, Floats
from tangentlab.spectral.cutter import Cutter, TooLarge
from tangentlab.spectral.follow import DTYPE, follow, plain_outputs
from tangentlab.spectral.partition import Frame, Partition
from tangentlab.spectral.patterns import OnOnePiece

Box = Sequence[Sequence[float]] | Sequence[float] | Floats | Tensor
CHUNK_BYTES = 1 << 23
PART_BYTES = 1 << 27
"""What the rows of all corners may take at one bend."""


def enumerate_regions(model: nn.Module, box: Box, shape: Sequence[int] | None = None) -> Partition:
    """All regions of a network inside of a box, exactly: one cell for every activation pattern that occurs there.

    Args:
        model: affine and piecewise-linear operations in eval mode, for batches `(examples, *shape)`.
        box: `(low, high)` of every input, `(d, 2)`; for one input also `(low, high)`.
        shape: of an input, with d numbers; default `(d,)`.

    Cost: about 10 microseconds per region in 2-D and 20 in 3-D, on one thread. The number of regions grows like `(units)^d`:
    meant for d up to 3, and for small networks beyond (`search_regions` needs no faces).
    """
    limits = box_limits(box)
    d = len(limits)
    require_memory(3**d * 50, f"The faces of a box in {d} dimensions", "Use search_regions, or a cut.")
    inner = input_shape(shape, d)
    frame = Frame(torch.zeros(inner, dtype=DTYPE), torch.eye(d, dtype=DTYPE).view(d, *inner))
    return partition_of(model, Complex.box(limits[:, 0], limits[:, 1]), frame)


def input_shape(shape: Sequence[int] | None, dimension: int) -> tuple[int, ...]:
    """The shape of an input of d numbers; default `(d,)`."""
    inner = tuple(shape) if shape is not None else (dimension,)
    if prod(inner) != dimension:
        raise InputError(f"The argument shape {inner} has {prod(inner)} numbers and the box {dimension}.")
    return inner


def box_limits(box: Box) -> Floats:
    """The argument `box` as `(d, 2)`; anything but finite intervals with an interior is refused."""
    limits = np.asarray(box, dtype=np.float64)
    limits = limits[None] if limits.shape == (2,) else limits
    shaped = limits.ndim == 2 and limits.shape[1] == 2 and np.isfinite(limits).all()
    if not shaped or not (limits[:, 0] < limits[:, 1]).all():
        raise InputError(f"The argument box is a finite (low, high) with low < high for every input, got {box!r}.")
    return limits


def partition_of(model: nn.Module, domain: Complex, frame: Frame) -> Partition:
    """Cut a domain, given in the coordinates of a frame, by a network.

    When the rows of all corners outgrow `PART_BYTES`, the cells as they are then are divided into two halves and each goes
    through the network from the start; cells that are whole already are not cut again.
    """
    waiting, done = [domain], list[Complex]()
    scales: list[Floats] = []
    limit = min(PART_BYTES, memory_budget() // 32)
    while waiting:
        part = waiting.pop()
        cutter = Cutter(part, limit, found=sum(one.n_cells for one in done), scales=scales)
        try:
            follow(model, frame.points(torch.from_numpy(part.corners)), cutter)
            done.append(cutter.complex.restricted(np.arange(cutter.complex.n_cells)))
        except TooLarge as large:
            waiting += _halves(large.complex)
    complex = done[0] if len(done) == 1 else Complex.union(done)
    weights, biases = affine_maps(model, frame, complex.centres(), cutter.widest)
    partition = Partition(complex, frame, weights, biases, tuple(cutter.bends), parts=len(done))
    _check(model, partition)
    return partition


def _halves(complex: Complex) -> list[Complex]:
    """Two complexes with half of the cells each, left and right along the longest side."""
    centres = complex.centres()
    order = np.argsort(centres[:, np.ptp(complex.corners, axis=0).argmax()])
    return [complex.restricted(half) for half in (order[len(order) // 2 :], order[: len(order) // 2])]


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
