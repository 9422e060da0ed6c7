"""The first steps of a training: what is done until bases (or inverses) of all layers are worth their cost.

New bases for all layers of a large network cost as much as many training steps, and those of the first steps are renewed after
one or two. Where they cost more than a part of the step's own passes, every layer begins with the diagonal of F in the basis
that is there, estimated as EKFAC-ra does it,

    s <- alpha s + (1 - alpha) N gbar^2,      g / (s + eps),      gbar the mean gradient of N examples, alpha = 0.75,

which reads nothing but the gradient and follows the curvature at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from tangentlab.engine.groups import Group
from tangentlab.optim.layer_block import BlockOptions, LayerBlock
from tangentlab.optim.sides import RunningDiagonal, RunningSide

EARLY = 10
"""Steps before which bases may not cost more than their share."""
SHARE = 0.2
"""That part, of the operations of forward and backward pass."""
LEAST = 1e10
"""Operations that are always allowed, a tenth of a second or less: small networks have their bases from the first step on."""
DECAY = 0.75
"""alpha."""


def diagonal_options(options: BlockOptions) -> BlockOptions:
    """Those of a block that is a running diagonal."""
    plain = replace(options, scale="batch", factors=False, form="plain", inverse="eigh")
    return replace(plain, cutoff=None, thin=False, pi=False)


def bases_cost_too_much(blocks: Mapping[Group, LayerBlock], outputs: Mapping[Group, Sequence[tuple[int, ...]]]) -> bool:
    """Whether measuring and decomposing the sides of all layers that were called costs more than it may.

    outputs: shapes of the outputs of every call of a group.
    """
    passes = needed = 0.0
    for group, shapes in outputs.items():
        block = blocks[group]
        groups, rows, columns = block.form.shape
        width = groups * (rows if block.gradients == "left" else columns)
        positions = sum(torch.Size(shape).numel() for shape in shapes) / width
        passes += 6 * positions * block.form.dim
        needed += sum(_operations(block, side, positions) for side in (block.left, block.right))
    return needed > max(LEAST, SHARE * passes)


def _operations(block: LayerBlock, side: RunningSide, rows: float) -> float:
    """Of measuring one side and of decomposing (or inverting) it; a diagonal costs nothing."""
    if isinstance(side, RunningDiagonal):
        return 0.0
    size, per_cube = float(side.shape(1)[-1]), 2 if block.options.inverse == "cholesky" else 9
    return block.form.shape[0] * (rows * size**2 + per_cube * size**3)
