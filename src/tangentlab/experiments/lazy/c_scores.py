"""Figures 5.2 (top), C.2, C.4, C.5 and C.6 (right): examples by their C-score, learnt lazily and not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tangentlab.data import Dataset, cache_folder, downscale, standardize
from tangentlab.data.places import Search
from tangentlab.errors import DataFileError
from tangentlab.experiments import Chapter, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, for_trial, some_of
from tangentlab.experiments.lazy import _race_figures as figures
from tangentlab.experiments.lazy._race import (
    TRIAL_IMAGES,
    Array,
    at_levels,
    drawn_levels,
    equal_progress,
    levels_of,
)
from tangentlab.experiments.lazy._setting import FULL, SHORT, TwoAlphas
from tangentlab.experiments.lazy.label_noise import measure_metrics
from tangentlab.figures.style import INK, band
from tangentlab.linearized import ConsistencyRecipe, Groups, consistency_scores, read_c_scores, score_groups

PROGRESS = "loss train"
SCORE_FILE = "cifar10-cscores-orig-order.npz"


@experiment
class LazyCScores(TwoAlphas):
    """Losses of ten groups of examples, from hard to easy, at equal training loss, with linearity metrics."""

    name = "lazy-c-scores"
    title = "Feature learning learns easy examples first, and hard ones later"
    question = (
        "The C-score of an example is the probability that a network trained without it gets it right. Examples are "
        "grouped in tenths of increasing C-score and a network is trained on all of them, with alpha = 1 (the network) and "
        "with alpha = 100 (nearly linear), from the same start. At equal mean training loss, how is the loss "
        "distributed over the groups?"
    )
    chapter = Chapter.LAZY
    place = "§5.3.2, figures 5.2 (top), C.2, C.5 and C.6 (right)"
    prefix: ClassVar[str] = "5.2-scores"
    claims = claims_of("lazy-c-scores")
    scales = {
        "smoke": {**SHORT, "scored": 180, "networks": 30, "epochs": 1},
        "paper": {**FULL, "images": 40_000, "scores": "file", "scored": 50_000},
    }
    seeds = {"desk": 3, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 40, "paper": 100_000}
    notes = {
        "desk": "ResNet18 with 16 to 128 channels without normalization on 2,500 CIFAR-10 images of 16 x 16 pixels; C-scores "
        "are estimated from 40 LeNets, each trained on half or on 70 % of 5,000 images that contain these; the seeds are "
        "those of figure C.2.",
        "paper": f"needs the public file {SCORE_FILE}, next to the images.",
    }

    scores: Literal["estimate", "file"] = "estimate"
    scored: int = 5_000
    networks: int = 40
    epochs: int = 12

    def run(self, lab: Lab) -> None:
        """Scores, both trainings, then the claims."""
        sizes = [for_trial(lab, count, TRIAL_IMAGES) for count in (self.images, self.tests)]
        whole = some_of(lab.dataset(self.data), max(for_trial(lab, self.scored, 0), sum(sizes)))
        whole = downscale(whole, self.pixels) if self.pixels < whole.inputs.shape[-1] else whole
        (whole,) = standardize(whole)
        scores = self._scores(lab, whole)
        count = min(sizes[0], len(whole) * 4 // 5)
        train, test = whole.first(count), whole.take(torch.arange(count, min(count + sizes[1], len(whole))))
        lab.save_array("scores", scores[: len(train) + len(test)])
        watched = {
            "train": (train, score_groups(scores[:count])),
            "test": (test, score_groups(scores[count : count + len(test)])),
        }
        runs = self.both(lab, self.race(lab, train, watched, PROGRESS))
        if lab.max_steps is None and not self.stuck(lab, runs, PROGRESS):
            self._judge(lab, watched["train"][1], *runs)

    def _scores(self, lab: Lab, data: Dataset) -> Tensor:
        """C-scores of all images."""
        if self.scores == "estimate":
            recipe = ConsistencyRecipe(networks=self.networks, epochs=self.epochs)
            cache = cache_folder() if self.data != "digits" else None
            return consistency_scores(data, recipe, cache=cache, progress=False).scores
        found = Search(self.data, (self.data, "cifar-10-batches-bin")).find((SCORE_FILE,))
        if found is not None:
            return read_c_scores(Path(found[0]), data.targets)
        if lab.max_steps is None:
            raise DataFileError(f"The file {SCORE_FILE} is not among the data: put it there, or --set scores=estimate.")
        return torch.rand(len(data), generator=lab.generator("scores"))

    def _judge(self, lab: Lab, groups: Groups, rich: list[Row], lazy: list[Row]) -> None:
        levels = levels_of([rich, lazy], PROGRESS)
        lab.log("levels", first=float(levels[0]), last=float(levels[-1]))
        hardest, easiest = groups.names[0], groups.names[-1]

        def at(rows: list[Row], kind: str, group: str) -> Array:
            return at_levels(rows, PROGRESS, f"{kind} train {group}", levels)

        spreads = [at(rows, "loss", hardest) - at(rows, "loss", easiest) for rows in (rich, lazy)]
        accuracies = [at(rows, "accuracy", easiest) - at(rows, "accuracy", hardest) for rows in (rich, lazy)]
        lab.measure(f"{self.prefix}-easy-first", float(min(spread.min() for spread in spreads)))
        lab.measure(f"{self.prefix}-spread", float(np.mean(spreads[0] - spreads[1])))
        lab.measure(f"{self.prefix}-accuracy-spread", float(np.mean(accuracies[0] - accuracies[1])))
        for name, group in (("easiest", easiest), ("hardest", hardest)):
            lab.measure(f"{self.prefix}-{name}", float(np.mean(at(rich, "loss", group) - at(lazy, "loss", group))))
        measure_metrics(lab, self.prefix, rich, lazy)

    def draw(self, results: Results) -> Iterator[Picture]:
        """The groups in both regimes, their difference, and the metrics."""
        yield self._groups(results, "loss", "loss [nats]")
        yield self._difference(results)
        yield self._groups(results, "accuracy", "accuracy")

    def _runs(self) -> list[str]:
        return [f"alpha {alpha:g}" for alpha in self.alphas]

    def _groups(self, results: Results, kind: str, unit: str) -> Picture:
        figure, ((*axes, right),) = figures.two_panels(3)
        levels, colors = drawn_levels(results, self._runs(), PROGRESS), figures.sequential(10)
        for panel, run in zip(axes, self._runs(), strict=True):
            for number, color in enumerate(colors, start=1):
                curves = equal_progress(results, run, PROGRESS, f"{kind} train {number}", levels)
                name = {1: "lowest C-scores", 10: "highest C-scores"}.get(number)
                panel.plot(curves.x, curves.mean, color=color, label=name, linewidth=1.4)
            figures.finish(panel, "mean training loss [nats]", unit, run.replace("alpha", "α ="))
        low, high = (extreme(panel.get_ylim()[place] for panel in axes) for place, extreme in ((0, min), (1, max)))
        for panel in axes:
            panel.set_ylim(low, high)
        figures.draw_metrics(right, results, self._runs(), PROGRESS, "mean training loss [nats]")
        return Picture(
            "c-scores" if kind == "loss" else "c-scores-accuracy",
            figure,
            f"Left and middle: {kind} of ten groups of training examples from low to high C-score, over the mean training "
            "loss, which falls to the right; mean over seeds. Right: the three linearity metrics, mean over seeds and all "
            f"seeds as a band; {figures.DOTS}.",
        )

    def _difference(self, results: Results) -> Picture:
        figure, ((axes,),) = figures.two_panels(1)
        levels = drawn_levels(results, self._runs(), PROGRESS)
        for number, color in enumerate(figures.sequential(10), start=1):
            rich, lazy = (
                equal_progress(results, run, PROGRESS, f"loss train {number}", levels) for run in self._runs()
            )
            name = {1: "lowest C-scores", 10: "highest C-scores"}.get(number)
            if name:
                band(axes, type(rich)(levels, rich.y - lazy.y), name, color=color)
            else:
                axes.plot(levels, (rich.y - lazy.y).mean(0), color=color, linewidth=1.2)
        axes.axhline(0, color=INK, linewidth=0.8)
        figures.finish(axes, "mean training loss [nats]", "loss, α = 1 minus α = 100 [nats]", "at equal progress")
        return Picture(
            "c-scores-difference",
            figure,
            "Loss of ten groups of training examples in the non-linear minus that in the nearly linear training, at equal mean "
            "training loss. Mean over seeds; all seeds as a band for the first and the last group.",
        )


@experiment
class LazyCScoresVGG(LazyCScores):
    """The same with VGG11."""

    name = "lazy-c-scores-vgg"
    title = "Feature learning learns easy examples first: VGG11"
    place = "C.6, figure C.4"
    prefix: ClassVar[str] = "C.4-scores"
    claims = claims_of("lazy-c-scores-vgg")
    notes = {
        "desk": LazyCScores.notes["desk"].replace("ResNet18", "VGG11")
        + " Its initial outputs are large: trainings are "
        "compared from a loss of 2.42 on, 1.05 times that of equal probabilities.",
        "paper": LazyCScores.notes["paper"],
    }

    network: Literal["resnet18", "vgg11"] = "vgg11"
