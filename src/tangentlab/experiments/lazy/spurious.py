"""Figure 5.3: a spurious cue, learnt lazily and not."""

from __future__ import annotations

from collections.abc import Iterator
from operator import sub
from typing import Any, Literal

import torch
from torch import nn

from tangentlab.data import Dataset, only_classes
from tangentlab.experiments import (
    Chapter,
    Cost,
    Lab,
    Minibatches,
    Picture,
    Results,
    experiment,
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, cross_entropy, for_trial, image_data
from tangentlab.experiments.lazy._cue_race import (
    CueSetting,
    Task,
    balanced_rows,
    draw_start,
    judge,
    judge_early,
    judge_ends,
    spread,
)
from tangentlab.experiments.lazy._race import Watched
from tangentlab.figures.style import panels
from tangentlab.linearized import add_corner_patch
from tangentlab.models import ResNet18

STARTS = {"scratch": "random start, no norms", "pretrained": "pretrained, frozen norms"}


@experiment
class SpuriousCue(CueSetting):
    """Accuracies with and without the cue, for alpha = 0.5, 1 and 100, from two starting points."""

    name = "spurious-cue"
    title = "A cue that is mostly right, learnt lazily and not"
    question = (
        "Automobiles and trucks, with a small 0 or 1 in the corner that agrees with the label 95 times out of 100. A network "
        "can learn the object or the digit. Which one first, and does it depend on whether the network learns "
        "features?\n\nAccuracy on images on which the digit is wrong is compared at equal accuracy on those on which it "
        "is right, in trainings that differ in nothing but alpha: 100 is nearly linearized, 1 is the usual training, 0.5 "
        "moves features faster."
    )
    chapter = Chapter.LAZY
    place = "§5.3.3, figure 5.3"
    claims = claims_of("spurious-cue")
    scales = {
        "smoke": {
            "images": 400,
            "per_group": 10,
            "updates": 6,
            "slow": 1,
            "pretraining": 3,
            "batch": 20,
            "base": 4,
            "pixels": 8,
            "patch": 3,
            "records": 3,
            "data": "digits",
            "core": (3, 8),
        },
        "paper": {"images": 50_000, "updates": 5_000, "base": 64, "pixels": 32, "patch": 12, "pretraining": 10_000},
    }
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.3, "desk": 25, "paper": 3_000}
    notes = {
        "desk": "CIFAR-10 automobile against truck with an MNIST digit stands for CelebA and Waterbirds; ResNet18 with 16 "
        "channels in its first stage, 16 x 16 pixels; pretrained on the other eight classes in place of ImageNet; 100 training "
        "images of each group, which is all that the smallest one has.",
        "paper": "on CIFAR-10 as well: spurious-celeba and spurious-waterbirds are the figure's own, from the user's files.",
    }

    data: Literal["digits", "cifar10"] = "cifar10"
    core: tuple[int, int] = (1, 9)
    images: int = 20_000
    pixels: int = 16
    patch: int = 6
    agreement: float = 0.95
    base: int = 16
    tuned_rate: float = 0.001
    updates: int = 400
    pretraining: int = 500

    def cost(self) -> Cost:
        """One step per update, pretraining included."""
        return Cost(2 * sum(self.lengths) + self.pretraining, 0.2, 1500)

    def run(self, lab: Lab) -> None:
        """Both starting points with every alpha."""
        everything = image_data(lab, self.data, self.pixels, for_trial(lab, self.images, 600))
        task = self._task(lab, *everything)
        runs: dict[str, list[list[Row]]] = {}
        for start, rate in zip(STARTS, (self.rate, self.tuned_rate), strict=True):
            runs[start] = self.follow(lab, task, 250, start, self._start(lab, start, everything[0]), rate)
        judge_early(lab, "5.3", *runs["scratch"])
        _, middle, high = runs["pretrained"]
        judge(lab, "5.3-pretrained", high, middle, "test with", "test without")
        judge_ends(lab, "5.3-end", spread, *runs["scratch"])
        judge_ends(lab, "5.3-advantage", sub, middle, high)

    def _task(self, lab: Lab, train_all: Dataset, test_all: Dataset) -> Task:
        """Two classes with a digit in the corner; on test images the digit says nothing."""
        digits = only_classes(lab.dataset("digits" if self.data == "digits" else "mnist"), 0, 1)
        generator = lab.generator("task")
        scale = float(train_all.inputs.max())
        bright = Dataset(digits.inputs * scale, digits.targets, digits.name, classes=2)
        watched: Watched = {}
        made = {}
        for name, part, agreement in (("train", train_all, self.agreement), ("test", test_all, 0.5)):
            data, cue = add_corner_patch(
                only_classes(part, *self.core), bright, agreement, generator, pixels=self.patch
            )
            rows, groups = balanced_rows(data.targets, cue, for_trial(lab, self.per_group, 10), generator)
            watched[name], made[name] = (data.take(rows), groups), data
        return made["train"], watched

    def _start(self, lab: Lab, start: str, data: Dataset) -> nn.Module:
        """A fresh network without norms, or one with norms trained on the other classes; ten outputs, two used."""
        options: dict[str, Any] = {"base": self.base, "in_channels": data.inputs.shape[1]}
        with lab.seeded("model", start):
            if start == "scratch":
                return ResNet18(2, norm=False, **options).eval()
            model = ResNet18(10, **options)
            head = nn.Linear(model.fc.in_features, 2)
        others = torch.isin(data.targets, torch.tensor(self.core), invert=True)
        rest = data.take(others.nonzero().squeeze(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=self.momentum)
        batches = Minibatches(rest, min(self.batch, len(rest)), lab.seed)
        train(model.train(), batches, cross_entropy, optimizer, self.pretraining, lab=lab, name="pretraining")
        model.fc = head
        return model.eval()

    def draw(self, results: Results) -> Iterator[Picture]:
        """The three panels of the figure for each start."""
        figure, axes = panels(3, 2, height=3.0)
        for row, (start, name) in enumerate(STARTS.items()):
            draw_start(axes[row], results, start, name, self.alphas)
        yield Picture(
            "figure-5.3",
            figure,
            "Left: balanced test accuracy against accuracy on training images with the cue. Middle and right: accuracy on "
            "images on which the cue is wrong against accuracy on those on which it is right, for training and test images. "
            "Top: from a random start, without norms. Bottom: pretrained, norms in evaluation mode. One line per seed.",
        )
