"""Weighted Jacobian rows: F = 1/n sum over rows r of r r^T, streamed batch by batch in chunks that fit in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import Batches, targets_of
from tangentlab.engine.capture import one_at_a_time
from tangentlab.engine.forward_mode import Linearization
from tangentlab.engine.frozen import Keepsakes
from tangentlab.engine.groups import Group
from tangentlab.engine.likelihood import Likelihood
from tangentlab.engine.losses import LossFunction, output_gradient
from tangentlab.engine.memory import memory_budget
from tangentlab.engine.network import Network, grad_mode
from tangentlab.engine.progress import track
from tangentlab.engine.snapshot import untouched
from tangentlab.engine.sweep import Engine, Sweep, unit_cotangents
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum


class Weighting(ABC):
    """Which cotangents u_kn make the rows r_kn = J_n^T u_kn of a batch, given its outputs and number."""

    name: str

    @abstractmethod
    def count(self, outputs: Tensor) -> int:
        """K, the number of rows per example."""

    @abstractmethod
    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """u for k in index, (len(index), N, ...); `number` is the batch's place in the loader."""

    def prepare(self, outputs: Tensor, number: int) -> None:
        """Draw what is random about a batch now, so that later passes agree; nothing is by default."""
        return None

    def fresh(self) -> Weighting:
        """The same for other data: without label draws that belong to the old one."""
        return self

    def weigh(self, outputs: Tensor, batch: Any, number: int, tangents: Tensor) -> Tensor:
        """sum_k u_k <u_k, t> per example, for tangents (N, ...)."""
        u = self.cotangents(outputs, batch, number, range(self.count(outputs))).flatten(2)
        return torch.einsum("knc,knb,nb->nc", u, u, tangents.flatten(1)).reshape(outputs.shape)


class Exact(Weighting):
    """The expectation over labels, in closed form."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood, self.name = likelihood, f"{likelihood.name}, exact"

    def count(self, outputs: Tensor) -> int:
        """Rank of the output Fisher's factorization."""
        return self.likelihood.factor_count(outputs)

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """The likelihood's factors."""
        return self.likelihood.factor(outputs, index)

    def weigh(self, outputs: Tensor, batch: Any, number: int, tangents: Tensor) -> Tensor:
        """The likelihood's closed form."""
        return self.likelihood.weigh(outputs, tangents)


class MonteCarlo(Weighting):
    """Labels drawn from the model, the same for every pass over the data: one row per sample and example.

    labels: draws to share with another matrix, one tensor (samples, N, ...) per batch in order, or one for all examples.
    """

    def __init__(
        self, likelihood: Likelihood, samples: int, generator: torch.Generator | None, labels: Any = None
    ) -> None:
        if samples < 1:
            raise InputError(f"samples must be at least 1, not {samples}.")
        self.likelihood, self.samples = likelihood, samples
        self._joint = labels if isinstance(labels, Tensor) else None
        self.labels: list[Tensor] = [] if labels is None or self._joint is not None else list(labels)
        self._given = labels is not None
        if self._given:
            self.samples = samples = (self._joint if self._joint is not None else self.labels[0]).shape[0]
        self.name = f"{likelihood.name}, {samples} label sample{'s' * (samples > 1)}"
        self._seed = 0 if self._given else int(torch.randint(2**62, (), generator=generator))

    def fresh(self) -> MonteCarlo:
        """New draws of the same number."""
        return MonteCarlo(self.likelihood, self.samples, None)

    def count(self, outputs: Tensor) -> int:
        """One row per sample."""
        return self.samples

    def prepare(self, outputs: Tensor, number: int) -> None:
        """Draw the labels of this batch."""
        self._labels_of(outputs, number)

    def _labels_of(self, outputs: Tensor, number: int) -> Tensor:
        if number >= len(self.labels):
            if self._joint is not None:
                start = sum(drawn.shape[1] for drawn in self.labels)
                self.labels.append(self._joint[:, start : start + outputs.shape[0]])
            elif self._given:
                raise InputError(f"labels= holds draws for {len(self.labels)} batches and the loader has more.")
            else:
                generator = torch.Generator(outputs.device).manual_seed(self._seed + number)
                self.labels.append(self.likelihood.sample(outputs, self.samples, generator))
        labels = self.labels[number]
        if labels.shape[1] != outputs.shape[0]:
            raise InputError(
                f"labels= holds {labels.shape[1]} examples for batch {number}, which has {outputs.shape[0]}."
            )
        return labels

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Scores of the drawn labels over sqrt(samples)."""
        labels = self._labels_of(outputs, number)[index.start : index.stop]
        return self.likelihood.score(outputs, labels) / self.samples**0.5


class Empirical(Weighting):
    """Gradients of the per-example loss at the observed targets: the second moment often called empirical Fisher."""

    name = "empirical second moment"

    def __init__(self, loss: Likelihood | LossFunction) -> None:
        self.loss = loss

    def count(self, outputs: Tensor) -> int:
        """One row per example."""
        return 1

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """d loss_n / d outputs_n."""
        if isinstance(self.loss, Likelihood):
            return -self.loss.score(outputs, targets_of(batch)[None])
        return output_gradient(self.loss, outputs, batch)[1].detach()[None]


class Unweighted(Weighting):
    """The Jacobian itself: one row per output, or only some outputs."""

    name = "Jacobian"

    def __init__(self, outputs: Sequence[int] | None = None) -> None:
        self.chosen = None if outputs is None else list(outputs)

    def count(self, outputs: Tensor) -> int:
        """All outputs, or the chosen ones."""
        size = outputs[0].numel()
        if self.chosen is not None and not all(-size <= index < size for index in self.chosen):
            raise InputError(f"The outputs {self.chosen} were asked for and the model has {size} per example.")
        return size if self.chosen is None else len(self.chosen)

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Unit vectors."""
        return unit_cotangents(outputs, list(index) if self.chosen is None else [self.chosen[k] for k in index])


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

    def __init__(
        self, network: Network, data: Any, weighting: Weighting, *, ordered: bool = False, progress: bool | None = None
    ) -> None:
        self.network, self.weighting, self.progress = network, weighting, progress
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

    def sweeps(self, what: str) -> Iterator[tuple[int, Sweep]]:
        """(number, sweep) of every batch."""
        engine = self.engine
        for number, batch in enumerate(track(self.batches, what, len(self.batches) or None, self.progress)):
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

        The graph of a single batch may be kept.
        """
        trusted: set[int] = self.kept.made("trusted", set)
        for batch in track(self.batches, what, len(self.batches) or None, self.progress):
            make = partial(Linearization, self.network, batch, self.rung, trusted)
            linear = self.kept.made("linearization", make) if len(self.batches) == 1 else make()
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
                yield RowChunk(sweep.factors(cotangents), sweep.examples, first=start == 0)


def chunk_size(sweep: Sweep, count: int) -> int:
    """How many cotangents fit in half of the memory budget at once: output-gradients of all calls, and fallback rows."""
    itemsize = sweep.outputs.element_size()
    layout = sweep.engine.network.layout
    cells = sum(torch.Size(use.call.output_shape).numel() for route in sweep.routes for use in route.uses)
    sizes = layout.shapes
    loose = sum(torch.Size(sizes[n]).numel() for route in sweep.routes if not route.uses for n in route.group.names)
    per_cotangent = itemsize * (3 * cells + 2 * loose * sweep.examples)
    return max(1, min(count, int(memory_budget() // (2 * max(per_cotangent, 1)))))
