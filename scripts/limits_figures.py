"""Figures of docs/limits.md and docs/information-space.md: how SGD writes into a network, and those of the desk results.

`python scripts/limits_figures.py` writes docs/img/limits_*.svg (half a minute).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from tangentlab.figures.style import GRAY, INK, PALETTE, heatmap, house_style, label, legend_below, panels
from tangentlab.figures.svg import to_svg
from tangentlab.limits import EmulatingNetwork, Monomials, UniformInputs, accuracy, train_by_sgd
from tangentlab.limits.wiring import plateau

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "img"
FROM_DESK = {
    "predictability": ("cross-predictability", "cross-predictability"),
    "bounds": ("junk-bound", "bounds"),
    "thresholds": ("sgd-emulation", "thresholds"),
    "learners": ("parity-learners", "learners"),
    "tradeoff": ("batch-precision", "trade-off"),
    "mixture": ("corrupted-clusters", "spectrum"),
    "clusters": ("corrupted-clusters", "labels"),
}


def cell() -> Figure:
    """The two activations, and what one memory cell adds to the output."""
    figure, ((left, right),) = panels(2, height=2.9)
    z = np.linspace(-2.2, 2.2, 881)
    left.plot(z, plateau(z, np.zeros(1)), label="gate, o = 0", color=PALETTE[0])
    left.plot(z, plateau(z, np.ones(1)), label="staircase, o = 1", color=PALETTE[1], linestyle="--")
    label(left, "z", "a(z)", "two activations, flat where they operate")
    legend_below(left)
    w = np.linspace(-1.3, 1.3, 1041)
    read = plateau(w, np.zeros(1))
    right.plot(w, read, color=PALETTE[0], label="cell r = s(w c)")
    right.plot(w, plateau(2 * read, np.ones(1)), color=PALETTE[1], linestyle="--", label="copy r'")
    right.plot(w, read - plateau(2 * read, np.ones(1)), color=PALETTE[4], label="r − r', times κ in f")
    right.plot([-1, 0, 1], [0, 0, 0], "o", color=INK)
    label(right, "weight w of the memory edge (c = 1)", "value", "one memory cell")
    legend_below(right, 2)
    return figure


def network() -> Figure:
    """Blocks of the network, with the one path on which a gradient can pass."""
    figure, ((axes,),) = panels(width=8.6, height=3.6)
    axes.set_axis_off()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 4.2)
    boxes = {
        "roots": (0.1, 1.7, 1.3, 0.9, "roots\n1, x₁ … xₙ"),
        "control": (2.0, 1.7, 1.5, 0.9, "controls c\n(1, x) if active,\nelse 0"),
        "cells": (4.1, 1.7, 1.6, 0.9, "memory cells\nr = s(w c)\nT blocks of n + 1"),
        "copies": (6.4, 2.95, 1.5, 0.8, "copies r'\nstaircase"),
        "read": (4.1, 0.1, 1.6, 0.9, "read\nxᵢ(t) = r₀ rᵢ xᵢ"),
        "learner": (6.4, 0.1, 1.5, 0.9, "the learner's\ncircuit"),
        "head": (8.2, 0.1, 1.3, 0.9, "head\n0 until full"),
        "out": (8.9, 1.75, 0.9, 0.8, "f"),
    }
    for name, (x, y, width, height, text) in boxes.items():
        live = name in ("cells", "out")
        _box(axes, x, y, width, height, text, PALETTE[4] if live else INK)
    flat: dict[str, Any] = {"color": GRAY, "linewidth": 1.2}
    live = {"color": PALETTE[4], "linewidth": 2.4}
    _arrow(axes, (1.4, 2.15), (2.0, 2.15), **flat)
    _arrow(axes, (3.5, 2.15), (4.1, 2.15), **live)
    axes.text(3.8, 2.3, "w", color=PALETTE[4], ha="center")
    _arrow(axes, (5.7, 2.15), (8.9, 2.15), **live)
    axes.text(7.2, 2.24, "+κ", color=PALETTE[4], ha="center")
    _arrow(axes, (5.2, 2.6), (6.4, 3.35), **flat)
    _arrow(axes, (7.9, 3.35), (9.2, 2.55), **flat)
    axes.text(8.65, 3.1, "−κ", color=GRAY, ha="center")
    _arrow(axes, (4.9, 1.7), (4.9, 1.0), **flat)
    _arrow(axes, (0.75, 1.7), (4.1, 0.5), **flat)
    _arrow(axes, (5.7, 0.55), (6.4, 0.55), **flat)
    _arrow(axes, (7.9, 0.55), (8.2, 0.55), **flat)
    _arrow(axes, (9.1, 1.0), (9.3, 1.75), **flat)
    axes.text(9.33, 1.3, "1", color=GRAY)
    _arrow(axes, (4.5, 2.6), (2.75, 2.6), connectionstyle="arc3,rad=0.5", **flat)
    axes.text(3.6, 3.35, "block t is active when\nblock t − 1 is full", ha="center", fontsize=8.5, color=GRAY)
    return figure


def _box(axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.02,rounding_size=0.1", fill=False, edgecolor=color)
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **options: Any) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, shrinkA=1, shrinkB=1, **options))


def training(n: int = 10) -> Figure:
    """Memory during one pass over 2 n samples, and the accuracy with batches of 1 and 2."""
    figure, ((left, middle, right),) = panels(3, height=3.2)
    generator = torch.Generator().manual_seed(0)
    function = Monomials(n, 4).sample(1, generator)
    inputs, samples = UniformInputs(n), 2 * n
    new = inputs.sample(500, generator)
    scores: dict[int, list[float]] = {}
    for batch in (1, 2):
        model = EmulatingNetwork("parity", n, samples)
        scores[batch] = [accuracy(model.predict(new), function.labels(new))]
        for step in range(samples + 4):
            x = inputs.sample(batch, generator)
            train_by_sgd(model, x, function.labels(x), model.rate, batch=batch)
            scores[batch].append(accuracy(model.predict(new), function.labels(new)))
            if batch == 1 and step + 1 in (n // 2, samples):
                axes = left if step + 1 < samples else middle
                heatmap(axes, model.memory().numpy(), "weight", diverging=True, vmin=-1, vmax=1)
                axes.set_xticks(range(0, n + 1, 2))
                axes.set_yticks(range(0, samples, 4), [str(t + 1) for t in range(0, samples, 4)])
                label(axes, "edge (y, y x₁ … y xₙ)", "block t", f"memory after {step + 1} steps")
    for batch, color in ((1, PALETTE[0]), (2, PALETTE[4])):
        right.plot(scores[batch], color=color, label=f"batch {batch}")
    right.axhline(0.5, color=GRAY, linestyle=":")
    label(right, "step", "accuracy on new inputs", "a product of 4 signs")
    legend_below(right)
    return figure


def main() -> None:
    """Draw all, and take those of the desk results that are there."""
    with house_style():
        for name, draw in (("cell", cell), ("network", network), ("training", training)):
            (IMAGES / f"limits_{name}.svg").write_text(to_svg(draw()), encoding="utf-8")
    for name, (experiment, figure) in FROM_DESK.items():
        source = ROOT / "results" / "desk" / experiment / "figures" / f"{figure}.svg"
        if source.exists():
            shutil.copyfile(source, IMAGES / f"limits_{name}.svg")


if __name__ == "__main__":
    main()
