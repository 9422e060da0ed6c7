"""Tangent kernels from captured factors, batch pair by batch pair, layer by layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Rows, Unweighted
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.layers.gram import gram

Factors = dict[Group, OuterSum]


def batch_factors(network: Network, data: Any, outputs: list[int] | None, progress: bool | None) -> list[Factors]:
    """Factors of every batch, all outputs at once, in the order of the data."""
    rows = Rows(network, data, Unweighted(outputs), ordered=True, progress=progress)
    found = []
    for number, sweep in rows.sweeps("tangent features"):
        count = rows.weighting.count(sweep.outputs)
        cotangents = rows.weighting.cotangents(sweep.outputs, sweep.batch, number, range(count))
        found.append(sweep.factors(cotangents))
    counts = {next(iter(factors.values())).outputs for factors in found}
    if len(counts) > 1:
        raise InputError(f"The number of outputs changes from batch to batch: {sorted(counts)}.")
    return found


def kernels_by_group(first: list[Factors], second: list[Factors] | None, trace: bool) -> dict[Group, Tensor]:
    """Kernel of every group: (K, N, K, M), or (N, M) summed over outputs; the symmetric half is computed once."""
    symmetric = second is None
    other = first if second is None else second
    result = {}
    for group in first[0]:
        blocks: list[list[Tensor]] = []
        for i, one in enumerate(first):
            line = []
            for j, two in enumerate(other):
                if symmetric and j < i:
                    line.append(blocks[j][i].permute(2, 3, 0, 1) if not trace else blocks[j][i].t())
                elif trace:
                    line.append(gram(one[group], two[group], trace=True))
                else:
                    line.append(gram(one[group], two[group]))
            blocks.append(line)
        rows_axis, columns_axis = (0, 1) if trace else (1, 3)
        result[group] = torch.cat([torch.cat(line, columns_axis) for line in blocks], rows_axis)
    return result
