"""SGD and Adam from one start end in different functions: how far apart, next to what else tells trainings apart?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, for_trial, image_data, some_of
from tangentlab.experiments.limits._fitting import TRIAL, Fitting, error
from tangentlab.experiments.limits._measures import cut_short, mean_of
from tangentlab.figures.style import INK, PALETTE, label, panels
from tangentlab.kernels import kernel_distance
from tangentlab.metrics import NTK
from tangentlab.models import MLP

OPTIMIZERS = ("sgd", "adam")
CHANGES = ("none", "order", "rate", "start")
WORDS = {"optimizer": "optimizers", "start": "starts", "rate": "rates, 1 : 2", "order": "orders of\nminibatches"}


@experiment
class OptimizerFunctions(Experiment):
    """One network, trained to the same loss by SGD and by Adam, from two starts, in two orders, at two rates."""

    name = "optimizer-functions"
    title = "Another optimizer, another optimum"
    question = (
        "SGD and Adam fit the training images from the same weights and with the same minibatches. Are the functions that they "
        "end in, and the tangent kernels of the two networks, further apart than those of one optimizer with other "
        "minibatches, at half the rate, or from another start? Which of them generalizes better?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, SGD vs ADAM"
    claims = claims_of("optimizer-functions")
    scales = {
        "smoke": {"data": "digits", "images": 60, "tests": 50, "probe": 20, "width": 16, "batch": 20, "steps": 12},
        "paper": {"images": 60_000, "tests": 10_000, "steps": 60_000},
    }
    seeds = {"desk": 5, "paper": 5}
    minutes = {"smoke": 0.2, "desk": 6, "paper": 3_000}
    notes = {
        "desk": "1,000 MNIST images and a perceptron in place of the slides' LSTM on Penn Treebank (Wilson et al. 2017), which "
        "they show as a picture without numbers; rates are customary ones, not tuned"
    }

    data: str = "mnist"
    images: int = 1_000
    tests: int = 5_000
    probe: int = 200
    width: int = 128
    rates: tuple[float, float] = (0.02, 0.001)
    momentum: float = 0.9
    batch: int = 50
    goal: float = 0.01
    steps: int = 3_000

    def cost(self) -> Cost:
        """At most; a training ends when it fits."""
        return Cost(len(OPTIMIZERS) * len(CHANGES) * self.steps, 0.002, 600)

    def run(self, lab: Lab) -> None:
        """Eight trainings, and the distances of pairs that differ in one thing."""
        train, test = image_data(lab, self.data, 28, for_trial(lab, self.images, TRIAL))
        test = some_of(test, for_trial(lab, self.tests, TRIAL))
        fitting = Fitting(self.batch, self.steps, self.goal)
        ends: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
        for optimizer, change in product(OPTIMIZERS, CHANGES):
            model, name = self._network(lab, train.inputs[0].numel(), change), f"{optimizer}, other {change}"
            rule, order = self._rule(model, optimizer, change), 2 * lab.seed + (change == "order")
            facts: Row = {"method": optimizer, "change": change}
            rows = fitting.train(lab, "training", model, train, rule, order=order, name=name, **facts)
            with torch.no_grad():
                shares = model(test.inputs).softmax(1)
            kernel = NTK(model, test.inputs[: self.probe], outputs="trace").matrix()
            ends[optimizer, change] = shares, kernel
            lab.log("ends", **facts, step=rows[-1]["step"], fitted=rows[-1]["fitted"], error=error(model, test))
        for change in ("none", "order"):
            self._compare(lab, "optimizer", *(ends[one, change] for one in OPTIMIZERS))
        for optimizer, change in product(OPTIMIZERS, CHANGES[1:]):
            self._compare(lab, change, ends[optimizer, "none"], ends[optimizer, change])

    def _network(self, lab: Lab, inputs: int, change: str) -> nn.Module:
        with lab.seeded("model", int(change == "start")):
            return MLP((inputs, self.width, self.width, 10))

    def _rule(self, model: nn.Module, optimizer: str, change: str) -> torch.optim.Optimizer:
        rate = self.rates[OPTIMIZERS.index(optimizer)] / (2 if change == "rate" else 1)
        if optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=rate)
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=self.momentum)

    def _compare(self, lab: Lab, differs: str, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> None:
        """Share of test images with another answer, mean total variation of probabilities, 1 - cosine of kernels."""
        lab.log(
            "pairs",
            differs=differs,
            answers=float((one[0].argmax(1) != two[0].argmax(1)).double().mean()),
            variation=float((one[0] - two[0]).abs().sum(1).mean() / 2),
            kernel=kernel_distance(one[1], two[1]),
        )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Means over the pairs of one kind."""
        ends, pairs = (results.table(name, seed=seed) for name in ("ends", "pairs"))
        if len(pairs) < 2 + len(OPTIMIZERS) * (len(CHANGES) - 1):
            return cut_short(self.claims)

        def excess(column: str, over: str) -> float:
            return mean_of(pairs.where(differs="optimizer"), column) - mean_of(pairs.where(differs=over), column)

        return {
            "S4c-O-fitted": float(ends["fitted"].min()),
            "S4c-O-answers": excess("answers", "order"),
            "S4c-O-kernel": excess("kernel", "order"),
            "S4c-O-rate": excess("kernel", "rate"),
            "S4c-O-start": excess("kernel", "start"),
            "S4c-O-start-answers": excess("answers", "start"),
            "S4c-O-error": mean_of(ends.where(method="adam"), "error") - mean_of(ends.where(method="sgd"), "error"),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """All pairs by what they differ in, and the errors of both optimizers."""
        figure, ((left, middle, right),) = panels(3, width=3.6)
        pairs, ends = results.table("pairs"), results.table("ends")
        for axes, column, what, title in (
            (left, "answers", "share of other answers", "functions"),
            (middle, "kernel", "1 − cosine", "tangent kernels"),
        ):
            groups = {words: pairs.where(differs=kind) for kind, words in WORDS.items()}
            for place, (table, color) in enumerate(zip(groups.values(), PALETTE, strict=False)):
                axes.plot(place + _spread(len(table)), table[column], "o", color=color, alpha=0.6)
                axes.plot([place - 0.25, place + 0.25], [mean_of(table, column)] * 2, color=INK)
            axes.set_xticks(range(len(groups)), list(groups), rotation=35, ha="right", rotation_mode="anchor")
            axes.set_ylim(bottom=0)
            label(axes, "the two differ in their", what, title)
        for place, optimizer in enumerate(OPTIMIZERS):
            table = ends.where(method=optimizer)
            right.plot(place + _spread(len(table)), table["error"], "o", color=PALETTE[place], alpha=0.6)
            right.plot([place - 0.25, place + 0.25], [mean_of(table, "error")] * 2, color=INK)
        right.set_xticks(range(2), ["SGD", "Adam"])
        right.set_xlim(-0.6, 1.6)
        label(right, "optimizer", "test error", f"{self.images:,} training images")
        yield Picture(
            "distances",
            figure,
            "Networks at the same training loss, two at a time. Left: share of test images on which they answer differently. "
            "Middle: distance of their tangent kernels. Right: test error of all trainings. A dot is a pair (a training) of "
            "one seed, a line the mean.",
        )


def _spread(count: int) -> np.ndarray:
    """Places beside each other for the dots of one group."""
    return np.linspace(-0.18, 0.18, count) if count > 1 else np.zeros(count)
