"""What a computation will cost before it runs: operations, memory and predicted time per layer and route.

The same operation counts choose the routes of tangent kernels; two short measurements on this machine (a matrix product and
a copy) turn them into seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Unpack

import torch
from torch import nn

from tangentlab.engine.memory import human_bytes, memory_budget
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.rows import Engine
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.layers.conv import ConvSum
from tangentlab.layers.covariance import lagged_operations, lags_apply
from tangentlab.layers.gram import GramSizes, cheapest, gram_costs
from tangentlab.layers.lookup import LookupSum

WHAT = ("ntk", "ntk_trace", "jacobian", "diag", "kfac", "ekfac")
_SMALLER_KERNEL = "FMatImplicit stores nothing; fewer examples or one output need less."
_INSTEAD = {
    "ntk": f'outputs="trace" needs less by the outputs squared; {_SMALLER_KERNEL}',
    "ntk_trace": _SMALLER_KERNEL,
    "jacobian": "PushForwardImplicit and PullBackImplicit store nothing.",
    "diag": "Give smaller batches, or layers= a part of the parameters.",
    "kfac": "PMatDiag needs less, PMatImplicit nothing.",
    "ekfac": "PMatDiag needs less, PMatImplicit nothing.",
}


@dataclass(frozen=True)
class Calibration:
    """Rates of this machine: operations per second of a matrix product, bytes per second of a copy."""

    operations: float
    bytes: float

    def seconds(self, operations: float, nbytes: float) -> float:
        """Predicted time of work that computes and moves data."""
        return operations / self.operations + 2 * nbytes / self.bytes


@lru_cache(maxsize=8)
def calibrate(dtype: torch.dtype = torch.float32, threads: int = 0) -> Calibration:
    """Measure once per process, dtype and number of threads: about 50 ms, also for types that the machine is slow with."""
    own = torch.Generator().manual_seed(0)  # the caller's random stream stays where it is
    buffer = torch.randn(4 << 20, dtype=dtype, generator=own)
    copy = _best(buffer.clone)
    for size in (128, 256, 512, 1024):
        product = _best(partial(torch.mm, *2 * [buffer[: size**2].reshape(size, size)]))
        if product > _LONG:
            break
    return Calibration(2 * size**3 / product, buffer.numel() * buffer.element_size() / copy)


_LONG = 5e-3
"""Seconds of a product that is long enough to be measured."""


def _best(work: Callable[[], Any], repetitions: int = 5) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


@dataclass(frozen=True)
class PlanRow:
    """One parameter group: route, operations, extra memory in bytes and predicted seconds."""

    name: str
    route: str
    operations: float
    memory: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The table of `plan(...)`: a line for the passes through the network, then one per layer."""

    what: str
    examples: int
    outputs: int
    rows: tuple[PlanRow, ...]
    result_bytes: float
    budget: float

    @property
    def operations(self) -> float:
        """Total operations."""
        return sum(row.operations for row in self.rows)

    @property
    def seconds(self) -> float:
        """Predicted time."""
        return sum(row.seconds for row in self.rows)

    @property
    def memory(self) -> float:
        """Result plus the largest extra memory of a layer, in bytes."""
        return self.result_bytes + max(row.memory for row in self.rows)

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory budget."""
        return self.memory <= self.budget

    def __str__(self) -> str:
        head = ("layer", "route", "operations", "memory", "seconds")
        lines = [
            (r.name or "(the model)", r.route, f"{r.operations:.3g}", human_bytes(r.memory), f"{r.seconds:.3g}")
            for r in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *lines)) for i in range(5)]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in (head, *lines)
        ]
        verdict = "fits" if self.fits else "does NOT fit"
        time = f"{self.seconds:.3g} s" if self.seconds < 1e4 else f"{self.seconds / 3600:,.0f} h"
        total = (
            f"{self.what} of {self.examples} examples, {self.outputs} outputs{_SAMPLED * (self.outputs > 1)}: "
            f"{self.operations:.3g} operations, about "
            f"{time}, {human_bytes(self.memory)} of {human_bytes(self.budget)}: {verdict}."
        )
        if not self.fits:
            total += f" {_INSTEAD[self.what]}"
        return "\n".join([*table, total])


_SAMPLED = " (one of them swept)"


@spelled_out
def plan(
    model: nn.Module,
    x: Any,
    n: int | None = None,
    what: str = "ntk",
    *,
    outputs: int | None = None,
    memory: float | None = None,
    **options: Unpack[Options],
) -> Plan:
    """What `what` ("ntk", "ntk_trace", "jacobian", "diag", "kfac" or "ekfac") of n examples like those in x would cost.

    x is swept once to learn the shapes; nothing else is computed. outputs: how many of them, by default all.
    memory: the budget in bytes, by default `tangentlab.memory_budget()`.
    """
    if what not in WHAT:
        raise InputError(f"The argument what must be one of {', '.join(WHAT)}, not {what!r}.")
    network = Network.of(model, **options)
    sweep = Engine(network).sweep(x)
    factors = sweep.factors(sweep.identity_cotangents(range(1)))
    examples, outputs = n or sweep.examples, min(outputs or sweep.output_size, sweep.output_size)
    itemsize = sweep.outputs.element_size()
    rates = calibrate(sweep.outputs.dtype, torch.get_num_threads())
    budget = memory if memory is not None else memory_budget()
    passes = sum(_forward_operations(factor) for factor in factors.values()) * examples * (1 + outputs)
    held = sum(factor.nbytes() for factor in factors.values()) / sweep.examples * examples * outputs
    rows = [PlanRow("(forward and backward)", f"{outputs} outputs", passes, held, rates.seconds(passes, held))]
    for group, factor in factors.items():
        route, operations, extra = _cost(what, factor, examples, outputs)
        rows.append(PlanRow(group.name, route, operations, extra, rates.seconds(operations, extra)))
    parameters = network.layout.numel
    result = {
        "ntk": (outputs * examples) ** 2,
        "ntk_trace": examples**2,
        "jacobian": outputs * examples * parameters,
        "diag": parameters,
    }.get(what, sum(factor_cells(factor) for factor in factors.values()))
    return Plan(what, examples, outputs, tuple(rows), result * itemsize, budget)


def _forward_operations(factor: OuterSum) -> float:
    """Operations of the layer's forward for one example."""
    groups, rows, columns = factor.matrix_shape
    return 2 * groups * factor.positions * rows * columns


