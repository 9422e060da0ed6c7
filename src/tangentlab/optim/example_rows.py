"""Whether row n of a layer's input belongs to example n.

Layers see tensors, not examples. A table of positions that is looked up once for all examples, tokens that were sent to an
expert, a sequence-first input: each may have as many rows as the batch has examples. With random cotangents on the outputs of
one half of the examples, drawn at random, no gradient may arrive at the rows of the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_leaves

from tangentlab.engine.network import mixes_examples

SMALL = 1e-6
"""Share of the gradient that may arrive at other examples' rows."""


@dataclass(frozen=True)
class ExampleRows:
    """An intermediate value: where its gradient can be read, its shape, and the axis that looks like the examples'."""

    edge: GradientEdge
    shape: tuple[int, ...]
    place: int


def couples_examples(model: nn.Module) -> bool:
    """Whether batch norm uses the statistics of the batch, so that every row meets every example's output."""
    return any(map(mixes_examples, model.modules()))


def meet_other_examples(output: Any, asked: Sequence[ExampleRows], examples: int, axis: int) -> list[bool]:
    """Whether rows of intermediate values meet outputs of other examples than their own.

    Cost: two backward passes down to these values, without gradients of parameters.

    Args:
        output: of the model; tensors with the examples on `axis` (or else the first one) are used.
        asked: the values.
        examples: N.

    Returns:
        All False where nothing can be told: outputs of another form, graphs that are not differentiated twice.
    """
    values = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad and t.is_floating_point()]
    found = [(value, place) for value in values if (place := _place(value, examples, axis)) is not None]
    outputs, edges = [value for value, _ in found], [rows.edge for rows in asked]
    generator = torch.Generator().manual_seed(examples)
    half = torch.randperm(examples, generator=generator) < examples // 2
    inside, outside = torch.zeros(len(asked)), torch.zeros(len(asked))
    for own in (half, ~half) if found else ():
        cotangents = [_on_examples(value, place, own, generator) for value, place in found]
        try:
            grads = torch.autograd.grad(outputs, edges, cotangents, retain_graph=True, allow_unused=True)
        except RuntimeError:
            break
        for index, (grad, rows) in enumerate(zip(grads, asked, strict=True)):
            if grad is not None:
                by_row = grad.detach().reshape(rows.shape).movedim(rows.place, 0).flatten(1)
                sizes = torch.linalg.vector_norm(by_row, dim=1).cpu().float()
                inside[index] += sizes[own].sum()
                outside[index] += sizes[~own].sum()
    return (outside > SMALL * inside).tolist()


def _place(value: Tensor, examples: int, axis: int) -> int | None:
    return next((place for place in (axis, 0) if place < value.ndim and value.shape[place] == examples), None)


def _on_examples(value: Tensor, place: int, own: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers of the value's shape, zero for other examples than these."""
    rows = torch.randn(value.movedim(place, 0).shape, generator=generator)
    rows[~own] = 0
    return rows.movedim(0, place).to(value.device, value.dtype)
