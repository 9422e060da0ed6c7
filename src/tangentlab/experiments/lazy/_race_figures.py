"""Figures of trainings at equal progress: quantities and linearity metrics over a loss that falls to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tangentlab.experiments import Results
from tangentlab.experiments.lazy._race import METRICS, equal_progress, own_levels
from tangentlab.figures.style import PALETTE, band, label, panels

COLORS = (PALETTE[1], PALETTE[0], PALETTE[2], PALETTE[3])
DOTS = "dots: the lowest loss that all seeds came to"
STYLES = ("-", "--", ":", "-.")


def two_panels(columns: int = 2) -> tuple[Figure, NDArray[Any]]:
    """Wide panels with room for legends below."""
    return panels(columns, width=4.9, height=3.7)


def draw_runs(
    axes: Axes,
    results: Results,
    runs: Sequence[str],
    progress: str,
    key: str,
    name: str,
    color: Any,
    styles: Sequence[str] = STYLES,
) -> None:
    """One quantity in several trainings, each as far as all of its seeds have come; `name` goes before the run's."""
    for run, style in zip(runs, styles, strict=False):
        levels = own_levels(results, run, progress)
        curves = equal_progress(results, run, progress, key, levels)
        said = run.replace("alpha", "α =")
        dot: dict[str, Any] = {"marker": "o", "markersize": 4, "markevery": [-1]}  # see `DOTS`
        band(axes, curves, f"{name}, {said}" if name else said, color=color, linestyle=style, **dot)


def draw_metrics(axes: Axes, results: Results, runs: Sequence[str], progress: str, x: str) -> None:
    """The three linearity metrics of several trainings."""
    for color, (key, name) in zip(COLORS, METRICS.items(), strict=False):
        draw_runs(axes, results, runs, progress, key, name, color)
    axes.set_ylim(None, 1.02)
    finish(axes, x, "against the start", "linearity")


def finish(axes: Axes, x: str, y: str, title: str) -> None:
    """Names, a loss that falls to the right, the legend below."""
    axes.invert_xaxis()
    label(axes, x, y, title)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, borderaxespad=0.0, fontsize=8, columnspacing=1.0
    )


def sequential(count: int) -> list[Any]:
    """Colours from hard to easy."""
    from matplotlib import colormaps

    return [colormaps["viridis"](place) for place in np.linspace(0, 0.92, count)]
