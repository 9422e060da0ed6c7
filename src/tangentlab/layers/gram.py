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
from math import ceil

from torch import Tensor

from tangentlab.layers.contractions import Workspace
from tangentlab.layers.gram_positions import CACHE_BYTES, TILE_BYTES, positions_gram
from tangentlab.layers.outer import OuterSum
from tangentlab.linalg.symmetric import symmetric_product

ROWS_BYTES = 16 << 20
"""Written-out gradients that stay in the cache."""


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
        return cls(*sizes, rows, columns, first.bias, first.itemsize)

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
    """Costs of the routes that apply. Explicit rows, factors with outputs on both sides, or no positions leave only "rows"."""
    s, groups, outputs = sizes, sizes.groups, sizes.outputs
    square = outputs if trace else outputs**2
    each = s.examples + (0 if s.symmetric else s.others)
    make_rows = 0 if explicit else 2 * outputs * s.positions * s.rows * s.columns * groups * each
    contract = 2 * square * s.rows * s.columns * groups * s.pairs
    row_bytes = outputs * each * groups * s.rows * s.columns * s.itemsize
    kernel_bytes = (1 if trace else square) * s.examples * s.others * s.itemsize
    costs = [GramCost("rows", make_rows + contract, min(row_bytes, _block_bytes(kernel_bytes)))]
    if explicit or not kronecker or not s.positions:
        return costs
    if s.positions == 1:
        operations = groups * s.pairs * (2 * s.columns + 2 * square * s.rows)
        costs.append(GramCost("product", operations, 2 * groups * square * s.examples * s.others * s.itemsize))
    inputs, applied = 2 * s.positions**2 * s.columns, 2 * s.positions**2 * outputs * s.rows
    contracted = 2 * s.positions**2 if trace or outputs == 1 else 2 * square * s.positions * s.rows
    patches = (s.examples + (0 if s.symmetric else s.others)) * s.positions * s.columns * s.itemsize
    tiles = 2 * min(TILE_BYTES, s.examples * s.others * s.positions**2 * s.itemsize)
    memory = patches + tiles + CACHE_BYTES
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
    return _product(first, second, trace) if chosen == "product" else positions_gram(first, second, trace, workspace)


def _rows(first: OuterSum, second: OuterSum, trace: bool, workspace: Workspace) -> Tensor:
    """Per-example gradients of this layer only, a block of them at a time, contracted before it leaves the cache."""
    sides = (first,) if second is first else (first, second)
    groups, rows, columns = first.matrix_shape
    counts = [one.outputs * one.examples for one in sides]
    itemsize = first.itemsize
    kernel_bytes = (1 if trace else first.outputs * second.outputs) * first.examples * second.examples * itemsize
    block_bytes = min(workspace.limit, _block_bytes(kernel_bytes))
    blocks = max(1, ceil(sum(counts) * groups * rows * columns * itemsize / block_bytes))
    cut = type(first).weight_row_blocks if type(first) is type(second) else OuterSum.weight_row_blocks  # along one axis
    names = ("rows", "other rows")[: len(sides)]
    total: Tensor | None = None
    for written in zip(
        *(cut(one, blocks, workspace, name) for one, name in zip(sides, names, strict=True)), strict=True
    ):
        flat = [part.flatten(2).expand(one.outputs, -1, -1) for one, part in zip(sides, written, strict=True)]
        value = _contract(flat[0], flat[-1], trace)
        total = value if total is None else total.add_(value)
    assert total is not None
    if first.bias:
        one = first.left.sum(3).flatten(2)
        total = total.add_(_contract(one, one if second is first else second.left.sum(3).flatten(2), trace))
    return total


def _block_bytes(kernel_bytes: float) -> float:
    """Written-out gradients at a time; every block costs a pass over the kernel too, so a large kernel has larger ones."""
    return max(ROWS_BYTES, 4 * kernel_bytes)


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
        inputs = [one.input_codes(group) for one in ((first,) if same else (first, second))]
        value = _contract(grads[0], grads[0] if same else grads[1], trace)
        weights = value.new_empty((first.examples, 1, second.examples, 1))
        first.write_input_products(inputs[0], inputs[-1], weights)
        weights = weights[:, 0, :, 0] + first.bias
        value = value.mul_(weights if trace else weights[None, :, None, :])
        total = value if total is None else total.add_(value)
    assert total is not None
    return total
