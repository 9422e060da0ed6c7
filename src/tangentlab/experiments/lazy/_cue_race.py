"""Trainings on images with a cue that differ in alpha, watched on balanced groups with and without the cue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from tangentlab.data import Dataset
from tangentlab.errors import InputError
from tangentlab.experiments import Experiment, Lab, Results
from tangentlab.experiments._images import Row
from tangentlab.experiments.lazy._race import Race, Watched
from tangentlab.figures.style import GRAY, PALETTE, label
from tangentlab.linearized import Groups, at_progress, cue_groups, with_and_without

Task = tuple[Dataset, Watched]
FITTED = 0.95
"""Balanced accuracy on training images of a training that came to its end."""
LEVELS = (0.7, 0.75, 0.8, 0.85, 0.9)
SHOWN = {
    "balanced test accuracy": ("train with", "test balanced"),
    "training images": ("train with", "train without"),
    "test images": ("test with", "test without"),
}


def balanced_rows(labels: Tensor, cue: Tensor, per_group: int, generator: Generator) -> tuple[Tensor, Groups]:
    """Rows of as many images of each of the four groups, and the groups as places in this list.

    `per_group` of each, or as many as the smallest group has.
    """
    every = cue_groups(labels, cue)
    if empty := [name for name, size in every.sizes.items() if not size]:
        raise InputError(f"No image with {' nor with '.join(empty)} is among these {len(labels)}: take more images.")
    four = every.balanced(per_group, generator, cap=True)
    sizes = list(four.sizes.values())
    places = torch.arange(sum(sizes)).split(sizes)
    return torch.cat(list(four.rows.values())), Groups(dict(zip(four.names, places, strict=True)))


def recorded_steps(steps: int, records: int) -> list[int]:
    """0 and at most `records` steps at equal ratios: the cue is learnt within few updates."""
    return np.unique(np.append(0, np.geomspace(1, max(1, steps), records).round()).astype(int)).tolist()


@dataclass(frozen=True)
class CueRace(Race):
    """What the trainings share: images with a cue, and balanced sets of the four groups of these, by name."""

    records: int

    def measured(self, name: str, groups: Groups, logits: Tensor, targets: Tensor) -> Row:
        """Accuracies of all groups, with and without the cue, and of all images, `<name> balanced`."""
        right = (logits.argmax(1) == targets).double()
        means = groups.means(right) | with_and_without(groups).means(right) | {"balanced": float(right.mean())}
        return {f"{name} {group}": value for group, value in means.items()}

    def follow(self, lab: Lab, start: str, alpha: float, model: nn.Module, rate: float, updates: int) -> list[Row]:
        """One training of f_alpha, logged to the table "along"."""
        points = recorded_steps(lab.capped(updates), self.records)
        name, facts = f"{start}, alpha {alpha:g}", {"start": start, "alpha": alpha}
        return self.trained(lab, "along", model, alpha, rate, updates, points, name=name, facts=facts)


@dataclass(frozen=True)
class CueSetting(Experiment):
    """An experiment that races three alphas on images with a cue, `per_group` of each group of which are watched."""

    images: int = 2_000
    per_group: int = 180
    alphas: tuple[float, float, float] = (0.5, 1.0, 100.0)
    batch: int = 100
    rate: float = 0.01
    momentum: float = 0.9
    updates: int = 200
    slow: int = 3
    records: int = 50

    @property
    def lengths(self) -> list[int]:
        """Updates of the trainings; linearized networks, alpha > 1, get `slow` times as many."""
        return [self.updates * (self.slow if alpha > 1 else 1) for alpha in self.alphas]

    def follow(self, lab: Lab, task: Task, part: int, start: str, model: nn.Module, rate: float) -> list[list[Row]]:
        """Rows of the trainings with every alpha from one start; `part` images at a time are measured."""
        race = CueRace(*task, self.batch, self.momentum, part, self.records)
        pairs = zip(self.alphas, self.lengths, strict=True)
        return [race.follow(lab, start, alpha, model, rate, updates) for alpha, updates in pairs]


def difference(one: list[Row], other: list[Row], progress: str, value: str) -> float:
    """Mean over the levels that both reach of the difference of two runs at equal progress."""
    found = [
        at_progress([row[progress] for row in rows], [row[value] for row in rows], LEVELS, falling=False)
        for rows in (one, other)
    ]
    gaps = found[0] - found[1]
    return float(np.nanmean(gaps)) if np.isfinite(gaps).any() else float("nan")


def judge(lab: Lab, claim: str, one: list[Row], other: list[Row], progress: str, value: str) -> None:
    """Measure the claim by `difference`, or say that the runs have no progress in common."""
    found = difference(one, other, progress, value)
    if np.isnan(found):
        lab.not_tested(claim, "the trainings have no accuracy between 70 and 90 % in common")
    else:
        lab.measure(claim, found)


def judge_early(lab: Lab, prefix: str, low: list[Row], middle: list[Row], high: list[Row]) -> None:
    """The four claims on the phase in which the cue is learnt, from the trainings with three alphas."""
    judge(lab, f"{prefix}-train", high, middle, "train with", "train without")
    judge(lab, f"{prefix}-test", high, middle, "test with", "test without")
    judge(lab, f"{prefix}-balanced", high, middle, "train with", "test balanced")
    judge(lab, f"{prefix}-half", middle, low, "test with", "test without")


def judge_ends(lab: Lab, claim: str, measure: Callable[..., float], *runs: list[Row]) -> None:
    """Measure a claim on the balanced test accuracies at the end, where all trainings came to one."""
    ends, fitted = ([rows[-1][f"{name} balanced"] for rows in runs] for name in ("test", "train"))
    if min(fitted) < FITTED:
        reached = f"{min(fitted):.2f} of the training images"
        lab.not_tested(
            claim, f"a training stops at {reached}, all groups alike; there it would be {measure(*ends):.3f}"
        )
    else:
        lab.measure(claim, measure(*ends))


def spread(*ends: float) -> float:
    """Highest minus lowest."""
    return max(ends) - min(ends)


def draw_start(axes: NDArray[Any], results: Results, start: str, name: str, alphas: Sequence[float]) -> None:
    """The three panels of figure 5.3 for one starting point; a line per seed."""
    for place, alpha in enumerate(alphas):
        for number, seed in enumerate(results.seeds):
            rows = results.table("along", start=start, alpha=alpha, seed=seed)
            style = {"color": PALETTE[place], "label": None if number else f"α = {alpha:g}", "linewidth": 1.4}
            for panel, (x, y) in zip(axes, SHOWN.values(), strict=True):
                panel.plot(rows[x], rows[y], **style)
    for panel, title in zip(axes, SHOWN, strict=True):
        _finish(panel, title, name)


def _finish(panel: Axes, title: str, start: str) -> None:
    vertical = "accuracy" if title.startswith("balanced") else "accuracy without the cue"
    panel.plot([0, 1], [0, 1], color=GRAY, linewidth=0.8, linestyle=":")
    panel.set(xlim=(0.35, 1.02), ylim=(-0.02, 1.02))
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8, columnspacing=1.0)
    label(panel, "accuracy with the cue", vertical, f"{title}\n{start}")
