"""Trainings of one network from one start that differ in alpha or learning rate, watched on groups of examples."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tangentlab.data import Dataset
from tangentlab.errors import InputError
from tangentlab.experiments import Batches, Lab, Results, Training, geometric_steps, train
from tangentlab.experiments._images import Points, Row
from tangentlab.figures.curves import Curves
from tangentlab.linearized import AlphaModel, Groups, LinearityProbe, at_progress, common_thresholds
from tangentlab.models import VGG11, ResNet18

Array = NDArray[Any]
METRICS = {
    "sign_similarity": "sign similarity",
    "ntk_alignment": "NTK alignment",
    "representation_alignment": "representation alignment",
}
TRIAL_IMAGES, TRIAL_PROBE = 40, 3
BEGUN = 1.05 * math.log(10)
"""A loss above that of ten equal probabilities tells of the scale of the initial outputs, not of what was learnt [nats]."""


@dataclass(frozen=True)
class Race:
    """What the trainings share: data, what is watched, the start, and how they are run.

    ``watched`` maps a name to examples and their groups; rows hold ``loss <name> <group>`` and ``accuracy <name>
    <group>``. ``progress`` is the key of the loss that counts as progress; a training ends where it comes to ``stop``.
    """

    train: Dataset
    watched: dict[str, tuple[Dataset, Groups]]
    network: nn.Module
    progress: str
    batch: int
    momentum: float
    probe: int
    ratio: float
    stop: float

    def follow(self, lab: Lab, name: str, alpha: float, rate: float, updates: int) -> list[Row]:
        """One training; its rows are logged to the table "curve" with ``run=name``."""
        knob = AlphaModel(self.network, alpha)
        probe = LinearityProbe(self.network, self.train.inputs[: self.probe])
        known = {key: knob.initial_outputs(data.inputs) for key, (data, _) in self.watched.items()}
        stored = knob.initial_outputs(self.train.inputs)
        batches = Batches((*self.train, stored), min(self.batch, len(self.train)), lab.seed)

        def record(training: Training) -> list[Row]:
            row: Row = {"step": training.step, **asdict(probe(knob.model))}
            for key, (data, groups) in self.watched.items():
                row |= _measured(knob, data, known[key], key, groups)
            lab.log("curve", run=name, **row)
            if row[self.progress] <= self.stop:
                training.stop()
            return [row]

        points = Points(geometric_steps(updates, 5.0, self.ratio), record)
        optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(rate), momentum=self.momentum)
        train(knob, batches, _loss, optimizer, updates, lab=lab, name=name, callbacks=[points])
        return points.rows


def _loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets, initial = batch
    return cross_entropy(model(inputs, initial=initial), targets)


@torch.no_grad()
def _measured(knob: AlphaModel, data: Dataset, initial: Tensor, name: str, groups: Groups) -> Row:
    """Mean loss and share of right answers of every group, and of all."""
    parts = zip(data.inputs.split(500), initial.split(500), strict=True)
    logits = torch.cat([knob(inputs, initial=start) for inputs, start in parts])
    found = {
        "loss": cross_entropy(logits, data.targets, reduction="none"),
        "accuracy": (logits.argmax(1) == data.targets).double(),
    }
    row = {f"{key} {name} {group}": mean for key, all_ in found.items() for group, mean in groups.means(all_).items()}
    return row | {f"{key} {name}": float(values.mean()) for key, values in found.items()}


def make_network(kind: str, base: int, channels: int, classes: int, pixels: int) -> nn.Module:
    """A network without normalization."""
    if kind == "vgg11":
        return VGG11(classes, base=base, in_channels=channels, image_size=pixels)
    return ResNet18(classes, base=base, in_channels=channels, norm=False)


def column(rows: list[Row], key: str) -> Array:
    """One recorded quantity, in the order of the steps."""
    return np.array([row[key] for row in rows], dtype=float)


def begun(rows: list[Row], progress: str) -> list[Row]:
    """The records from the first one on at which the progress is a loss that something was learnt for; none, if never."""
    return rows[next((place for place, row in enumerate(rows) if row[progress] <= BEGUN), len(rows)) :]


def levels_of(runs: list[list[Row]], progress: str, count: int = 12) -> Array:
    """Values of the progress, from `BEGUN` on, that all trainings have come to, the start left out."""
    return common_thresholds(*(np.minimum(column(rows, progress), BEGUN) for rows in runs), count=count + 1)[1:]


def at_levels(rows: list[Row], progress: str, key: str, levels: Array) -> Array:
    """A recorded quantity where the progress first came to each level."""
    return at_progress(column(rows, progress), column(rows, key), levels)


def recorded(results: Results, run: str) -> list[list[Row]]:
    """The rows of one training, for every seed."""
    return [list(results.table("curve", run=run, seed=seed).rows) for seed in results.seeds]


def equal_progress(results: Results, run: str, progress: str, key: str, levels: Array) -> Curves:
    """A recorded quantity over the progress, one curve per seed."""
    return Curves(levels, np.stack([at_levels(rows, progress, key, levels) for rows in recorded(results, run)]))


def drawn_levels(results: Results, runs: list[str], progress: str, count: int = 25, highest: float = BEGUN) -> Array:
    """Values of the progress that all trainings of all seeds have come to; the start alone, when there was none."""
    every = [column(rows, progress) for run in runs for rows in recorded(results, run)]
    try:
        return common_thresholds(*(np.minimum(curve, highest) for curve in every), count=count)
    except InputError:
        return np.array([min(curve[0] for curve in every)])


def own_levels(results: Results, run: str, progress: str, count: int = 25) -> Array:
    """Values of the progress that all seeds of one training have come to."""
    return drawn_levels(results, [run], progress, count, highest=math.inf)
