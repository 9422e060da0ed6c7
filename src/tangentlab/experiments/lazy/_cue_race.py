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
from tangentlab.experiments import Batches, Lab, Results, Training, train
from tangentlab.experiments._images import Points, Row
from tangentlab.figures.style import GRAY, PALETTE, label
from tangentlab.linearized import AlphaModel, Groups, at_progress, cue_groups, with_and_without

FITTED = 0.95
"""Balanced accuracy on training images of a training that came to its end."""
LEVELS = (0.7, 0.75, 0.8, 0.85, 0.9)
SHOWN = {
    "balanced test accuracy": ("train with", "test balanced"),
    "training images": ("train with", "train without"),
    "test images": ("test with", "test without"),
}


@dataclass(frozen=True)
class Task:
    """Training images, and the balanced sets that are watched: (images, the four groups of their rows) by name."""

    train: Dataset
    watched: dict[str, tuple[Dataset, Groups]]


def balanced_rows(labels: Tensor, cue: Tensor, per_group: int, generator: Generator) -> tuple[Tensor, Groups]:
    """Rows of as many images of each of the four groups, and the groups as places in this list.

    ``per_group`` of each, or as many as the smallest group has.
    """
    every = cue_groups(labels, cue)
    if empty := [name for name, size in every.sizes.items() if not size]:
        raise InputError(f"no image with {' nor with '.join(empty)} is among these {len(labels)}: take more images")
    four = every.balanced(per_group, generator, cap=True)
    sizes = list(four.sizes.values())
    places = torch.arange(sum(sizes)).split(sizes)
    return torch.cat(list(four.rows.values())), Groups(dict(zip(four.names, places, strict=True)))


def lengths(alphas: Sequence[float], updates: int, slow: int) -> list[int]:
    """Updates of the trainings; linearized networks, alpha > 1, get ``slow`` times as many."""
    return [updates * (slow if alpha > 1 else 1) for alpha in alphas]


def recorded_steps(steps: int, records: int) -> list[int]:
    """0 and at most ``records`` steps at equal ratios: the cue is learnt within few updates."""
    return np.unique(np.append(0, np.geomspace(1, max(1, steps), records).round()).astype(int)).tolist()


@dataclass(frozen=True)
class CueRace:
    """What the trainings share; ``part`` images at a time are measured."""

    task: Task
    batch: int
    momentum: float
    records: int
    part: int = 250

    def follow(self, lab: Lab, start: str, alpha: float, model: nn.Module, rate: float, updates: int) -> list[Row]:
        """One training of f_alpha; accuracies of all groups along it, logged to the table "along"."""
        knob = AlphaModel(model, alpha)
        known = {name: self._initial(lab, knob, data) for name, (data, _) in self.task.watched.items()}
        triple = (*self.task.train, self._initial(lab, knob, self.task.train))
        steps = lab.capped(updates)

        def record(training: Training) -> list[Row]:
            row: Row = {"start": start, "alpha": alpha, "step": training.step}
            for name, (data, groups) in self.task.watched.items():
                right = self._right(knob, data, known[name])
                means = groups.means(right) | with_and_without(groups).means(right)
                row |= {f"{name} {group}": value for group, value in means.items()}
                row[f"{name} balanced"] = float(right.mean())
            lab.log("along", **row)
            return [row]

        points = Points(recorded_steps(steps, self.records), record)
        optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(rate), momentum=self.momentum)
        batches = Batches(triple, min(self.batch, len(self.task.train)), lab.seed)
        knob.eval()  # norms, where there are any, stay at their statistics
        name = f"{start}, alpha {alpha:g}"
        train(knob, batches, _loss, optimizer, steps, lab=lab, name=name, callbacks=[points])
        return points.rows

    def _initial(self, lab: Lab, knob: AlphaModel, data: Dataset) -> Tensor:
        """Outputs of the network at its start, (n, 2)."""
        found = []
        for place in range(0, len(data), self.part):
            lab.progress(f"outputs at the start, {data.split}", place, len(data))
            found.append(knob.initial_outputs(data.inputs[place : place + self.part]))
        return torch.cat(found)

    @torch.no_grad()
    def _right(self, knob: AlphaModel, data: Dataset, initial: Tensor) -> Tensor:
        """1 where the answer is right, (n,)."""
        parts = zip(data.inputs.split(self.part), initial.split(self.part), strict=True)
        return (torch.cat([knob(x, initial=start).argmax(1) for x, start in parts]) == data.targets).double()


def _loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets, initial = batch
    return nn.functional.cross_entropy(model(inputs, initial=initial), targets)


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
