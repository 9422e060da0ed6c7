"""The panels of figure 4.3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from tangentlab.experiments import Picture, Results
from tangentlab.experiments._images import Row
from tangentlab.experiments.natural_gradient._optimizer_race import (
    DIVERGED,
    Competitor,
    draw_envelopes,
    logarithmic,
    logged,
)
from tangentlab.figures.style import heatmap, label, legend_outside, panels, quantity


def draw(results: Results, methods: Sequence[Competitor]) -> Iterator[Picture]:
    """Loss per epoch, loss per second, validation; then the sensitivity of each method."""
    rows = logged(results, "grid")
    figure, ((left, middle, right),) = panels(3)
    draw_envelopes(left, rows, methods, "epoch")
    draw_envelopes(middle, rows, methods, "seconds")
    draw_envelopes(right, rows, methods, "epoch", key="valid")
    logarithmic(left, middle, right)
    label(left, "epoch", quantity("training loss", "nats"), "best over the grid")
    label(middle, quantity("time in updates", "s"), quantity("training loss", "nats"), "selected setting")
    label(right, "epoch", quantity("validation loss", "nats"), "best over the grid")
    legend_outside(figure, left, 4)
    yield Picture(
        "figure-4.3",
        figure,
        "Reconstruction loss of the auto-encoder. Left: at each epoch the best training loss over all settings of a "
        "method. Middle: the setting with the best final training loss, against the time spent in updates. Right: the "
        "best validation loss over all settings at each epoch.",
    )
    yield _sensitivity(rows, methods)


def _sensitivity(rows: list[Row], methods: Sequence[Competitor]) -> Picture:
    last = max(row["epoch"] for row in rows)
    ends = [row for row in rows if row["epoch"] == last and row["train"] < DIVERGED]
    low, high = min(row["train"] for row in ends), float(np.quantile([row["train"] for row in ends], 0.8))
    columns = -(-len(methods) // 2)
    figure, axes = panels(columns, 2, width=3.3, height=2.9)
    for panel in axes.flatten()[len(methods) :]:
        panel.set_visible(False)
    for panel, method in zip(axes.flatten(), methods, strict=False):
        _grid(panel, [row for row in rows if row["method"] == method.key and row["epoch"] == last], method, low, high)
    return Picture(
        "figure-4.3-sensitivity",
        figure,
        "Training loss after the last epoch for every setting of every method; white where the training diverged. All "
        "panels share one logarithmic scale, which ends at the loss of the worst fifth of all settings.",
    )


def _grid(panel: Axes, rows: list[Row], method: Competitor, low: float, high: float) -> None:
    first = sorted({row["first"] for row in rows}, reverse=True)
    second = sorted({row["second"] for row in rows}, reverse=True)
    values = np.full((len(first), len(second)), np.nan)
    for row in rows:
        if row["train"] < DIVERGED:
            values[first.index(row["first"]), second.index(row["second"])] = row["train"]
    heatmap(panel, values, "loss [nats]", norm=LogNorm(low, max(high, low * 1.001)))
    panel.set_xticks(range(len(second)), [f"{value:g}" for value in second], fontsize=7)
    panel.set_yticks(range(len(first)), [f"{value:g}" for value in first])
    label(panel, method.second, method.first, method.name)
