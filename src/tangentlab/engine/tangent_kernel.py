"""Tangent kernels of any number of examples, layer by layer, from captured factors.

The factors of all examples are kept for as many layers at a time as memory allows; then every layer's kernel is one
contraction, and no forward or backward runs per pair of batches. When not all layers fit, the data are swept once per
set of layers; when not even one layer fits, once per pair of blocks of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import common_length
from tangentlab.engine.groups import Group
from tangentlab.engine.memory import memory_budget, require_memory
from tangentlab.engine.network import Network, require_finite
from tangentlab.engine.progress_bar import track
from tangentlab.engine.rows import Rows
from tangentlab.engine.weightings import Unweighted, Weighting
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.layers.contractions import Workspace
from tangentlab.layers.gram import cheapest, gram, gram_options
from tangentlab.parallel.threads import in_lanes

Factors = dict[Group, OuterSum]
Pieces = dict[Group, list[OuterSum]]
Kernels = dict[str, Tensor]


class TangentFeatures:
    """Factors of the Jacobian on some data, swept on demand for a set of groups and a range of batches."""

    def __init__(self, network: Network, data: Any, weighting: Weighting) -> None:
        ordered = isinstance(weighting, Unweighted)
        self.rows = Rows(network, data, weighting, ordered=ordered)
        self.engine, self.batches = self.rows.engine, list(self.rows.batches)
        self._first: dict[Group, OuterSum] | None = None
        self.sizes: dict[Group, float] = {}
        self.outputs = self.examples = 0

    def sweep(self, groups: Sequence[Group], batches: range) -> Pieces:
        """Factors of the groups on the batches, joined over batches where their shapes allow it."""
        found: dict[Group, list[OuterSum]] = {group: [] for group in groups}
        for number in track(batches, "tangent features", len(batches), self.rows.network.progress):
            factors = self._factors(number, groups)
            for group in groups:
                found[group].append(factors[group])
        return {group: _joined(pieces) for group, pieces in found.items()}

    def _factors(self, number: int, groups: Sequence[Group]) -> Factors:
        if number == 0 and self._first is not None:
            first, self._first = self._first, None
            if set(groups) <= set(first):
                return first
        sweep = self.engine.sweep(self.batches[number])
        count = self.rows.weighting.count(sweep.outputs)
        if self.outputs and count != self.outputs:
            raise InputError(f"The number of outputs changes from batch to batch: {self.outputs}, then {count}.")
        self.outputs = count
        cotangents = self.rows.weighting.cotangents(sweep.outputs, sweep.batch, number, range(count))
        return sweep.factors(cotangents, only=groups, last=True)

    def measure(self) -> None:
        """Sweep the first batch, and from it the bytes that each group needs for all batches, and how many examples.

        `examples` counts the batches by their first axis where the first batch has its examples there, else only that one.
        """
        self._first = self._factors(0, self.engine.groups)
        self.sizes = {group: factor.nbytes() * len(self.batches) for group, factor in self._first.items()}
        lengths = [common_length(batch) or 0 for batch in self.batches]
        swept = next(iter(self._first.values())).examples
        self.examples = sum(lengths) if lengths[0] == swept else swept


def tangent_kernel(
    network: Network,
    data: Any,
    data2: Any,
    weighting: Weighting,
    trace: bool,
    name_of: Callable[[Group], str],
) -> dict[str, Tensor]:
    """Kernels (K, N, K, M), or (N, M) summed over outputs, added up over the groups that have one name.

    weighting: `Unweighted()` for the kernel of the outputs; another one for the Gram matrix of its rows.
    """
    first = TangentFeatures(network, data, weighting)
    first.measure()
    second = None if data2 is None else TangentFeatures(network, data2, weighting)
    if second is not None:
        second.measure()
    count = 1 if trace else first.outputs**2
    example = next(iter(network.parameters().values()))
    _require_kernel_memory(count * first.examples * (second or first).examples * example.element_size())
    result: dict[str, Tensor] = {}
    for groups, blocks in _passes(first, second):
        for part in _kernels(first, second, groups, blocks, trace, name_of):
            _add(result, part)
    network.dependence.require()
    return result


def _add(total: Kernels, part: Kernels) -> None:
    """total += part, name by name; takes over the tensors of new names."""
    for name, kernel in part.items():
        total[name] = total[name].add_(kernel) if name in total else kernel


def _passes(first: TangentFeatures, second: TangentFeatures | None) -> list[tuple[list[Group], int]]:
    """(groups, number of blocks of batches): sets of groups whose factors fit together."""
    budget = memory_budget() / 2
    sizes = {g: size + (second.sizes[g] if second is not None else 0) for g, size in first.sizes.items()}
    passes: list[tuple[list[Group], int]] = []
    total = float("inf")
    for group, size in sizes.items():
        if size > budget:
            passes.append(([group], ceil(2 * size / budget)))
            total = float("inf")
        elif total + size > budget:
            passes.append(([group], 1))
            total = size
        else:
            passes[-1][0].append(group)
            total += size
    return passes


def _kernels(
    first: TangentFeatures,
    second: TangentFeatures | None,
    groups: list[Group],
    blocks: int,
    trace: bool,
    name_of: Callable[[Group], str],
) -> Iterator[Kernels]:
    """Kernels of one pass, in parts that add up; of a group that does not fit, from blocks of batches."""
    rows, columns = _ranges(len(first.batches), blocks), _ranges(len((second or first).batches), blocks)
    if len(rows) == len(columns) == 1:
        left = first.sweep(groups, rows[0])
        right = left if second is None else second.sweep(groups, columns[0])
        _require_kernel_memory(_kernel_bytes(left[groups[0]], right[groups[0]], trace))
        yield from _side_by_side(left, right, trace, name_of)
        return
    workspace = Workspace(memory_budget() / 4)
    for group in groups:
        lines: list[list[Tensor]] = []
        for i, row in enumerate(rows):
            one, line = first.sweep([group], row)[group], []
            for j, column in enumerate(columns):
                if second is None and j < i:
                    line.append(_transposed(lines[j][i], trace))
                    continue
                two = one if second is None and j == i else (second or first).sweep([group], column)[group]
                _require_kernel_memory(_kernel_bytes(one, two, trace))
                line.append(_block(one, two, trace, workspace))
            lines.append(line)
        yield {name_of(group): _checked(_assembled(lines, trace), group)}


def _side_by_side(left: Pieces, right: Pieces, trace: bool, name_of: Callable[[Group], str]) -> list[Kernels]:
    """Kernels of all groups, summed by name, the groups shared out over the cores where memory and sizes allow it."""
    groups = list(left)
    budget, example = memory_budget(), left[groups[0]]
    lanes = torch.get_num_threads()
    fits = 2 * lanes * _kernel_bytes(example, right[groups[0]], trace) < budget

    def summed(lane: Sequence[Group]) -> Kernels:
        total: Kernels = {}
        workspace = Workspace(budget / (4 * lanes))
        for group in lane:
            _add(total, {name_of(group): _checked(_block(left[group], right[group], trace, workspace), group)})
        return total

    if not fits or example[0].gradient_factors.device.type != "cpu":
        return [summed(groups)]
    return in_lanes(summed, groups, [_operations(left[group], right[group], trace) for group in groups])


def _operations(left: list[OuterSum], right: list[OuterSum], trace: bool) -> float:
    return sum(cheapest(gram_options(one, two, trace)).operations for one in left for two in right)


def _checked(kernel: Tensor, group: Group) -> Tensor:
    require_finite(kernel, f"The tangent features of {', '.join(group.names)}")
    return kernel


def _kernel_bytes(left: list[OuterSum], right: list[OuterSum], trace: bool) -> int:
    return _cells(left, right, trace) * left[0].itemsize


def _require_kernel_memory(nbytes: int) -> None:
    require_memory(
        nbytes,
        "This kernel",
        "outputs='trace' or one output, fewer examples, or representation=FMatImplicit need less.",
    )


def _block(left: list[OuterSum], right: list[OuterSum], trace: bool, workspace: Workspace) -> Tensor:
    """Kernel between two lists of pieces; the symmetric half is computed once when they are the same list."""
    lines: list[list[Tensor]] = []
    for i, one in enumerate(left):
        line = []
        for j, two in enumerate(right):
            if left is right and j < i:
                line.append(_transposed(lines[j][i], trace))
            else:
                line.append(gram(one, two, trace, workspace=workspace))
        lines.append(line)
    return _assembled(lines, trace)


def _cells(left: list[OuterSum], right: list[OuterSum], trace: bool) -> int:
    outputs = 1 if trace else left[0].outputs * right[0].outputs
    return outputs * sum(one.examples for one in left) * sum(two.examples for two in right)


def _transposed(block: Tensor, trace: bool) -> Tensor:
    return block.t() if trace else block.permute(2, 3, 0, 1)


def _assembled(lines: list[list[Tensor]], trace: bool) -> Tensor:
    if len(lines) == 1 and len(lines[0]) == 1:
        return lines[0][0]
    rows_axis, columns_axis = (0, 1) if trace else (1, 3)
    return torch.cat([torch.cat(line, columns_axis) for line in lines], rows_axis)


def _ranges(count: int, blocks: int) -> list[range]:
    blocks = min(blocks, count)
    return [range(count * i // blocks, count * (i + 1) // blocks) for i in range(blocks)]


def _joined(pieces: list[OuterSum]) -> list[OuterSum]:
    if len(pieces) == 1:
        return pieces
    joined = pieces[0].join_examples(pieces[1:])
    return pieces if joined is None else [joined]
