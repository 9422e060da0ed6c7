"""A training as a sum of first-order steps: f_T = f_0 + sum_t J(w_t) dw_t + what is of second order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches
from tangentlab.engine.forward_mode import Linearization
from tangentlab.engine.network import Forward, Network
from tangentlab.engine.snapshot import evaluation_mode
from tangentlab.temporary import changed


@dataclass(frozen=True)
class Step:
    """One update of the parameters, seen on the probe.

    Attributes:
        change: |f(w + dw) - f(w)|, Frobenius norm over probe and outputs.
        linear: |J(w) dw|.
        error: |f(w + dw) - f(w) - J(w) dw|.
        length: |dw|.
    """

    change: float
    linear: float
    error: float
    length: float

    @property
    def relative_error(self) -> float:
        """Error over change; 0 where nothing changed."""
        return self.error / self.change if self.change else 0.0


class StepRecorder:
    """Adds up what every update does to the function to first order, on a fixed batch.

        steps = StepRecorder(model, probe)
        for x, y in loader:
            ...
            with steps:
                optimizer.step()
        steps.outputs(), steps.sum_of_steps  # f_T and f_0 + sum_t J(w_t) dw_t

    The network is looked at in eval mode. What changes it besides the parameters, such as the running statistics that a
    batch norm in train mode moves between updates, is in f_T and not in the sum. Cost per update: two forward passes, one
    Jacobian-vector product and a copy of the parameters.

    Args:
        model: the network that is trained.
        data: a tensor, a tuple whose first entry is the inputs, a dict batch, or an ordered loader of these.
        layers, forward: as in `tangentlab.NTK`.

    Attributes:
        steps: one `Step` per update.
        sum_of_steps: f_0 + sum_t J(w_t) dw_t, (n, outputs, ...); one number per example counts as (n, 1).
    """

    def __init__(self, model: nn.Module, data: Any, *, layers: Any = None, forward: Forward | None = None) -> None:
        self._batches = Batches(data, ordered=True).stored()
        with evaluation_mode(model):
            self._network = Network.of(model, layers, forward)
        self.sum_of_steps = self.outputs()
        self.steps: list[Step] = []
        self._before: tuple[dict[str, Tensor], Tensor] | None = None

    def outputs(self) -> Tensor:
        """f of the probe, as the network is now, in the shape of `sum_of_steps`."""
        with evaluation_mode(self._network.model):
            return torch.cat([self._network.values(batch) for batch in self._batches])

    def __enter__(self) -> StepRecorder:
        """Remember where the update starts."""
        values = {name: value.detach().clone() for name, value in self._network.parameters().items()}
        self._before = values, self.outputs()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Look at what the update did; nothing is recorded after an exception."""
        before, self._before = self._before, None
        if kind is not None or before is None:
            return
        values, start = before
        end = {name: value.detach().clone() for name, value in self._network.parameters().items()}
        moved = self._network.layout.flatten({name: end[name] - values[name] for name in values})
        after = self.outputs()
        with evaluation_mode(self._network.model), _placed(self._network, values, end):
            trusted: set[int] = set()
            images = [Linearization(self._network, part, trusted=trusted).jvp(moved) for part in self._batches]
        linear = torch.cat(images)
        change = after - start
        self.sum_of_steps = self.sum_of_steps + linear
        numbers = (float(part.norm()) for part in (change, linear, change - linear, moved))
        self.steps.append(Step(*numbers))


@contextmanager
def _placed(network: Network, values: dict[str, Tensor], back: dict[str, Tensor]) -> Iterator[None]:
    """Other values in the place of the parameters, whose own come back bit for bit."""
    parameters = network.parameters()

    def put(numbers: dict[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            parameter.data.copy_(numbers[name])

    yield from changed(lambda: put(values), lambda: put(back))
