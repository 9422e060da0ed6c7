"""The figure of docs/information.md: the best critic there is, read on held-out pairs of Gaussians, over their information.

`python scripts/information_figures.py` writes docs/img/information_pairs.svg (a few seconds).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from tangentlab.figures.style import GRAY, PALETTE, house_style, label, legend_beside, panels
from tangentlab.figures.svg import to_svg
from tangentlab.information import DonskerVaradhan, pair_table
from tangentlab.information.tasks import Gaussian

IMAGES = Path(__file__).parent.parent / "docs" / "img"
LEVELS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def pairs() -> Figure:
    """Values of the exact log-density ratio on 100 and 400 test examples, twelve draws each, and where 100 e^(2 I) = n^2."""
    figure, ((axes,),) = panels()
    for count, color, mark in ((100, PALETTE[1], "s"), (400, PALETTE[0], "o")):
        found = np.array([[_value(level, count, seed) for level in LEVELS] for seed in range(12)])
        axes.plot(LEVELS, found.mean(0), color=color, marker=mark, label=f"{count} examples")
        axes.fill_between(LEVELS, found.min(0), found.max(0), color=color, alpha=0.2, linewidth=0)
        axes.axvline(0.5 * np.log(count * (count - 1) / 100), color=color, linestyle=":", linewidth=1.2)
    axes.plot(LEVELS, LEVELS, color=GRAY, linestyle="--", label="truth", zorder=1)
    label(axes, "truth [nats]", "value on test examples [nats]", "The exact critic")
    legend_beside(axes)
    return figure


@torch.no_grad()
def _value(level: float, count: int, seed: int) -> float:
    task = Gaussian.of_value(5, level)
    x, z = task.sample(count, torch.Generator().manual_seed(seed), torch.float64)
    return pair_table(task.log_ratio, x, z, DonskerVaradhan()).value("dv")


if __name__ == "__main__":
    with house_style():
        (IMAGES / "information_pairs.svg").write_text(to_svg(pairs()), encoding="utf-8")
