"""Weighted Jacobian rows: F = 1/n sum over rows r of r r^T, streamed batch by batch in chunks that fit in memory.

A `Sweep` is one batch: its outputs, and for any cotangents the gradients of every group in their tightest form, by closed
forms where they are proved and by the exact fallback elsewhere. `Rows` are those of all batches for one weighting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import Batches, parts_of
from tangentlab.engine.capture import Route, capture, one_at_a_time, structured_factors
from tangentlab.engine.fallback import Verdicts, fallback_rows
from tangentlab.engine.forward_mode import Linearization
from tangentlab.engine.frozen import Keepsakes
from tangentlab.engine.graph import all_since
from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import common_dtype
from tangentlab.engine.memory import keep_freed_memory, memory_budget
from tangentlab.engine.network import Network, grad_mode
from tangentlab.engine.progress_bar import track
from tangentlab.engine.router import Router
from tangentlab.engine.snapshot import TURN, same_random_state, untouched
from tangentlab.engine.standing import ChainStanding, known_chain, standing
from tangentlab.engine.weightings import Weighting, unit_cotangents
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum


class Engine:
    """Sweeps batches of one network; keeps what it learnt about the model from batch to batch."""

    def __init__(self, network: Network) -> None:
        keep_freed_memory()
        self.network = network
        with TURN:
            known = known_chain(network.model)
            if known is not None and known.layout is network.layout:
                self.groups = known.groups
            else:
                self.groups = parameter_groups(network.model, network.layout)
        self.router = Router(network, self.groups)
        self.verdicts: Verdicts = {}

    def _standing(self, batch: Any) -> ChainStanding | None:
        """What is known of the network from earlier calls and still holds, where nothing but torch's own layers runs."""
        if self.network.forward is not None or self.network.function is not None:
            return None
        if any(isinstance(part, Tensor) and type(part) is not Tensor for part in parts_of(batch)):
            return None  # a class of the user's may compute something else
        known = standing(self.network.model)
        return known if known is not None and known.groups is self.groups else None

    def sweep(self, batch: Any) -> Sweep:
        """Forward one batch and decide the routes."""
        known = self._standing(batch)
        with TURN if known is not None else same_random_state():
            captured = capture(self.network, batch, self.groups, known is not None)
            routes = self.router.routes(captured, batch, known)
        return Sweep(self, batch, captured.outputs, routes, known is not None, captured.since)


class Sweep:
    """The linear view of a network on one batch. The graph lives as long as this object does."""

    def __init__(
        self,
        engine: Engine,
        batch: Any,
        outputs: Tensor,
        routes: list[Route],
        stands: bool = False,
        since: int = 0,
    ) -> None:
        self.engine, self.batch, self.outputs, self.routes = engine, batch, outputs, routes
        self._stands, self._since = stands, since

    @property
    def examples(self) -> int:
        """N."""
        return self.outputs.shape[0]

    @property
    def output_size(self) -> int:
        """C, the number of outputs per example."""
        return self.outputs[0].numel()

    def identity_cotangents(self, outputs: range | None = None) -> Tensor:
        """(len(outputs), N, ...): the c-th has a 1 at output c of every example."""
        chosen = range(self.output_size) if outputs is None else outputs
        return unit_cotangents(self.outputs, chosen)

    def factors(
        self, cotangents: Tensor, only: Collection[Group] | None = None, last: bool = False
    ) -> dict[Group, OuterSum]:
        """Gradients of sum(outputs[n] * cotangents[k, n]) for every k, n and group (or only some of the groups).

        cotangents: (K, N, ...). last: nothing is asked of this sweep afterwards, so that the graph may be used up: what it
        holds is freed while the gradients come.
        """
        cotangents = cotangents.reshape(cotangents.shape[0], *self.outputs.shape).to(self.outputs.dtype)
        routes = [route for route in self.routes if only is None or route.group in only]
        dtype = common_dtype(self.engine.network.parameters().values())
        with grad_mode(), self._guarded():
            found = structured_factors(self.outputs, routes, cotangents, dtype, not (last and self._may_be_used_up()))
            rows = self._fallback(cotangents, routes)
        found |= {group: OuterSum.explicit(own.to(dtype)) for group, own in rows.items()}
        return {route.group: found[route.group] for route in routes}

    def _may_be_used_up(self) -> bool:
        """Whether the graph is of this forward alone: tensors with a history that model or batch hold are in others too."""
        exact = any(not route.structured for route in self.routes)
        return not (exact or self._stands) and all_since(self.outputs, self._since)

    def _guarded(self) -> AbstractContextManager[Any]:
        """Activation checkpointing runs the forward again; torch's own layers change nothing."""
        return TURN if self._stands else untouched(self.engine.network.model)

    def _fallback(self, cotangents: Tensor, routes: list[Route]) -> dict[Group, Tensor]:
        """Rows (K, N, numel) of the groups without a structured route; zeros for parameters that are never used."""
        layout = self.engine.network.layout
        routes = [route for route in routes if not route.uses]
        exact = [route for route in routes if not route.structured]
        sizes = [sum(layout.specs[layout.names.index(n)].numel for n in route.group.names) for route in routes]
        shape = cotangents.shape[0], self.examples
        result = {r.group: cotangents.new_zeros((*shape, size)) for r, size in zip(routes, sizes, strict=True)}
        if exact:
            names = tuple(name for route in exact for name in route.group.names)
            network, verdicts = self.engine.network, self.engine.verdicts
            rows = fallback_rows(network, self.batch, self.outputs, names, cotangents, verdicts)
            widths = [result[route.group].shape[-1] for route in exact]
            result |= dict(zip([route.group for route in exact], rows.split(widths, -1), strict=True))
        return result


