"""One snapshot: all measures on all probes, at a size that may be smaller than the largest."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tangentlab.alignment.complexity import kernel_trace
from tangentlab.engine.likelihood import Likelihood
from tangentlab.engine.network import Network, Options, require_module
from tangentlab.engine.planner import plan
from tangentlab.errors import InputError, TangentlabError
from tangentlab.recorder.budget import Size, SnapshotCost
from tangentlab.recorder.clock import Clock
from tangentlab.recorder.isolation import undisturbed
from tangentlab.recorder.likelihoods import guessed, loss_for
from tangentlab.recorder.measures import FIRST_PROBE_ONLY, NEED_A_LOSS, Measure
from tangentlab.recorder.probes import Probe, View, choose_outputs

TRACE_DRAWS = 1
"""Random signs per snapshot for the trace of the kernel, where not all outputs are looked at."""


@dataclass
class Sight:
    """What a snapshot found: numbers by name, what went wrong by measure, and seconds by what they were spent on."""

    size: Size
    values: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    feature_norm: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> SnapshotCost:
        """The seconds as the budget needs them."""
        kernels = self.seconds.get("kernels", 0.0)
        return SnapshotCost(self.size, kernels, sum(self.seconds.values()) - kernels)


class TrainingObserver:
    """Looks at a model through probes without leaving a trace.

    Args:
        model: the network.
        options: how to call it and which parameters to look at, as in `tangentlab.NTK`.
        probes: by name; the first one is the one for costly measures and for C(f).
        measures: by name.
        size: the largest size; cut to what the probes and the model have.
        seed: of everything random.
        likelihood: of the labels, with classes on the last axis of the outputs; None: guessed from all labels.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        probes: dict[str, Probe],
        measures: Mapping[str, Measure],
        size: Size,
        seed: int,
        likelihood: Likelihood | None = None,
    ) -> None:
        self.model, self.options, self.probes, self.measures, self.seed = model, options, probes, measures, seed
        self.memory: dict[str, dict[str, Any]] = {name: {} for name in probes}
        self._planned: dict[Size, float] = {}
        first = next(iter(probes.values()))
        with self._looking():
            shape = Network.of(model, **options).values(first.part(2, self.device)).shape[1:]
        generator = torch.Generator().manual_seed(seed)
        labels = [probe.labels for probe in probes.values() if probe.labels is not None]
        self.likelihood = likelihood if likelihood is not None else guessed(labels, shape)
        self.outputs = choose_outputs(shape, first.labels, size.outputs, generator, self.likelihood)
        self.all_outputs = len(self.outputs) == shape.numel()
        self.largest = Size(min(size.examples, *(probe.examples for probe in probes.values())), len(self.outputs))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @contextmanager
    def _looking(self) -> Iterator[None]:
        with undisturbed(self.model):
            yield

    def forget(self) -> None:
        """Start anew: nothing is remembered of an earlier first snapshot."""
        for kept in self.memory.values():
            kept.clear()

    def about(self) -> dict[str, Any]:
        """What is looked at, for the first row of a recording."""
        return {
            "model": type(self.model).__name__,
            "parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            "probes": {name: probe.examples for name, probe in self.probes.items()},
            "examples": self.largest.examples,
            "outputs": self.outputs,
        }

    @property
    def left_out(self) -> list[str]:
        """Numbers of the chosen measures that need a loss, where the likelihood has none."""
        if self.likelihood is None or loss_for(self.likelihood) is not None:
            return []
        return [name for measure, name in NEED_A_LOSS.items() if measure in self.measures]

    def planned_seconds(self, size: Size) -> float:
        """What the kernels of all probes would take at this size, by the engine's plan.

        A network that has diverged cannot be swept: then sizes count by their rows, from the largest that was planned.
        """
        if size not in self._planned:
            try:
                self._planned[size] = self._plan(size)
            except TangentlabError:
                known = next(iter(self._planned), None)
                if known is None:
                    raise
                rows = size.examples * size.outputs / (known.examples * known.outputs)
                return self._planned[known] * rows
        return self._planned[size]

    def _plan(self, size: Size) -> float:
        with self._looking():
            plans = [
                plan(
                    self.model,
                    probe.part(2, self.device),
                    min(size.examples, probe.examples),
                    outputs=size.outputs,
                    **self.options,
                )
                for probe in self.probes.values()
            ]
        return sum(one.seconds for one in plans)

    def look(self, step: int, size: Size, *, trace: bool, strict: bool) -> Sight:
        """Take all measures after `step` updates.

        trace: whether `sqrt(tr K)` of the first probe is wanted. strict: raise what a measure raises.
        """
        sight, clock = Sight(size), Clock()
        for number, probe in enumerate(self.probes.values()):
            with self._looking():
                view = self._view(probe, step, size, clock)
                for name, measure in self.measures.items():
                    if number == 0 or name not in FIRST_PROBE_ONLY:
                        with clock.on(name), _noting(sight, f"{probe.name}/{name}", strict):
                            found = measure(view)
                            sight.values |= {f"{probe.name}/{key}": float(value) for key, value in found.items()}
                if trace and number == 0:
                    with clock.on("complexity"), _noting(sight, "complexity", strict):
                        sight.feature_norm = self._feature_norm(view, size)
        sight.seconds = clock.seconds
        return sight

    def _view(self, probe: Probe, step: int, size: Size, clock: Clock) -> View:
        generator = torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + step)
        batch = probe.part(size.examples, self.device)
        outputs, memory = self.outputs[: size.outputs], self.memory[probe.name]
        like = self.likelihood
        return View(probe.name, self.model, self.options, batch, outputs, step, generator, memory, clock, like)

    def _feature_norm(self, view: View, size: Size) -> float:
        """sqrt(tr K) over all outputs: from the kernel if it has them all, else by random signs.

        The trace is scaled to the largest number of examples, so that C(f) keeps its unit when the size shrinks.
        """
        if self.all_outputs and len(view.outputs) == len(self.outputs):
            trace = view.kernel.trace()
        else:
            trace = kernel_trace(self.model, view.batch, TRACE_DRAWS, generator=view.generator, **self.options).estimate
        return (max(0.0, float(trace)) * self.largest.examples / size.examples) ** 0.5


@contextmanager
def _noting(sight: Sight, what: str, strict: bool) -> Iterator[None]:
    """A measure that fails is noted and the others go on; what the user did wrong is always raised when strict."""
    try:
        yield
    except Exception as error:
        if strict:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        sight.problems[what] = f"{type(error).__name__}: {error} ({where.name})"


def check_model(model: Any) -> None:
    """Refuse what cannot be recorded, before training starts."""
    require_module(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("No parameter of the model is trainable: there are no tangent features to record.")
