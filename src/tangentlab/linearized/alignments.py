"""Alignment of many functions with the tangent kernel, without a Gram matrix.

For a function f on the data, `alpha(f) = E_{x,x'}[f(x) K(x,x') f(x')] = | E_x[f(x) grad f_theta(x)] |^2`: the squared norm
of one average of gradients per function.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.memory import memory_budget
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import Unweighted
from tangentlab.errors import InputError
from tangentlab.layers.outer import OuterSum

ROWS_AT_ONCE = 64 << 20
"""Bytes of written-out gradients at a time, where only their sums are wanted."""


@spelled_out
def alignments(
    model: nn.Module,
    loader: Any,
    targets: Tensor,
    **options: Unpack[Options],
) -> Tensor:
    """alpha of every function, `(functions,)`, at the model's present parameters.

    Args:
        model: in evaluation mode; with several outputs a function has a value for each of them.
        loader: the data in a fixed order, in batches that fit in memory.
        targets: `(functions, n)` values at the n examples, or `(functions, outputs, n)`.
        options: as in `tangentlab.NTK`.

    Cost: one backward pass per output over the data for as many functions as fit in memory (all of their averaged gradients
    are held, functions x parameters), and 2 functions n d operations. A Gram matrix in memory costs less for more than some
    n functions: see `Eigenfunctions.alignment`.
    """
    values = targets[:, None, :] if targets.ndim == 2 else targets
    if values.ndim != 3 or not values.is_floating_point():
        raise InputError(
            f"The targets are real (functions, n) or (functions, outputs, n), not {targets.dtype} {tuple(targets.shape)}."
        )
    rows = Rows(Network.of(model, **options), loader, Unweighted(), ordered=True)
    size = rows.network.layout.numel * values.element_size()
    step = max(1, min(len(values), int(memory_budget() // (4 * size))))
    with rows.frozen():
        return torch.cat([_squared_averages(rows, part) for part in values.split(step)])


@spelled_out
def rayleigh_quotients(model: nn.Module, loader: Any, targets: Tensor, **options: Unpack[Options]) -> Tensor:
    """`y^T K y / y^T y` for every row y of targets, as `alignments`; an eigenvector of K gives its eigenvalue."""
    found = alignments(model, loader, targets, **options)
    return found * targets.shape[-1] ** 2 / targets.flatten(1).square().sum(1)


def _squared_averages(rows: Rows, values: Tensor) -> Tensor:
    """`| 1/n sum_an f_c(x_n) grad f_c(x_n) |^2` for values `(functions, outputs, n)`."""
    sums: dict[Any, Tensor] = {}
    output = first = examples = 0
    for chunk in rows:
        if chunk.first:
            _require_all(output, values.shape[1], first > 0 or examples > 0)
            output, first, examples = 0, first + examples, chunk.examples
        for group, factor in chunk.factors.items():
            part = values[:, output : output + factor.outputs, first : first + examples]
            if part.shape[1:] != (factor.outputs, examples):
                raise InputError(
                    f"The data have more examples or outputs than targets {tuple(values.shape)}: functions of several outputs "
                    "are (functions, outputs, n), from rows (functions, outputs * n) by .unflatten(1, (outputs, -1))."
                )
            pulled = _weighted_rows(factor, part.to(factor.left.dtype))
            sums[group] = sums[group].add_(pulled) if group in sums else pulled
        output += next(iter(chunk.factors.values())).outputs
    _require_all(output, values.shape[1], True)
    if first + examples != values.shape[-1]:
        raise InputError(f"Targets hold {values.shape[-1]} examples and the data {first + examples}.")
    return torch.stack([total.square().sum(1) for total in sums.values()]).sum(0) / values.shape[-1] ** 2


def _require_all(found: int, expected: int, begun: bool) -> None:
    if begun and found != expected:
        raise InputError(f"The model has {found} outputs per example and the targets {expected}.")


def _weighted_rows(factor: OuterSum, weights: Tensor) -> Tensor:
    """sum over outputs and examples of weights `(functions, K, N)` times gradients: `(functions, numel)`."""
    size = max(1, factor.outputs * factor.numel * factor.left.element_size())
    pieces = min(factor.examples, ceil(factor.examples * size / ROWS_AT_ONCE))
    total: Tensor | None = None
    for piece in range(pieces):
        start, stop = (factor.examples * place // pieces for place in (piece, piece + 1))
        rows = factor.take_examples(start, stop).rows().flatten(0, 1)
        value = weights[:, :, start:stop].flatten(1) @ rows
        total = value if total is None else total.add_(value)
    assert total is not None
    return total