def _cost(what: str, factor: OuterSum, examples: int, outputs: int) -> tuple[str, float, float]:
    """(route, operations, extra bytes) of one layer."""
    groups, rows, columns = factor.matrix_shape
    itemsize = factor.itemsize
    if what in ("ntk", "ntk_trace"):
        sizes = replace(GramSizes.of(factor, factor), examples=examples, others=examples, outputs=outputs)
        best = cheapest(gram_costs(sizes, what == "ntk_trace", factor.is_explicit, factor.gradients != "both"))
        return best.route, best.operations, best.memory
    explicit = 2 * outputs * examples * groups * factor.positions * rows * columns
    if what == "jacobian" or (what == "diag" and factor.positions > 1) or not factor.kronecker:
        return "rows", explicit, outputs * examples * groups * rows * columns * itemsize
    if what == "diag":
        return "squares", 2 * examples * groups * rows * (columns + outputs), groups * rows * columns * itemsize
    counted = examples * factor.positions
    thin = 2 * counted <= columns + factor.bias and groups == 1
    route, right = ("thin", 0.0) if thin else ("direct", float(groups * counted * columns**2))
    if isinstance(factor, ConvSum) and lags_apply(factor.module) and not thin:
        lagged = lagged_operations(factor.module, examples, factor.size)
        route, right = ("lags", lagged) if 1.5 * lagged < right else (route, right)
    operations = right + groups * counted * outputs * rows**2
    if what == "ekfac":
        kept = counted if thin else columns
        operations += 9 * groups * (rows**3 + kept**3)
        if factor.positions == 1:
            operations += 2 * groups * counted * (columns * kept + outputs * rows**2 + rows * kept)
        else:
            first = factor.positions * (columns * kept + outputs * rows * (rows + kept))
            last = outputs * rows * (factor.positions * columns + columns * kept + rows * kept)
            operations += 2 * groups * examples * min(first, last)
    return route, operations, factor_cells(factor) * itemsize


def factor_cells(factor: OuterSum) -> int:
    """Numbers in the two Kronecker factors of a layer."""
    groups, rows, columns = factor.matrix_shape
    left = rows if isinstance(factor, LookupSum) else rows**2
    return groups * (left + (columns + factor.bias) ** 2)
