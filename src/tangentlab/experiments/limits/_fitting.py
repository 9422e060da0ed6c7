"""Trainings of classifiers that go on until they fit every training label, as right or wrong as it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset
from tangentlab.experiments import Lab, Minibatches, Training, geometric_steps
from tangentlab.experiments._images import Row, follow, loss_and_accuracy
from tangentlab.experiments.limits._measures import share_right

TRIAL = 40
"""Examples of a run that is cut short."""


@dataclass(frozen=True)
class Fitting:
    """Cross-entropy in minibatches of `batch`, until all labels are fitted and the mean loss is at most `goal`.

    After `steps` updates a training ends in any case.
    """

    batch: int
    steps: int
    goal: float

    def train(
        self,
        lab: Lab,
        table: str,
        model: nn.Module,
        data: Dataset,
        optimizer: torch.optim.Optimizer,
        *,
        order: int,
        name: str,
        measure: Callable[[Tensor], Row] = lambda outputs: {},
        **facts: Any,
    ) -> list[Row]:
        """Rows of `table` at steps that grow by a seventh, and at the last one.

        They hold facts, step, `loss` and `fitted` (the share of labels) on all training data, and what `measure` finds in the
        outputs there. `order` is the seed of the minibatches.
        """

        @torch.no_grad()
        def look(training: Training) -> Row:
            outputs = model(data.inputs)
            loss, fitted = float(nn.functional.cross_entropy(outputs, data.targets)), share_right(outputs, data.targets)
            if fitted == 1 and loss <= self.goal:
                training.stop()
            return {"loss": loss, "fitted": fitted, **measure(outputs)}

        batches = Minibatches(data, min(self.batch, len(data)), order)
        at = geometric_steps(self.steps, 2.0, 8 / 7)
        return follow(lab, table, model, batches, optimizer, self.steps, at, look, name=name, **facts)


def error(model: nn.Module, data: Dataset) -> float:
    """The share of wrong answers on `data`."""
    return 1 - loss_and_accuracy(model, data)[1]
