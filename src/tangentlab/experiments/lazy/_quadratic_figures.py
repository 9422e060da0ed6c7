"""What figures 5.4 and C.9 share: three data sets in both regimes, over time and at equal progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tangentlab.experiments import Results
from tangentlab.figures.curves import Curves
from tangentlab.figures.style import PALETTE, band, label, panels
from tangentlab.linearized.progress import at_progress
from tangentlab.linearized.quadratic import Regime
from tangentlab.linearized.quadratic_examples import QuadraticExample

Array = NDArray[Any]
REGIMES: tuple[Regime, Regime] = ("full", "linearized")
TITLES = {"order": "one mode per example", "noise": "wrong labels", "spurious": "a spurious feature"}
CLEAN_LOSS, TOTAL_LOSS = 0.1, 0.3
"""The progress at which groups are compared; all losses are 1/2 (f - y)^2 and start near 1/2."""


def gap(name: str, curves: Mapping[Regime, Mapping[str, Array]]) -> float:
    """How much further behind the few are in the full model than in the linearized one, at equal progress.

    Wrong labels: their loss when the clean loss is 0.1. A spurious feature: the minority's loss minus the majority's when
    the total loss is 0.3. NaN where a training never came there.
    """
    found = {}
    for regime, lines in curves.items():
        if name.startswith("noise"):
            found[regime] = float(at_progress(lines["clean"], lines["noisy"], [CLEAN_LOSS])[0])
        else:
            difference = lines["minority"] - lines["majority"]
            found[regime] = float(at_progress(lines["total"], difference, [TOTAL_LOSS])[0])
    return found["full"] - found["linearized"]


def over_time(results: Results, examples: Mapping[str, QuadraticExample], clock: str) -> Figure:
    """Two rows of three panels: the published figure's numbers above, those with larger effects below.

    Seeds have saved `<data set>-<regime>`: times and a row for every group.
    """
    figure, axes = panels(3, 2, height=2.9)
    for row, ending in enumerate(("-figure", "")):
        for column, (kind, title) in enumerate(TITLES.items()):
            name = f"{kind}{ending}"
            if _there(results, name):
                _panel(axes[row, column], results, name, list(examples[name].groups))
            loss = "loss / loss at the start" if column == 0 else "loss"
            label(axes[row, column], clock, loss, title)
    return figure


def _there(results: Results, name: str) -> bool:
    """Whether the data set was run in both regimes: the trial of a run may end before."""
    return all(results.has_arrays(f"{name}-{regime}") for regime in REGIMES)


def _panel(axes: Axes, results: Results, name: str, groups: list[str]) -> None:
    for regime, style in zip(REGIMES, ("-", "--"), strict=True):
        saved = results.arrays(f"{name}-{regime}")
        times = saved[0, 0]
        for place, group in enumerate(groups):
            lines = saved[:, 1 + place]
            shown = lines / lines[:, :1] if name.startswith("order") else lines
            options: dict[str, Any] = {"color": PALETTE[place], "linestyle": style, "linewidth": 1.5}
            band(axes, Curves(times / times[-1], shown), group if regime == "full" else None, **options)
    axes.set_xscale("symlog", linthresh=1e-3, linscale=0.3)
    axes.set_xticks([0, 1e-2, 1e-1, 1], ["0", "0.01", "0.1", "1"])
    axes.minorticks_off()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, fontsize=8, columnspacing=1.0)


def equal_progress(results: Results) -> Figure:
    """Noisy against clean loss, minority against majority: the lower panels without the clock, means over seeds."""
    figure, ((left, right),) = panels(2)
    for axes, name in ((left, "noise"), (right, "spurious")):
        for place, regime in enumerate(REGIMES if _there(results, name) else ()):
            _, many, few = np.mean(results.arrays(f"{name}-{regime}"), 0)
            axes.plot(many, few, color=PALETTE[place], label=regime)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        axes.invert_xaxis()
    label(left, "loss on clean examples", "loss on noisy examples", TITLES["noise"])
    label(right, "loss on the majority", "loss on the minority", TITLES["spurious"])
    return figure
