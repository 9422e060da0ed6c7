"""The figures of docs/spectral.md: a network that learns sines, a recording, curves, and those of the desk results.

`python scripts/spectral_figures.py` writes docs/img/spectral_*.svg (half a minute).
"""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

from tangentlab.data import flower, load, sinusoid_sum
from tangentlab.figures.style import GRAY, PALETTE, heatmap, house_style, label, legend_below, panels, step_axis
from tangentlab.figures.svg import to_svg
from tangentlab.models import MLP
from tangentlab.recorder import TangentRecorder
from tangentlab.spectral import amplitudes, composition_kernel, latent_reach

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "img"
FROM_DESK = {
    "order": ("frequency-order", "figure-3.1"),
    "waves": ("kernel-frequencies", "figures-3.6-a.3"),
    "noise": ("radial-noise", "figure-3.4"),
    "labels": ("kernel-noise", "figure-3.5"),
    "decay": ("decay-exponents", "decay"),
    "neighbours": ("nearest-neighbours", "figure-a.13e"),
    "flowers": ("flower-frequencies", "figure-3.8"),
}
FREQUENCIES = (2, 6, 10)
STEPS = (100, 1_000, 6_000)


def learning() -> Figure:
    """A sum of three sines as a network has it after some steps, and the share of every sine over all steps."""
    torch.manual_seed(0)
    z, y = sinusoid_sum(100, FREQUENCIES, torch.Generator().manual_seed(0))
    model = MLP((1, 128, 128, 128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    figure, axes = panels(2, 2, height=2.6)
    shown, shares = iter(axes.flat), []
    for step in range(STEPS[-1] + 1):
        with torch.no_grad():
            values = model(z)[:, 0]
        if step % 20 == 0:
            shares.append(amplitudes(values, FREQUENCIES))
        if step in STEPS:
            panel = next(shown)
            panel.plot(z[:, 0], y[:, 0], color=GRAY, linewidth=1.2, label="target")
            panel.plot(z[:, 0], values, color=PALETTE[2], label="network")
            label(panel, "input", "value", f"after {step:,} steps")
        optimizer.zero_grad()
        nn.functional.mse_loss(model(z), y).backward()
        optimizer.step()
    legend_below(axes[1][0])
    last = next(shown)
    for color, frequency, curve in zip(PALETTE, FREQUENCIES, torch.stack(shares, 1), strict=False):
        last.plot(torch.arange(len(curve)) * 20, curve, color=color, label=f"frequency {frequency}")
    step_axis(last, STEPS[-1], 100)
    label(last, "training step", "learnt share", "how much of every sine is there")
    legend_below(last, 3)
    return figure


def recorded() -> Figure:
    """The recorder's own figure of the bands, for the training of the page."""
    torch.manual_seed(0)
    x, y = load("digits").first(600)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"total_steps": 2_000, "max_overhead": float("inf"), "verbose": False}
    recorder = TangentRecorder(model, {"train": (x, y)}, measures=["frequencies"], **options)
    with recorder:
        for _ in range(2_000):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            recorder.step(loss=loss)
    return next(picture.figure for picture in recorder.plot() if picture.name == "frequencies")


def curves() -> Figure:
    """Flowers, and the weight of every frequency along them that a wave of the plane has."""
    figure, axes = panels(3, 2, height=2.7)
    size = torch.linspace(0, 40, 81, dtype=torch.float64)
    along = torch.arange(161)
    k = torch.stack([size, 0 * size], 1)
    for (above, below), petals in zip(axes.T, (0, 4, 16), strict=True):
        curve = partial(flower, petals=petals)
        points = curve(torch.linspace(0, 1, 800))
        above.plot(points[:, 0], points[:, 1], color=PALETTE[0], linewidth=1.3)
        above.set_aspect("equal")
        label(above, "first coordinate", "second coordinate", f"L = {petals}")
        weight = composition_kernel(curve, 2 * math.pi * along.double(), k).abs()
        heatmap(below, weight, "weight", origin="lower", vmin=0, vmax=0.3, extent=(0, 40 / (2 * math.pi), 0, 160))
        reach = latent_reach(curve, k) / (2 * math.pi)
        below.plot(size / (2 * math.pi), reach, color="white", linewidth=1, linestyle="--")
        below.set_ylim(0, 160)
        label(below, "frequency in the plane", "frequency along the curve")
    return figure


def main() -> None:
    """Draw all, and take those of the desk results that are there."""
    with house_style():
        for name, draw in (("learning", learning), ("recorded", recorded), ("curves", curves)):
            (IMAGES / f"spectral_{name}.svg").write_text(to_svg(draw()), encoding="utf-8")
    for name, (experiment, figure) in FROM_DESK.items():
        source = ROOT / "results" / "desk" / experiment / "figures" / f"{figure}.svg"
        if source.exists():
            shutil.copyfile(source, IMAGES / f"spectral_{name}.svg")


if __name__ == "__main__":
    main()
