"""Trainings of one network from one start that differ in alpha or learning rate, watched on groups of examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tangentlab.data import Dataset
from tangentlab.errors import InputError
from tangentlab.experiments import Lab, Minibatches, Results, Training, geometric_steps
from tangentlab.experiments._images import Row, follow
from tangentlab.figures.curves import Curves
from tangentlab.linearized import AlphaModel, Groups, LinearityProbe, at_progress, common_thresholds
from tangentlab.models import VGG11, ResNet18

Array = NDArray[Any]
Watched = dict[str, tuple[Dataset, Groups]]
METRICS = {
    "sign_similarity": "sign similarity",
    "ntk_alignment": "NTK alignment",
    "representation_alignment": "representation alignment",
}
TRIAL_IMAGES, TRIAL_PROBE = 40, 3
BEGUN = 1.05 * math.log(10)
"""A loss above that of ten equal probabilities reflects the scale of the initial outputs, not of what was learnt [nats]."""


@dataclass(frozen=True)
class Race:
    """Trainings of `f_alpha` that share their data and what is watched: groups of examples, by name.

    Networks are measured `part` examples at a time.
    """

    train: Dataset
    watched: Watched
    batch: int
    momentum: float
    part: int

    def measured(self, name: str, groups: Groups, logits: Tensor, targets: Tensor) -> Row:
        """`loss <name> <group>` and `accuracy <name> <group>`, the share of right answers; also of all examples."""
        found = {
            "loss": cross_entropy(logits, targets, reduction="none"),
            "accuracy": (logits.argmax(1) == targets).double(),
        }
        row = {
            f"{key} {name} {group}": mean for key, all_ in found.items() for group, mean in groups.means(all_).items()
        }
        return row | {f"{key} {name}": float(values.mean()) for key, values in found.items()}

    def trained(
        self,
        lab: Lab,
        table: str,
        network: nn.Module,
        alpha: float,
        rate: float,
        updates: int,
        at: Iterable[int],
        look: Callable[[nn.Module, Training, Row], Row] = lambda network, training, row: row,
        *,
        name: str,
        facts: Row,
    ) -> list[Row]:
        """One training from a start; rows of all groups along it, as `look(network, training, row)` completes them.

        Norms, where there are any, stay at their statistics.
        """
        knob = AlphaModel(network, alpha).eval()
        known = {name: self._initial(lab, knob, data) for name, (data, _) in self.watched.items()}
        stored = self._initial(lab, knob, self.train)

        def measure(training: Training) -> Row:
            row: Row = {}
            for name, (data, groups) in self.watched.items():
                parts = zip(data.inputs.split(self.part), known[name].split(self.part), strict=True)
                with torch.no_grad():
                    logits = torch.cat([knob(inputs, initial=start) for inputs, start in parts])
                row |= self.measured(name, groups, logits, data.targets)
            return look(knob.model, training, row)

        optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(rate), momentum=self.momentum)
        batches = Minibatches((*self.train, stored), min(self.batch, len(self.train)), lab.seed)
        return follow(lab, table, knob, batches, optimizer, updates, at, measure, loss=_loss, name=name, **facts)

    def _initial(self, lab: Lab, knob: AlphaModel, data: Dataset) -> Tensor:
        """Outputs of the network at its start, (n, outputs)."""
        found = []
        for place in range(0, len(data), self.part):
            lab.progress(f"outputs at the start, {data.split}", place, len(data))
            found.append(knob.initial_outputs(data.inputs[place : place + self.part]))
        return torch.cat(found)


@dataclass(frozen=True)
class ImageRace(Race):
    """The same from one network, with its linearity on `probe` training examples.

    `progress` is the key of the loss that counts as progress; a training ends where it comes to `stop`.
    """

    network: nn.Module
    progress: str
    probe: int
    ratio: float
    stop: float

    def follow(self, lab: Lab, name: str, alpha: float, rate: float, updates: int) -> list[Row]:
        """One training; its rows are logged to the table "curve" with `run=name`."""
        probe = LinearityProbe(self.network, self.train.inputs[: self.probe])

        def look(network: nn.Module, training: Training, row: Row) -> Row:
            if row[self.progress] <= self.stop:
                training.stop()
            return {**asdict(probe(network)), **row}

        points = geometric_steps(updates, 5.0, self.ratio)
        return self.trained(
            lab, "curve", self.network, alpha, rate, updates, points, look, name=name, facts={"run": name}
        )


def _loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets, initial = batch
    return cross_entropy(model(inputs, initial=initial), targets)


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
