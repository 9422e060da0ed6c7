"""MNIST with a share of its training labels replaced by others: run to fit, and stopped early."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.data import Dataset, label_noise
from tangentlab.experiments import Chapter, Cost, Curves, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, for_trial, image_data, loss_and_accuracy, some_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.limits._fitting import TRIAL, Fitting, error
from tangentlab.experiments.limits._measures import cut_short, share_right
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, panels, step_axis
from tangentlab.linearized import InformationSpace, information_space
from tangentlab.models import MLP
from tangentlab.recorder.stopping import Patience

RULES = {"held_out": "validation on noisy labels", "information": "residual in the information space"}


@dataclass(frozen=True)
class _Watch:
    """What is measured along a training; `wrong` is the mask of corrupted labels, `true` what they were."""

    model: nn.Module
    space: InformationSpace
    train: Dataset
    true: Tensor
    wrong: Tensor
    held_out: Dataset
    test: Dataset

    def __call__(self, outputs: Tensor) -> Row:
        """Norms are those of the residual per example; shares are of the corrupted images, NaN when there are none."""
        wanted = nn.functional.one_hot(self.train.targets, outputs.shape[1])
        residual = (outputs.softmax(1) - wanted).T / math.sqrt(len(outputs))
        return {
            "held_out": loss_and_accuracy(self.model, self.held_out)[0],
            "information": float(self.space.split(residual).information.norm()),
            "residual": float(residual.norm()),
            "given": share_right(outputs[self.wrong], self.train.targets[self.wrong]),
            "true": share_right(outputs[self.wrong], self.true[self.wrong]),
            "test": error(self.model, self.test),
        }


@experiment
class LabelCorruption(Experiment):
    """A perceptron on MNIST with 0 to 90 % of wrong labels; one training gives the end and every point to stop at."""

    name = "label-corruption"
    title = "Corrupted labels are fitted last"
    question = (
        "A share of the training labels is replaced by other ones at random, the test labels are not. The network fits them "
        "all the same. What does that cost on the test images, and how much of it is saved by stopping early: where the loss "
        "on held-out labels, which are as corrupted, is least, or where the residual in the leading directions of the initial "
        "tangent kernel is?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Soltanolkotabi, Experiment I and Experiment II"
    claims = claims_of("label-corruption")
    scales = {
        "smoke": {
            "data": "digits",
            "images": 150,
            "tests": 60,
            "width": 24,
            "batch": 20,
            "steps": 40,
            "directions": 8,
            "corruptions": (0.0, 0.5, 0.9),
        },
        "paper": {"images": 60_000, "tests": 10_000, "steps": 200_000},
    }
    seeds = {"desk": 3, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 8, "paper": 5_000}
    notes = {
        "desk": "5,000 images, of which a fifth is held out, and one hidden layer of 256 units; the slides name neither the "
        "network nor its training, and show pictures without numbers. At 90 % of wrong labels every label is equally likely."
    }

    data: str = "mnist"
    images: int = 5_000
    tests: int = 5_000
    width: int = 256
    corruptions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    held_out: float = 0.2
    directions: int = 50
    patience: float = 0.5
    rate: float = 0.01
    momentum: float = 0.9
    batch: int = 100
    goal: float = 0.05
    steps: int = 6_000

    def cost(self) -> Cost:
        """At most; a training ends when it fits."""
        return Cost(len(self.corruptions) * self.steps, 0.003, 900)

    def run(self, lab: Lab) -> None:
        """One training for every share, from the same start; rows along it."""
        clean, test = image_data(lab, self.data, 28, for_trial(lab, self.images, TRIAL))
        test = some_of(test, for_trial(lab, self.tests, TRIAL))
        kept = len(clean) - round(self.held_out * len(clean))
        fitting = Fitting(self.batch, self.steps, self.goal)
        with lab.seeded("model"):
            start = MLP((clean.inputs[0].numel(), self.width, 10))
        space = information_space(start, clean.inputs[:kept], min(self.directions, kept), outputs="trace")
        for corruption in self.corruptions:
            noisy, mask = label_noise(clean, corruption, lab.generator("labels"))
            model, train = deepcopy(start), noisy.first(kept)
            held_out = noisy.take(torch.arange(kept, len(noisy)))
            watch = _Watch(model, space, train, clean.targets[:kept], mask[:kept], held_out, test)
            optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
            facts: Row = {"name": f"{corruption:.0%} wrong", "corruption": corruption, "order": lab.seed}
            fitting.train(lab, "curve", model, train, optimizer, measure=watch, **facts)

    def stops(self, results: Results, seed: int) -> dict[float, dict[str, Row]]:
        """For every share: the rows of the end, of the lowest test error in hindsight, and of both rules."""
        found = {}
        for corruption in self.corruptions:
            rows = results.table("curve", seed=seed, corruption=corruption).rows
            if rows:
                chosen = {rule: stopped_at(rows, rule, self.patience) for rule in RULES}
                found[corruption] = {"end": rows[-1], "hindsight": min(rows, key=lambda row: row["test"]), **chosen}
        return found

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log: shares of which something is left to learn are .1 to .8, hindsight is asked for up to .6."""
        stops = self.stops(results, seed)
        if len(stops) < len(self.corruptions) or results.table("curve", seed=seed)["step"].max() < 10:
            return cut_short(self.claims)
        some = [corruption for corruption in self.corruptions if 0 < corruption < 0.85]
        most = [corruption for corruption in some if corruption < 0.65]
        half = min(self.corruptions, key=lambda corruption: abs(corruption - 0.5))

        def gap(rule: str) -> float:
            return float(np.mean([stops[c][rule]["test"] - stops[c]["hindsight"]["test"] for c in most]))

        later = [
            row
            for row in results.table("curve", seed=seed, corruption=half).rows
            if row["step"] >= stops[half]["held_out"]["step"]
        ]
        saved = [stops[c]["end"]["test"] - stops[c]["held_out"]["test"] for c in some]
        early = stops[half]["held_out"]
        return {
            "S4b-X1-fits": min(stop["end"]["fitted"] for stop in stops.values()),
            "S4b-X1-degrades": stops[half]["end"]["test"] - stops[min(self.corruptions)]["end"]["test"],
            "S4b-X1-order": rank_correlation(list(stops), [stop["end"]["test"] for stop in stops.values()]),
            "S4b-X2-saved": float(np.mean(saved)),
            "S4b-X2-half": 1 - early["test"],
            "S4b-X2-held-out": gap("held_out"),
            "S4b-X2-information": gap("information"),
            "S4b-X2-rules": gap("held_out") - gap("information"),
            "S4b-X3-apart": rank_correlation([row["fitted"] for row in later], [row["test"] for row in later]),
            "S4b-X3-truth": early["true"] - early["given"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracy over the share of corrupted labels; errors and residuals over the steps at one half."""
        yield self._sweep(results)
        yield self._dynamics(results)

    def _sweep(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        stops = {seed: self.stops(results, seed) for seed in results.seeds}
        shares = [share for share in self.corruptions if all(share in found for found in stops.values())]

        def curves(stop: str, column: str, sign: float = -1.0) -> Curves:
            values = [[found[share][stop][column] for share in shares] for found in stops.values()]
            return Curves(np.array(shares), np.array(values) if sign > 0 else 1 - np.array(values))

        band(left, curves("end", "fitted", 1.0), "training labels", color=PALETTE[2], marker="o")
        band(left, curves("end", "test"), "test labels", color=PALETTE[1], marker="o")
        label(left, "share of corrupted training labels", "accuracy", "run to fit")
        for (rule, words), color in zip(RULES.items(), (PALETTE[0], PALETTE[3]), strict=True):
            band(right, curves(rule, "test"), words, color=color, marker="o")
        band(right, curves("hindsight", "test"), "best in hindsight", color=GRAY, linestyle=":")
        band(right, curves("end", "test"), "run to fit", color=PALETTE[1], marker="o")
        label(right, "share of corrupted training labels", "accuracy on test labels", "stopped early")
        for axes in (left, right):
            axes.set_ylim(0, 1.03)
            legend_below(axes, 1 if axes is right else 2)
        return Picture(
            "sweep",
            figure,
            "Left: accuracy on the training labels, corrupted ones included, and on the test labels, at the end of a training "
            "that fits all labels. Right: accuracy on the test labels when the training is stopped early, where the loss on "
            f"held-out labels (as corrupted) or the residual in the {self.directions} leading directions of the initial "
            "tangent kernel is least, found with the patience of `InformationStopping`. Mean over seeds, all seeds as a band.",
        )

    def _dynamics(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        half = min(self.corruptions, key=lambda corruption: abs(corruption - 0.5))
        fitted = results.curves("curve", "step", "fitted", corruption=half)
        band(left, Curves(fitted.x, 1 - fitted.y), "training error", color=PALETTE[2])
        band(left, results.curves("curve", "step", "test", corruption=half), "test error", color=PALETTE[4])
        for column, words, color in (
            ("residual", "all of it", GRAY),
            ("information", "information space", PALETTE[3]),
        ):
            band(right, results.curves("curve", "step", column, corruption=half), words, color=color)
        for axes, what, title in (
            (left, "error", f"{half:.0%} corrupted labels"),
            (right, "norm per example", "residual on the training labels"),
        ):
            step_axis(axes, float(fitted.x[-1]), 2.0)
            axes.set_ylim(bottom=0)
            label(axes, "step", what, title)
            legend_below(axes)
        return Picture(
            "dynamics",
            figure,
            f"With {half:.0%} of the labels corrupted. Left: error on the training labels as given, and on the test labels. "
            f"Right: the residual (probabilities minus labels) on the training images, and its part in the {self.directions} "
            "leading directions of the initial tangent kernel. Mean over seeds, all seeds as a band.",
        )


def stopped_at(rows: Sequence[Row], column: str, patience: float) -> Row:
    """The row with the lowest value when a training is given up as `InformationStopping` gives it up."""
    rule, best = Patience(patience), rows[0]
    for row in rows:
        best = row if rule.improved(row["step"], row[column]) else best
        if rule.exhausted(row["step"]):
            break
    return best
