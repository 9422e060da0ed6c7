"""Figure 6.6: the complexity C(f) of a training and other measures, against the gap between train and test accuracy."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from tangentlab.alignment import LearningFlow, comparison_measures
from tangentlab.data import Dataset, label_noise
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    OnPeriod,
    Picture,
    Results,
    Training,
    experiment,
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, cross_entropy, image_data, loss_and_accuracy, some_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.figures.style import PALETTE, band, label, legend_beside, panels
from tangentlab.models import MLP, VGG

FLOW, LOGGED, TWO_LAYER = "C", "C between logs", "Neyshabur et al."
OTHERS = (
    "parameter norm",
    "distance from initialization",
    "product of Frobenius norms",
    "product of spectral norms",
    "spectral complexity",
    "path norm",
    "Fisher-Rao norm",
)


def measured_training(lab: Lab, model: nn.Module, data: Dataset, test: Dataset, options: Any) -> Row:
    """Train to the goal or the cap; the gap, C(f) in both forms, and the other measures."""
    initial = copy.deepcopy(model)
    flow = LearningFlow(model, some_of(data, options.probe).inputs, every=options.every)

    def check(training: Training) -> None:
        lab.progress("training", training.step, training.steps)
        if training.step and loss_and_accuracy(model, data)[0] <= options.goal:
            training.stop()

    done = train(
        model,
        Minibatches(data, min(options.batch, len(data)), lab.seed),
        cross_entropy,
        torch.optim.SGD(model.parameters(), lr=options.rate, momentum=options.momentum),
        lab.capped(options.cap),
        callbacks=[OnPeriod(options.check, check)],
        after_update=lambda training: flow.update(),
    )
    lab.steps += done.step
    loss, accuracy = loss_and_accuracy(model, data)
    row: Row = {"steps": done.step, "loss": loss, "accuracy": accuracy}
    row |= {"gap": accuracy - loss_and_accuracy(model, test)[1], "path length": flow.path_length}
    row |= {FLOW: flow.complexity, LOGGED: flow.complexity_between_logs}
    few = some_of(data, 1000)
    return row | comparison_measures(model, initial, few.inputs, few.targets)


def follows(rows: Sequence[Row], measure: str) -> float:
    """Rank correlation of a measure and the gap over the settings of one sweep."""
    return rank_correlation([row[measure] for row in rows], [row["gap"] for row in rows], least=3)


def sweep_panel(axes: Any, results: Results, sweep: str, x: str, names: Sequence[str]) -> None:
    """The gap and measures, each divided by its largest value, over one sweep."""
    found = results.table("training", sweep=sweep)
    for place, name in enumerate(("gap", *names)):
        if not any(name in row for row in found.rows):
            continue
        curves = results.curves("training", x, name, sweep=sweep)
        scale = np.abs(curves.y).max(axis=1, keepdims=True)
        scaled = type(curves)(curves.x, curves.y / np.where(scale > 0, scale, 1))
        strong = name in ("gap", FLOW, TWO_LAYER)
        marker = "o" if strong else "sD^vPX*<>"[place % 9]
        options: dict[str, Any] = {"marker": marker, "markersize": 4, "linewidth": 2.2 if strong else 1.1}
        color = "#1f2430" if name == "gap" else PALETTE[(place - 1) % len(PALETTE)]
        band(axes, scaled, name, color=color, linestyle="-" if strong else "--", **options)


@experiment
class ComplexityMnist(Experiment):
    """One hidden layer: sweeps over its width, and over the share of random labels."""

    name = "complexity-mnist"
    title = "A complexity measured along the training follows the generalization gap"
    question = (
        "C(f), the length of a training's path as its tangent features see it, bounds the capacity of a learning flow. Does "
        "it tell which networks generalize? Networks with one hidden layer are trained to the same small loss, at several "
        "widths and with several shares of random labels; C(f) and other measures are compared with the gap between train and "
        "test accuracy."
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.4.2, figure 6.6, left and centre"
    claims = claims_of("complexity-mnist")
    scales = {
        "smoke": {"data": "digits", "pixels": 8, "images": 200, "test": 100, "widths": (4, 8, 16), "hidden": 8, "cap": 6,
                  "check": 3, "every": 2, "goal": 0.0, "corruptions": (0.0, 0.5, 1.0), "probe": 10, "batch": 50},
        "paper": {"images": 60_000, "test": 10_000, "widths": (16, 64, 256, 1024, 4096), "cap": 200_000},
    }  # fmt: skip
    seeds = {"smoke": 1, "desk": 3, "paper": 1}
    minutes = {"smoke": 0.1, "desk": 15, "paper": 600}
    notes = {
        "desk": "5,000 MNIST images; the paper's hidden sizes, learning rate and probe are not told: here 16 to 4096 units, "
        "rate 0.05 with momentum 0.9, the trace on 100 images every 10 steps. Trainings end at a cross-entropy of 0.01 or "
        "after 6,000 steps.",
    }

    data: Literal["digits", "mnist"] = "mnist"
    pixels: int = 28
    images: int = 5_000
    test: int = 5_000
    widths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    hidden: int = 256
    corruptions: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    batch: int = 100
    rate: float = 0.05
    momentum: float = 0.9
    goal: float = 0.01
    cap: int = 6_000
    check: int = 50
    every: int = 10
    probe: int = 100

    def cost(self) -> Cost:
        """At most the cap, of every training."""
        return Cost((len(self.widths) + len(self.corruptions)) * self.cap, 0.005, 700)

    def run(self, lab: Lab) -> None:
        """Both sweeps."""
        clean, test = image_data(lab, self.data, self.pixels, self.images)
        test = some_of(test, self.test)
        settings = [("width", width, 0.0) for width in self.widths]
        settings += [("corruption", self.hidden, share) for share in self.corruptions]
        found: dict[str, list[Row]] = {"width": [], "corruption": []}
        for sweep, width, share in settings:
            row = lab.stage(f"{sweep} {width} {share:g}", lambda w=width, s=share: self._one(lab, clean, test, w, s))  # type: ignore[misc]
            lab.log("training", sweep=sweep, width=width, corruption=share, **row)
            found[sweep].append(row)
        for sweep, rows in found.items():
            lab.measure(f"6.6-{sweep}-C", follows(rows, FLOW))
            lab.measure(f"6.6-{sweep}-neyshabur", follows(rows, TWO_LAYER))
        lab.measure("6.6-others", max(min(follows(rows, name) for rows in found.values()) for name in OTHERS))
        pairs = [
            rank_correlation([r[FLOW] for r in rows], [r[LOGGED] for r in rows], least=3) for rows in found.values()
        ]
        lab.measure("6.6-variants", min(pairs))

    def _one(self, lab: Lab, clean: Dataset, test: Dataset, width: int, share: float) -> Row:
        data, _ = label_noise(clean, share, lab.generator("labels"), "random")
        with lab.seeded("model"):
            model = MLP((clean.inputs[0].numel(), width, clean.classes or 10))
        return measured_training(lab, model, data, test, self)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Both sweeps side by side; all measures."""
        figure, ((left, right),) = panels(2, height=4.0)
        sweep_panel(left, results, "width", "width", (FLOW, TWO_LAYER, LOGGED, *OTHERS))
        sweep_panel(right, results, "corruption", "corruption", (FLOW, TWO_LAYER, LOGGED, *OTHERS))
        left.set_xscale("log")
        left.set_xticks(list(self.widths), [f"{width:,}" for width in self.widths])
        left.minorticks_off()
        label(left, "hidden units", "gap or measure over its largest value", "width")
        label(right, "share of random labels", "gap or measure over its largest value", "label corruption")
        legend_beside(right)
        yield Picture(
            "figure-6.6",
            figure,
            "The gap between train and test accuracy (black) and measures of complexity, each divided by its largest value, "
            "over the width of one hidden layer and over the share of random labels. Mean over seeds, all seeds as a band.",
        )


