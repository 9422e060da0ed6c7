"""Training sets of easy and difficult examples, and the alignment of the tangent kernel with each of the two groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.alignment import Hierarchy, hierarchical_alignment
from tangentlab.data import Dataset, label_noise, standardize
from tangentlab.experiments import Experiment, Lab, Minibatches, Training, geometric_steps
from tangentlab.experiments._images import Row, follow
from tangentlab.models import MLP
from tangentlab.recorder.measures import CENTRE

Kind = Literal["random labels", "kmnist"]
Source = Literal["digits", "mnist"]


@dataclass(frozen=True)
class Mixture:
    """Easy and difficult training examples of one problem, and the first of each, on which kernels are computed."""

    data: Dataset
    easy: Dataset
    difficult: Dataset


@dataclass(frozen=True)
class MixtureSetting(Experiment):
    """An experiment in which networks learn a mixture."""

    source: Source = "mnist"
    easy: int = 10_000
    difficult: int = 1_000
    probe: int = 100
    width: int = 80
    batch: int = 100
    steps: int = 2_000
    rate: float = 0.02
    momentum: float = 0.9
    ratio: float = 1.35

    def mixture(self, lab: Lab, kind: Kind) -> Mixture:
        """The images of the setting."""
        return mixture(lab, self.source, kind, self.easy, self.difficult, self.probe)

    def follow(
        self, lab: Lab, name: str, parts: Mixture, hidden: int, stream: tuple[int, ...] = (), **facts: Any
    ) -> list[Row]:
        """Train a network with so many hidden layers, and log the alignment of both groups at geometric steps."""
        with lab.seeded("model", *stream):
            model = MLP((parts.data.inputs[0].numel(), *[self.width] * hidden, 10))

        def measured(_: Training) -> Row:
            centred, raw = hierarchies(model, parts, (CENTRE, None))
            row: Row = {"easy": centred.easy, "difficult": centred.difficult, "ratio": centred.ratio}
            row |= {"easy_raw": raw.easy, "difficult_raw": raw.difficult}
            for group, part in (("easy", parts.easy), ("difficult", parts.difficult)):
                with torch.no_grad():
                    row[f"{group}_accuracy"] = (model(part.inputs).argmax(1) == part.targets).float().mean().item()
            return row

        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
        batches = Minibatches(parts.data, min(self.batch, len(parts.data)), lab.seed)
        points = geometric_steps(self.steps, 5.0, self.ratio)
        return follow(lab, "alignment", model, batches, optimizer, self.steps, points, measured, name=name, **facts)


def mixture(lab: Lab, source: Source, kind: Kind, easy: int, difficult: int, probe: int) -> Mixture:
    """`easy` images with their labels, and `difficult` ones: other images with random labels, or of another script.

    KMNIST images keep their own labels 0 to 9, so that each class holds a digit and a character. Beside the small digits,
    which have no such other script, digits turned upside down stand for it.
    """
    images = lab.dataset(source).first(easy + difficult)
    simple, rest = images.first(easy), images.take(torch.arange(easy, easy + difficult))
    if kind == "random labels":
        other, _ = label_noise(rest, 1.0, lab.generator("labels"), "random")
    elif source == "mnist":
        other = lab.dataset("kmnist", "test").first(difficult)
    else:
        other = replace(rest, inputs=rest.inputs.flip(-2))
    both = Dataset(
        torch.cat([simple.inputs, other.inputs]), torch.cat([simple.targets, other.targets]), source, classes=10
    )
    (both,) = standardize(both)
    rows = torch.arange(len(both))
    return Mixture(both, both.take(rows[:probe]), both.take(rows[easy : easy + probe]))


def hierarchies(model: nn.Module, parts: Mixture, centrings: Sequence[str | None]) -> list[Hierarchy]:
    """Alignment with the labels of training on both probes, once per centring."""
    pairs = [(NTK(model, part.inputs, progress=False), part.targets) for part in (parts.easy, parts.difficult)]
    return [hierarchical_alignment(pairs[0], pairs[1], center, 10) for center in centrings]


def half_rise(rows: list[Row], key: str, other: str | None = None) -> float:
    """The first step at which a curve is half way from its start to its largest value (at least 1).

    other: the curve whose way it is; one that never comes there has the last step.
    """
    way = np.array([row[other or key] for row in rows])
    level = (way[0] + way.max()) / 2
    return float(max(1, next((row["step"] for row in rows if row[key] >= level), rows[-1]["step"])))


def steepest(rows: list[Row], key: str) -> float:
    """The largest slope of a curve against the logarithm of the step, after the first measurement."""
    later = [row for row in rows if row["step"] > 0]
    steps, values = np.log([row["step"] for row in later]), np.array([row[key] for row in later])
    return float((np.diff(values) / np.diff(steps)).max()) if len(later) > 1 else 0.0


def duration(rows: list[Row], key: str) -> float:
    """Steps during which a curve is above the middle of its start and its largest value."""
    values = np.array([row[key] for row in rows])
    level = (values[0] + values.max()) / 2
    pairs = zip(rows, rows[1:], values, strict=False)
    return float(sum(after["step"] - row["step"] for row, after, value in pairs if value >= level))
