"""What experiments on sums of sines share: the common network, its loss, when a frequency is learnt, maps over steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor, nn

from tangentlab.data import Dataset
from tangentlab.experiments import Lab, Minibatches, Table, Training
from tangentlab.experiments._images import Row, follow
from tangentlab.figures.style import heatmap, label
from tangentlab.models import MLP
from tangentlab.spectral import amplitudes, clip_weights

Array = NDArray[np.float64]


def common_network(lab: Lab, inputs: int, width: int, layers: int, *names: str | int) -> MLP:
    """Fully connected, ReLU, `layers` linear layers with `width` units between them, one output, PyTorch's initialization."""
    with lab.seeded("model", *names):
        return MLP((inputs, *[width] * (layers - 1), 1))


def squared_error(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean of `(f(x) - y)^2`."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def regress(
    lab: Lab,
    table: str,
    model: nn.Module,
    data: Dataset,
    course: tuple[float, int, int],
    look: Callable[[Training], Row],
    name: str,
    *,
    largest: float | None = None,
    **facts: Any,
) -> None:
    """Full-batch Adam on the squared error, with a row of `table` every so many steps.

    Args:
        course: learning rate, steps, and steps from row to row.
        look: what a row holds besides `facts` and the step.
        name: of the training, for its checkpoints.
        largest: clip all weights to this absolute value after every update.
    """
    rate, steps, period = course
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    if largest is not None:
        clip_weights(optimizer, largest)
    batches, at = Minibatches(data, None, lab.seed), range(0, steps + 1, period)
    follow(lab, table, model, batches, optimizer, steps, at, look, name=name, loss=squared_error, **facts)


@torch.no_grad()
def learnt_amplitudes(
    model: nn.Module, inputs: Tensor, frequencies: Sequence[int], factors: Sequence[float]
) -> list[float]:
    """Amplitudes of the network over those of the target."""
    found = amplitudes(model(inputs).flatten(), frequencies)
    return (found / torch.tensor(factors, dtype=torch.float64)).tolist()


def first_steps(steps: Array, normalized: Array, threshold: float) -> Array:
    """For every column of `(steps, frequencies)` the first step at which it reaches the threshold, NaN where it never does."""
    reached = normalized >= threshold
    return np.where(reached.any(0), steps[reached.argmax(0)], np.nan)


def columns(table: Table, name: str) -> tuple[Array, Array]:
    """The steps of a table `(s,)` and a column of lists as a matrix `(s, entries)`, in the order of the steps."""
    rows = sorted(table.rows, key=lambda row: row["step"])
    return np.array([row["step"] for row in rows], dtype=float), np.array([row[name] for row in rows], dtype=float)


def mean_map(table: Table, name: str, seeds: Sequence[int]) -> tuple[Array, Array]:
    """Steps and the mean over seeds of a column of lists, at the steps that all seeds have."""
    parts = [columns(table.where(seed=seed), name) for seed in seeds]
    common = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in parts)))
    kept = [values[np.isin(steps, common)] for steps, values in parts]
    return np.array(common), np.mean(kept, axis=0)


def map_over_steps(
    axes: Axes, steps: Array, values: Array, places: Sequence[float], title: str, scale: str = "learnt share"
) -> None:
    """Frequencies to the right, steps upwards, magnitudes as colours from 0 to 1."""
    count = len(places)
    heatmap(
        axes,
        values,
        scale,
        origin="lower",
        vmin=0,
        vmax=1,
        extent=(-0.5, count - 0.5, 0, max(float(steps[-1]), 1.0)),
    )
    shown = range(0, count, max(1, count // 5))
    axes.set_xticks(list(shown), [f"{places[place]:g}" for place in shown])
    label(axes, "frequency", "training step", title)