@experiment
class ComplexityVgg(Experiment):
    """The same for VGG19 with several numbers of channels."""

    name = "complexity-vgg"
    title = "The complexity of a deep network's training over its number of channels"
    question = (
        "Does C(f) follow the generalization gap of a deep convolutional network, too? VGG19 with several numbers of channels "
        "is trained on CIFAR-10 to a small loss."
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.4.2, figure 6.6, right"
    claims = claims_of("complexity-vgg")
    scales = {
        "smoke": {"data": "digits", "pixels": 8, "channels": 1, "images": 100, "test": 50, "depth": 11, "bases": (1, 2, 3),
                  "cap": 3, "check": 2, "every": 2, "goal": 0.0, "probe": 5, "batch": 20},
        "paper": {"images": 50_000, "test": 10_000, "bases": (4, 8, 16, 24, 32), "cap": 40_000},
    }  # fmt: skip
    seeds = {"smoke": 1, "desk": 1, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 45, "paper": 6_000}
    notes = {
        "desk": "VGG19 with 4, 8, 16 and 24 base channels on 2,500 CIFAR-10 images, at most 5,000 steps, one seed. The "
        "measure of Neyshabur et al. is of networks with one hidden layer and is not defined here.",
    }

    data: Literal["digits", "cifar10"] = "cifar10"
    pixels: int = 32
    channels: int = 3
    images: int = 2_500
    test: int = 1_000
    depth: int = 19
    bases: tuple[int, ...] = (4, 8, 16, 24)
    batch: int = 100
    rate: float = 0.01
    momentum: float = 0.9
    goal: float = 0.01
    cap: int = 5_000
    check: int = 50
    every: int = 25
    probe: int = 50

    def cost(self) -> Cost:
        """At most the cap, of every training."""
        return Cost(len(self.bases) * self.cap, 0.25, 1200)

    def run(self, lab: Lab) -> None:
        """All numbers of channels."""
        data, test = image_data(lab, self.data, self.pixels, self.images)
        test = some_of(test, self.test)
        rows = []
        for base in self.bases:
            row = lab.stage(f"base {base}", lambda b=base: self._one(lab, data, test, b))  # type: ignore[misc]
            lab.log("training", sweep="channels", base=base, **row)
            rows.append(row)
        lab.measure("6.6-channels-C", follows(rows, FLOW))
        lab.measure("6.6-channels-fitted", max(row["loss"] for row in rows))

    def _one(self, lab: Lab, data: Dataset, test: Dataset, base: int) -> Row:
        with lab.seeded("model"):
            model = VGG(self.depth, 10, base, in_channels=self.channels, image_size=self.pixels)
        return measured_training(lab, model, data, test, self)

    def draw(self, results: Results) -> Iterator[Picture]:
        """The gap and all measures over the number of channels."""
        figure, ((axes,),) = panels(height=4.0)
        sweep_panel(axes, results, "channels", "base", (FLOW, LOGGED, *OTHERS))
        label(axes, "base channels", "gap or measure over its largest value", "VGG19")
        legend_beside(axes)
        yield Picture(
            "figure-6.6-right",
            figure,
            "The gap between train and test accuracy (black) and measures of complexity, each divided by its largest value, "
            "over the number of channels of the first stage of VGG19. Mean over seeds, all seeds as a band.",
        )
