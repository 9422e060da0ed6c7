"""Figure 5.3: a spurious cue, learnt lazily and not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from tangentlab.data import Dataset, only_classes
from tangentlab.experiments import (
    Batches,
    Chapter,
    Claim,
    Cost,
    Experiment,
    Lab,
    Picture,
    Results,
    Training,
    experiment,
    train,
)
from tangentlab.experiments._images import Points, Row, cross_entropy, image_data
from tangentlab.experiments.linearized_networks._recipe import for_trial
from tangentlab.linearized import AlphaModel, Groups, add_corner_patch, at_progress, cue_groups, with_and_without
from tangentlab.models import ResNet18
from tangentlab.report.style import PALETTE, label, panels

STARTS = {"scratch": "random start, no norms", "pretrained": "pretrained, frozen norms"}
LEVELS = (0.7, 0.75, 0.8, 0.85, 0.9)
SECTION = "§5.3.3, figure 5.3"


@dataclass(frozen=True)
class Task:
    """Training images, and the balanced groups that are watched: (images, groups of their rows) by name."""

    train: Dataset
    watched: dict[str, tuple[Dataset, Groups]]


def _claim(kind: str, sentence: str, measured: str) -> Claim:
    return Claim(f"5.3-{kind}", sentence, measured, ">", 0.0, SECTION)


@experiment
class SpuriousCue(Experiment):
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
    place = SECTION
    claims = (
        _claim(
            "train",
            "While the cue is learnt, the linearized network is better on training images without it.",
            "accuracy without the cue at equal accuracy with it (70 to 90 %), alpha = 100 minus 1, training images, no norms",
        ),
        _claim(
            "test",
            "While the cue is learnt, the linearized network is better on test images without it.",
            "the same on test images",
        ),
        _claim(
            "balanced",
            "The linearized network has the higher balanced test accuracy in this phase.",
            "balanced test accuracy at equal training accuracy with the cue, alpha = 100 minus 1, no norms",
        ),
        _claim(
            "half",
            "With alpha below 1 the cue comes before the object even more.",
            "accuracy without the cue at equal accuracy with it, alpha = 1 minus 0.5, test images, no norms",
        ),
        _claim(
            "pretrained",
            "The linearized network is better without the cue from a pretrained start, too, with norms in evaluation mode.",
            "accuracy without the cue at equal accuracy with it, alpha = 100 minus 1, test images, pretrained",
        ),
    )
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
    seeds = {"smoke": 1, "desk": 1, "paper": 3}
    minutes = {"smoke": 0.3, "desk": 15, "paper": 3_000}
    notes = {
        "desk": "CIFAR-10 automobile against truck with an MNIST digit stands for CelebA and Waterbirds; ResNet18 with 16 "
        "channels in its first stage, 16 x 16 pixels; pretrained on the other eight classes in place of ImageNet. One seed.",
        "paper": "on CIFAR-10 as well: the papers' own images need the user's files.",
    }

    data: Literal["digits", "cifar10"] = "cifar10"
    core: tuple[int, int] = (1, 9)
    images: int = 20_000
    pixels: int = 16
    patch: int = 6
    agreement: float = 0.95
    per_group: int = 180
    alphas: tuple[float, ...] = (0.5, 1.0, 100.0)
    base: int = 16
    batch: int = 100
    rate: float = 0.01
    tuned_rate: float = 0.001
    momentum: float = 0.9
    updates: int = 400
    slow: int = 3
    pretraining: int = 500
    records: int = 50

    def length(self, alpha: float) -> int:
        """Updates; a linearized network gets more of them."""
        return self.updates * (self.slow if alpha > 1 else 1)

    def cost(self) -> Cost:
        """One step per update, pretraining included."""
        return Cost(2 * sum(self.length(alpha) for alpha in self.alphas) + self.pretraining, 0.2, 1500)

    def run(self, lab: Lab) -> None:
        """Both starting points with every alpha."""
        everything = image_data(lab, self.data, self.pixels, for_trial(lab, self.images, 2_000))
        task = self._task(lab, *everything)
        runs: dict[tuple[str, float], list[Row]] = {}
        for start in STARTS:
            model = self._start(lab, start, everything[0])
            for alpha in self.alphas:
                runs[start, alpha] = self._training(lab, start, alpha, model, task)
        low, middle, high = self.alphas
        pairs = {
            "train": ("scratch", high, middle, "train without"),
            "test": ("scratch", high, middle, "test without"),
            "balanced": ("scratch", high, middle, "test balanced"),
            "half": ("scratch", middle, low, "test without"),
            "pretrained": ("pretrained", high, middle, "test without"),
        }
        for claim, (start, one, other, key) in pairs.items():
            side = "train with" if claim in ("train", "balanced") else "test with"
            value = _difference(runs[start, one], runs[start, other], side, key)
            if np.isnan(value):
                lab.not_tested(f"5.3-{claim}", "the trainings have no accuracy between 70 and 90 % in common")
            else:
                lab.measure(f"5.3-{claim}", value)

    def _task(self, lab: Lab, train_all: Dataset, test_all: Dataset) -> Task:
        """Two classes with a digit in the corner; on test images the digit says nothing."""
        digits = only_classes(lab.dataset("digits" if self.data == "digits" else "mnist"), 0, 1)
        generator = lab.generator("task")
        scale = float(train_all.inputs.max())
        bright = Dataset(digits.inputs * scale, digits.targets, digits.name, classes=2)
        watched, made = {}, {}
        for name, part, agreement in (("train", train_all, self.agreement), ("test", test_all, 0.5)):
            data, cue = add_corner_patch(
                only_classes(part, *self.core), bright, agreement, generator, pixels=self.patch
            )
            four = cue_groups(data.targets, cue).balanced(self.per_group, generator, cap=True)
            rows = torch.cat(list(four.rows.values()))
            place = {int(row): number for number, row in enumerate(rows)}
            moved = {n: torch.tensor([place[int(row)] for row in part]) for n, part in four.rows.items()}
            watched[name], made[name] = (data.take(rows), with_and_without(Groups(moved))), data
        return Task(made["train"], watched)

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
        batches = Batches(rest, min(self.batch, len(rest)), lab.seed)
        train(model.train(), batches, cross_entropy, optimizer, self.pretraining, lab=lab, name="pretraining")
        model.fc = head
        return model.eval()

    def _training(self, lab: Lab, start: str, alpha: float, model: nn.Module, task: Task) -> list[Row]:
        """One training of f_alpha; accuracies of all groups along it."""
        knob = AlphaModel(model, alpha)
        cached = {name: knob.initial_outputs(data.inputs) for name, (data, _) in task.watched.items()}
        triple = (*task.train, knob.initial_outputs(task.train.inputs))
        steps = lab.capped(self.length(alpha))

        def record(training: Training) -> list[Row]:
            row: Row = {"start": start, "alpha": alpha, "step": training.step}
            for name, (data, groups) in task.watched.items():
                right = _right(knob, data, cached[name])
                row |= {f"{name} {group}": value for group, value in groups.means(right).items()}
                row[f"{name} balanced"] = float(right.mean())
            lab.log("along", **row)
            return [row]

        points = Points(np.unique(np.linspace(0, steps, self.records).round().astype(int)).tolist(), record)
        eta = self.rate if start == "scratch" else self.tuned_rate
        optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(eta), momentum=self.momentum)
        batches = Batches(triple, min(self.batch, len(task.train)), lab.seed)
        knob.eval()  # norms, where there are any, stay at their statistics
        train(
            knob, batches, _cached_loss, optimizer, steps, lab=lab, name=f"{start}, alpha {alpha:g}", callbacks=[points]
        )
        return points.rows

    def draw(self, results: Results) -> Iterator[Picture]:
        """The three panels of the figure for each start."""
        figure, axes = panels(3, 2, height=3.0)
        for row, (start, name) in enumerate(STARTS.items()):
            for place, alpha in enumerate(self.alphas):
                rows = results.table("along", start=start, alpha=alpha, seed=results.seeds[0])
                style = {"color": PALETTE[place], "label": f"α = {alpha:g}", "linewidth": 1.4}
                for panel, (x, y) in zip(axes[row], _SHOWN.values(), strict=True):
                    panel.plot(rows[x], rows[y], **style)
            for panel, title in zip(axes[row], _SHOWN, strict=True):
                _finish(panel, title, name)
        yield Picture(
            "figure-5.3",
            figure,
            "Left: balanced test accuracy against accuracy on training images with the cue. Middle and right: accuracy on "
            "images on which the cue is wrong against accuracy on those on which it is right, for training and test images. "
            "Top: from a random start, without norms. Bottom: pretrained, norms in evaluation mode. First seed.",
        )


_SHOWN = {
    "balanced test accuracy": ("train with", "test balanced"),
    "training images": ("train with", "train without"),
    "test images": ("test with", "test without"),
}


def _finish(panel: Axes, title: str, start: str) -> None:
    vertical = "accuracy" if title.startswith("balanced") else "accuracy without the cue"
    panel.plot([0, 1], [0, 1], color="#808793", linewidth=0.8, linestyle=":")
    panel.set(xlim=(0.35, 1.02), ylim=(-0.02, 1.02))
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8, columnspacing=1.0)
    label(panel, "accuracy with the cue", vertical, f"{title}\n{start}")


def _cached_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets, initial = batch
    return nn.functional.cross_entropy(model(inputs, initial=initial), targets)


@torch.no_grad()
def _right(knob: AlphaModel, data: Dataset, initial: Tensor) -> Tensor:
    """1 where the answer is right, (n,)."""
    parts = zip(data.inputs.split(250), initial.split(250), strict=True)
    return (torch.cat([knob(x, initial=start).argmax(1) for x, start in parts]) == data.targets).double()


def _difference(one: list[Row], other: list[Row], progress: str, value: str) -> float:
    """Mean over the levels that both reach of the difference of two runs at equal progress."""
    found = [
        at_progress([row[progress] for row in rows], [row[value] for row in rows], LEVELS, falling=False)
        for rows in (one, other)
    ]
    gaps = found[0] - found[1]
    return float(np.nanmean(gaps)) if np.isfinite(gaps).any() else float("nan")
