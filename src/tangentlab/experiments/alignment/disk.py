"""Figure 6.1 and the disk data (B.4): eigenfunctions of the tangent kernel on a plane turn towards a circle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab import NTK
from tangentlab.alignment import label_alignment
from tangentlab.data import disk, disk_labels, grid
from tangentlab.errors import NumericsError
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    Picture,
    Results,
    Training,
    experiment,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, follow
from tangentlab.figures.style import DIVERGING, GRAY, PALETTE, band, label, panels, step_axis
from tangentlab.linalg import lanczos
from tangentlab.models import MLP
from tangentlab.objects.fmat import center_kernel

RADIUS = (2 / np.pi) ** 0.5
MODES = 20
LABEL_MODES = 5
SHOWN_MODES = 6
STATED = 0.015
"""The paper's ratio of the 20th eigenvalue to the first at the start."""


def binary_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean binary cross-entropy of one logit, in nats."""
    inputs, targets = batch
    return nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], targets.to(inputs.dtype))


def top_modes(kernel: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues (count,) and eigenvectors (count, n) of a dense kernel."""
    found = lanczos(lambda rows: rows @ kernel, len(kernel), count, dtype=kernel.dtype, block_size=8)
    if not found.converged:
        raise NumericsError(f"The top {count} modes did not converge: {found.message}")
    return found.eigenvalues, found.eigenvectors


def label_share(vectors: Tensor, labels: Tensor) -> float:
    """Share of the centred labels' energy that lies in the span of these orthonormal vectors."""
    centred = labels.double() - labels.double().mean()
    return float((vectors.double() @ centred).square().sum() / centred.square().sum())


def levels(maps: Tensor) -> Tensor:
    """Maps (count, points) in 255 levels between minus and plus the largest entry of each: all that a picture shows."""
    return (127 * maps / maps.abs().amax(1, keepdim=True)).round().to(torch.int8)


@experiment
class DiskEigenfunctions(Experiment):
    """Top eigenfunctions of the centred tangent kernel on a grid, along full-batch gradient descent."""

    name = "disk-eigenfunctions"
    title = "Eigenfunctions of the tangent kernel learn the circle"
    question = (
        "The tangent kernel's eigenvalues are the learning rates of its eigenfunctions. If it adapts to the task, the "
        "functions with the largest rates should come to look like what is to be learned.\n\nA network of six hidden layers "
        "learns to tell the inside of a circle from its outside. Along the way its kernel is computed on a grid over the "
        "square and decomposed."
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.2, B.3.1, figure 6.1"
    claims = claims_of("disk-eigenfunctions")
    scales = {
        "smoke": {"examples": 60, "width": 16, "hidden": 2, "steps": 8, "side": 10, "shown": (0, 8)},
        "paper": {},
    }
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 5, "paper": 5}
    dropped = ("others/*",)
    notes = {
        "desk": "as in the paper: 500 points, six hidden layers of 256, a grid of 50 x 50. The paper does not tell the "
        "learning rate; here 0.05.",
    }

    examples: int = 500
    width: int = 256
    hidden: int = 6
    steps: int = 2000
    rate: float = 0.05
    side: int = 50
    shown: tuple[int, ...] = (0, 100, 250, 500, 1000, 2000)

    def cost(self) -> Cost:
        """One step per update."""
        return Cost(self.steps, 0.03, 900)

    def run(self, lab: Lab) -> None:
        """Train by full-batch gradient descent; decompose the kernel at the shown steps."""
        data = disk(self.examples, lab.generator("data"))
        points = grid(self.side)
        labels = disk_labels(points)
        with lab.seeded("model"):
            model = MLP((2, *[self.width] * self.hidden, 1))
        lab.save_array("data", torch.cat([data.inputs, data.targets[:, None].float()], 1))

        def measured(training: Training) -> Row:
            row, modes = self._measure(model, points, labels)
            with torch.no_grad():
                accuracy = ((model(data.inputs)[:, 0] > 0) == (data.targets > 0)).float().mean().item()
            for suffix, vectors in modes.items():
                lab.save_array(f"modes{suffix}-{training.step}", levels(vectors[:SHOWN_MODES]))
            return row | {"accuracy": accuracy}

        optimizer, batches = torch.optim.SGD(model.parameters(), lr=self.rate), Minibatches(data, None, lab.seed)
        follow(lab, "kernel", model, batches, optimizer, self.steps, self.shown, measured, loss=binary_loss)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """The kernel at the start and at the end."""
        rows = results.table("kernel", seed=seed).rows
        start, end = rows[0], rows[-1]
        return {
            "6.1-start": abs(start["ratio"] - STATED),
            "6.1-drop": end["ratio"] / start["ratio"],
            "6.1-end": end["ratio"],
            "6.1-structure": end["share"] - start["share"],
            "6.1-alignment": end["cka"] - start["cka"],
            "6.1-learned": end["accuracy"],
        }

    @staticmethod
    def _measure(model: nn.Module, points: Tensor, labels: Tensor) -> tuple[Row, dict[str, Tensor]]:
        """Numbers and eigenvectors of the centred kernel and, with the suffix `_raw`, of the kernel itself."""
        kernel = NTK(model, points, progress=False)
        row: Row = {"cka": label_alignment(kernel, labels), "ka": label_alignment(kernel, labels, None)}
        raw = kernel.matrix().double()
        modes = {}
        for suffix, matrix in (("", center_kernel(raw[None, :, None, :], "global")[0, :, 0]), ("_raw", raw)):
            values, modes[suffix] = top_modes(matrix, MODES)
            row[f"ratio{suffix}"] = float(values[-1] / values[0])
            row[f"share{suffix}"] = label_share(modes[suffix][:LABEL_MODES], labels)
        return row, modes

    def draw(self, results: Results) -> Iterator[Picture]:
        """Eigenfunctions as maps, the curves, and the data."""
        yield _maps(results, self.shown, "", "figure-6.1")
        yield _maps(results, self.shown, "_raw", "figure-6.1-uncentred")
        yield _curves(results, self.steps)
        yield _data(results)