@dataclass
class RowChunk:
    """Gradients of some cotangents of one batch. `first` marks the first chunk of a batch."""

    factors: dict[Group, OuterSum]
    examples: int
    first: bool

    @property
    def nbytes(self) -> int:
        """Memory of inputs and output-gradients."""
        return sum(factor.nbytes() for factor in self.factors.values())


class Rows:
    """All rows of a weighted Jacobian, streamed; can be gone through several times.

    Every pass looks at the model anew. Inside `frozen()` what one pass has learnt and computed is kept for the next.
    """

    def __init__(self, network: Network, data: Any, weighting: Weighting, *, ordered: bool = False) -> None:
        self.network, self.weighting = network, weighting
        self.batches = Batches(data, ordered=ordered).replayable()
        self.rung = 0
        self.kept = Keepsakes(network.model)

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, model and data stay as they are by promise: see `engine.frozen`."""
        return self.kept.scope()

    @property
    def engine(self) -> Engine:
        """What sweeps the batches."""
        return self.kept.made("engine", lambda: Engine(self.network))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Parameter groups in flat order."""
        return self.engine.groups

    def sizes(self) -> tuple[int, int]:
        """(examples, outputs) from what the model gives, the same number of outputs on every batch. Cost: one forward."""
        examples, outputs = 0, set()
        for batch in self.batches:
            result = self.network.values(batch)
            examples += result.shape[0]
            outputs.add(result[0].numel())
        if len(outputs) > 1:
            raise InputError(f"The number of outputs changes from batch to batch: {sorted(outputs)}.")
        return examples, outputs.pop()

    def sweeps(self, what: str) -> Iterator[tuple[int, Sweep]]:
        """(number, sweep) of every batch."""
        engine = self.engine
        for number, batch in enumerate(track(self.batches, what, len(self.batches) or None, self.network.progress)):
            yield number, engine.sweep(batch)
        self.network.dependence.require()

    def require_dependence(self) -> None:
        """Refuse data on all of which the outputs depend on no selected parameter. Cost: one forward, once."""
        for batch in self.batches:
            if self.network.dependence.seen:
                return
            with grad_mode(), untouched(self.network.model):
                self.network.dependence.note(self.network(batch), self.network.parameters().values())
        self.network.dependence.require()

    def linearizations(self, what: str) -> Iterator[Linearization]:
        """f and its differential on every batch, one graph at a time; `rung` is that of the last one.

        The graphs may be kept: that of a single batch, and those of several where they fit in memory.
        """
        trusted: set[int] = self.kept.made("trusted", set)
        for number, batch in enumerate(track(self.batches, what, len(self.batches) or None, self.network.progress)):
            make = partial(Linearization, self.network, batch, self.rung, trusted)
            linear = self.kept.made_with_graph(f"linearization {number}", make, alone=len(self.batches) == 1)
            yield linear
            self.rung = linear.rung

    def __iter__(self) -> Iterator[RowChunk]:
        """Chunks of rows. They are kept if all of them fit in half of the memory budget."""
        if not self.kept.open:
            return self._chunks(chunk_size)
        chunks = self.kept.get("chunks")
        return self._keeping(self._chunks(chunk_size)) if chunks is None else iter(chunks)

    def _keeping(self, chunks: Iterable[RowChunk]) -> Iterator[RowChunk]:
        held: list[RowChunk] = []
        room, batches = memory_budget() // 2, 0
        for chunk in chunks:
            batches += chunk.first
            if room:
                held.append(chunk)
                to_come = chunk.nbytes * (len(self.batches) - batches)
                if sum(one.nbytes for one in held) + to_come > room:
                    room, held = 0, []
            yield chunk
        if room:
            self.kept.put("chunks", held)

    def apart(self) -> Iterator[RowChunk]:
        """The same in chunks as small as they are computed: where cotangents are backpropagated one after the other, each
        is a chunk and none is held longer. For sums over cotangents that have nothing to share between them."""

        def size(sweep: Sweep, count: int) -> int:
            calls = [use.call for route in sweep.routes for use in route.uses]
            return 1 if one_at_a_time(calls) else chunk_size(sweep, count)

        return self._chunks(size)

    def _chunks(self, size: Callable[[Sweep, int], int]) -> Iterator[RowChunk]:
        for number, sweep in self.sweeps("gradients"):
            count = self.weighting.count(sweep.outputs)
            step = size(sweep, count)
            for start in range(0, count, step):
                index = range(start, min(start + step, count))
                cotangents = self.weighting.cotangents(sweep.outputs, sweep.batch, number, index)
                yield RowChunk(sweep.factors(cotangents, last=index.stop == count), sweep.examples, first=start == 0)


def chunk_size(sweep: Sweep, count: int) -> int:
    """How many cotangents fit in half of the memory budget at once: output-gradients of all calls, and fallback rows."""
    itemsize = sweep.outputs.element_size()
    layout = sweep.engine.network.layout
    cells = sum(torch.Size(use.call.output_shape).numel() for route in sweep.routes for use in route.uses)
    sizes = layout.shapes
    loose = sum(torch.Size(sizes[n]).numel() for route in sweep.routes if not route.uses for n in route.group.names)
    per_cotangent = itemsize * (3 * cells + 2 * loose * sweep.examples)
    return max(1, min(count, int(memory_budget() // (2 * max(per_cotangent, 1)))))
