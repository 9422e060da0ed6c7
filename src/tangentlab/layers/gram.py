"""Gram matrices of per-example gradients, K[k, n, l, m] = <grad[k, n], grad'[l, m]>, by the cheapest exact order.

For sums of outer products over positions, with g the gradient side and a the input side,

    <grad, grad'> = sum_{t, s} <g_t, g'_s> <a_t, a'_s>,

which three routes contract in different orders; none builds a Jacobian over all parameters. Per pair of examples, with K
outputs on both sides, T positions, an O x I weight and half of it when the kernel is symmetric:

    "product"    T = 1: input Gram times output-gradient Gram             2 I + 2 K^2 O
    "rows"       gradients of this layer, contracted                      2 K^2 O I   (+ 2 K T O I per example)
    "positions"  input Gram applied to the gradients, then contracted     2 T^2 I + 2 T^2 K O + 2 K^2 T O

Summed over outputs (`trace`), K^2 becomes K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.layers.outer import OuterSum
from tangentlab.linalg.symmetric import symmetric_product

_PAIR_BYTES = 4 << 20
"""Intermediate results of the "positions" route that are held at a time."""


@dataclass(frozen=True)
class GramSizes:
    """What the cost of a Gram matrix depends on: outputs, examples on both sides, groups, positions, weight, bias."""

    outputs: int
    examples: int
    others: int
    symmetric: bool
    groups: int
    positions: int
    rows: int
    columns: int
    bias: bool
    itemsize: int = 4

    @classmethod
    def of(cls, first: OuterSum, second: OuterSum) -> GramSizes:
        """Sizes of a pair, with the input side as columns."""
        groups, rows, columns = first.matrix_shape
        if first.gradients == "right":
            rows, columns = columns, rows
        symmetric = first is second
        sizes = first.outputs, first.examples, second.examples, symmetric, groups, first.positions
        return cls(*sizes, rows, columns, first.bias, first.left.element_size())

    @property
    def pairs(self) -> float:
        """Pairs of examples that have to be contracted."""
        return self.examples * (self.examples + 1) / 2 if self.symmetric else self.examples * self.others


@dataclass(frozen=True)
class GramCost:
    """Operations (multiplications and additions) and peak extra memory in bytes of one route."""

    route: str
    operations: float
    memory: float


def gram_costs(sizes: GramSizes, trace: bool, explicit: bool = False, kronecker: bool = True) -> list[GramCost]:
    """Costs of the routes that apply. Explicit rows, or factors with outputs on both sides, leave only "rows"."""
    s, groups, outputs = sizes, sizes.groups, sizes.outputs
    square = outputs if trace else outputs**2
    each = s.examples + (0 if s.symmetric else s.others)
    make_rows = 0 if explicit else 2 * outputs * s.positions * s.rows * s.columns * groups * each
    contract = 2 * square * s.rows * s.columns * groups * s.pairs
    row_memory = outputs * each * groups * s.rows * s.columns * s.itemsize
    costs = [GramCost("rows", make_rows + contract, row_memory)]
    if explicit or not kronecker:
        return costs
    if s.positions == 1:
        operations = groups * s.pairs * (2 * s.columns + 2 * square * s.rows)
        costs.append(GramCost("product", operations, 2 * groups * square * s.examples * s.others * s.itemsize))
    inputs, applied = 2 * s.positions**2 * s.columns, 2 * s.positions**2 * outputs * s.rows
    contracted = 2 * s.positions**2 if trace else 2 * square * s.positions * s.rows
    memory = groups * s.others * s.positions * (s.positions + (s.positions if trace else outputs * s.rows)) * s.itemsize
    costs.append(GramCost("positions", groups * s.pairs * (inputs + applied + contracted), memory))
    return costs


def cheapest(costs: list[GramCost], rate: Callable[[GramCost], float] = lambda cost: cost.operations) -> GramCost:
    """The route with the fewest operations, or the least of another measure."""
    return min(costs, key=rate)


def gram_options(first: OuterSum, second: OuterSum, trace: bool) -> list[GramCost]:
    """Costs of the routes that this pair allows."""
    one_sided = first.gradients == second.gradients != "both" and first.positions == second.positions
    explicit = first.is_explicit and second.is_explicit
    return gram_costs(GramSizes.of(first, second), trace, explicit, kronecker=one_sided)


class Workspace:
    """Memory for intermediate results, used again from layer to layer: fresh pages cost as much as the work done in them.

    limit: bytes that the rows of a layer may take at once.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialized tensor; the last one taken under the same name is overwritten."""
        numel = torch.Size(shape).numel()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < numel or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[name] = like.new_empty(numel)
        return buffer[:numel].view(shape)


def gram(
    first: OuterSum,
    second: OuterSum,
    trace: bool = False,
    route: str | None = None,
    memory: float = float("inf"),
    workspace: Workspace | None = None,
) -> Tensor:
    """(K, N, L, M) for one parameter group, or (N, M) summed over outputs. `second is first` is computed half.

    route: None for the cheapest; memory: bytes that the rows of the layer may take at once; workspace: to use instead. A
    group that one batch has in closed form and another written out (its route depends on the batch) is contracted as rows.
    """
    if (first.matrix_shape, first.bias) != (second.matrix_shape, second.bias):
        return _contract(first.rows(), second.rows(), trace)
    chosen = route or cheapest(gram_options(first, second, trace)).route
    workspace = workspace or Workspace(memory)
    if chosen == "rows":
        return _rows(first, second, trace, workspace)
    return _product(first, second, trace) if chosen == "product" else _positions(first, second, trace, workspace)


def _rows(first: OuterSum, second: OuterSum, trace: bool, workspace: Workspace) -> Tensor:
    """Per-example gradients of this layer only, some of its rows at a time when they would not fit."""
    groups, rows, columns = first.matrix_shape
    examples = first.examples + (0 if second is first else second.examples)
    per_row = max(first.outputs * examples * groups * columns * first.left.element_size(), 1)
    step = int(max(1, min(rows, workspace.limit // per_row)))
    total: Tensor | None = None
    for start in range(0, rows, step):
        parts = [
            one if step == rows else one.take_rows(start, min(start + step, rows))
            for one in ((first,) if second is first else (first, second))
        ]
        written = [
            part.weight_rows(workspace, name).flatten(2).expand(part.outputs, -1, -1)
            for part, name in zip(parts, ("rows", "other rows"), strict=False)
        ]
        value = _contract(written[0], written[-1], trace)
        total = value if total is None else total.add_(value)
    assert total is not None
    if first.bias:
        one = first.left.sum(3).flatten(2)
        total = total.add_(_contract(one, one if second is first else second.left.sum(3).flatten(2), trace))
    return total


def _contract(one: Tensor, two: Tensor, trace: bool) -> Tensor:
    """<one[k, n], two[l, m]> for rows (K, N, d), whichever of the two leading axes is outermost in memory."""
    same = one is two
    if trace:
        return _products(one.transpose(0, 1).flatten(1), two.transpose(0, 1).flatten(1), same)
    if one.is_contiguous() and two.is_contiguous():
        return _products(one.flatten(0, 1), two.flatten(0, 1), same).reshape(*one.shape[:2], *two.shape[:2])
    one, two = one.transpose(0, 1), two.transpose(0, 1)
    product = _products(one.flatten(0, 1), two.flatten(0, 1), same)
    return product.reshape(*one.shape[:2], *two.shape[:2]).permute(1, 0, 3, 2)


def _products(one: Tensor, two: Tensor, same: bool) -> Tensor:
    return symmetric_product(one) if same else one @ two.transpose(-1, -2)


def _product(first: OuterSum, second: OuterSum, trace: bool) -> Tensor:
    """One position: (g g'^T) * (a a'^T)."""
    total: Tensor | None = None
    same = first is second
    for group in range(first.matrix_shape[0]):
        grads = [one.gradient_factors[:, :, group, 0] for one in (first, second)]
        inputs = [one.input_factors[0, :, group, 0] for one in (first, second)]
        value = _contract(grads[0], grads[0] if same else grads[1], trace)
        weights = _products(inputs[0], inputs[1], same) + first.bias
        value = value.mul_(weights if trace else weights[None, :, None, :])
        total = value if total is None else total.add_(value)
    assert total is not None
    return total


def _positions(first: OuterSum, second: OuterSum, trace: bool, workspace: Workspace) -> Tensor:
    """Example by example: A = a_j a_i^T (s, t), M = g_j A (l, o, t), <g_i, M>; for a trace sum (g_j^T g_i) * A.

    As many j at a time as keep M in the cache.
    """
    same = first is second
    sides = (first,) if same else (first, second)
    grads = [_gradient_maps(one) for one in sides]
    inputs = [one.input_factors[0].transpose(0, 1).contiguous() for one in sides]
    outputs, others = first.outputs, second.outputs
    shape = (first.examples, second.examples) if trace else (first.examples, outputs, second.examples, others)
    result = grads[0].new_zeros(shape)
    each = first.positions * (second.positions + others * grads[-1].shape[3]) * result.element_size()
    step = int(max(1, min(second.examples, min(workspace.limit, _PAIR_BYTES) // max(each, 1))))
    for i in range(first.examples):
        for start in range(i if same else 0, second.examples, step):
            chunk = slice(start, min(start + step, second.examples))
            for group in range(first.matrix_shape[0]):
                gi, ai = grads[0][group, i], inputs[0][group, i]
                value = _pairs(gi, ai, grads[-1][group, chunk], inputs[-1][group, chunk], first.bias, trace)
                result[(i, chunk) if trace else (i, slice(None), chunk)] += value
    if same:
        _mirror(result, trace)
    return result if trace else result.permute(1, 0, 3, 2)


def _pairs(gi: Tensor, ai: Tensor, gj: Tensor, aj: Tensor, bias: bool, trace: bool) -> Tensor:
    """One example, gi (K, O, T) and ai (T, I), against several, gj (M, L, O, S) and aj (M, S, I): (K, M, L), or (M)."""
    products = (aj.flatten(0, 1) @ ai.t()).unflatten(0, aj.shape[:2])
    if bias:
        products += 1
    if trace:
        return (products * (gj.flatten(1, 2).transpose(1, 2) @ gi.flatten(0, 1))).sum((1, 2))
    applied = torch.bmm(gj.flatten(1, 2), products).unflatten(1, gj.shape[1:3]).flatten(2)
    return (gi.flatten(1) @ applied.flatten(0, 1).t()).unflatten(1, applied.shape[:2])


def _gradient_maps(one: OuterSum) -> Tensor:
    """Gradient side as (groups, N, K, O, T), contiguous."""
    return one.gradient_factors.permute(2, 1, 0, 4, 3).contiguous()


def _mirror(result: Tensor, trace: bool) -> None:
    """Fill the lower half of (N, M) or (N, K, M, L) from the upper one."""
    for i in range(1, result.shape[0]):
        if trace:
            result[i, :i] = result[:i, i]
        else:
            result[i, :, :i] = result[:i, :, i].permute(2, 0, 1)