def _maps(results: Results, shown: tuple[int, ...], suffix: str, name: str) -> Picture:
    found = set(results.table("kernel", seed=results.seeds[0]).distinct("step"))
    steps = [step for step in shown if step in found] or sorted(found)
    figure, axes = panels(SHOWN_MODES, len(steps), width=1.45, height=1.5)
    for row, step in enumerate(steps):
        maps = results.array(f"modes{suffix}-{step}")
        side = round(maps.shape[1] ** 0.5)
        for column in range(SHOWN_MODES):
            _map(axes[row, column], maps[column].reshape(side, side))
            if row == 0:
                axes[row, column].set_title(f"mode {column + 1}")
        axes[row, 0].set_ylabel(f"step {step:,}")
    return Picture(
        name,
        figure,
        f"The first eigenfunctions of the tangent kernel, {'not ' if suffix else ''}centred, over the square [−1, 1]², in "
        "decreasing order of their eigenvalue (columns), at points of the training (rows). Each map has its own scale, "
        "symmetric around 0. The line is the circle to be learned. First seed.",
    )


def _map(axes: Any, values: Any) -> None:
    reach = float(np.abs(values).max()) or 1.0
    axes.imshow(values.T, extent=(-1, 1, -1, 1), origin="lower", cmap=DIVERGING, vmin=-reach, vmax=reach)
    angle = np.linspace(0, 2 * np.pi, 100)
    axes.plot(RADIUS * np.cos(angle), RADIUS * np.sin(angle), color="black", linewidth=0.7)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)


def _curves(results: Results, last: int) -> Picture:
    figure, ((left, middle, right),) = panels(3)
    shown = ((left, "ratio", "ratio_raw"), (middle, "cka", "ka"), (right, "share", "share_raw"))
    for color, (axes, centred, raw) in zip(PALETTE, shown, strict=False):
        options: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3}
        band(axes, results.curves("kernel", "step", centred), "centred", linestyle="-", **options)
        band(axes, results.curves("kernel", "step", raw), "not centred", linestyle="--", **options)
    left.set_yscale("log")
    for axes in (left, middle, right):
        step_axis(axes, last, 50)
    label(left, "step", "λ₂₀ / λ₁", "spectrum")
    label(middle, "step", "cosine with the label kernel", "alignment")
    label(right, "step", "share of the labels in 5 modes", "structure")
    for axes in (left, middle, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return Picture(
        "through-training",
        figure,
        "Left: the 20th eigenvalue over the first. Middle: alignment of the kernel with the labels on the grid. Right: share "
        "of the centred labels' energy in the top five eigenfunctions. Mean over seeds, all seeds as a band.",
    )


def _data(results: Results) -> Picture:
    points = results.array("data")
    figure, ((axes,),) = panels(width=3.4)
    for value, name, color, marker in ((1, "inside", PALETTE[0], "o"), (0, "outside", PALETTE[1], "s")):
        chosen = points[points[:, 2] == value]
        axes.plot(chosen[:, 0], chosen[:, 1], marker, color=color, markersize=3, alpha=0.8, label=name)
    angle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(RADIUS * np.cos(angle), RADIUS * np.sin(angle), color=GRAY, linewidth=1)
    axes.set_aspect("equal")
    label(axes, "first coordinate", "second coordinate")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return Picture(
        "figure-b.4", figure, "The disk data: points uniform in a square; the disk covers half of it. First seed."
    )
