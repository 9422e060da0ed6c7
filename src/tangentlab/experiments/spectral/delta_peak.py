"""Experiment 7: a peak has all frequencies alike; depth, width and large weights let a network fit the high ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, Training, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.spectral._waves import (
    columns,
    common_network,
    first_steps,
    mean_map,
    regress,
)
from tangentlab.figures.style import PALETTE, heatmap, label, panels
from tangentlab.spectral import discrete_spectrum


class Net(NamedTuple):
    """A network of the ablation: number of linear layers, units between them, largest absolute weight."""

    depth: int
    width: int
    clip: float


SWEEPS = ("depth", "width", "clip")
FIGURES = {"depth": "figure-a.6", "width": "figure-a.7", "clip": "figure-a.8"}


@experiment
class DeltaPeak(Experiment):
    """One training per network; the seed draws the weights."""

    name = "delta-peak"
    title = "Depth, width and weights: who can fit a peak?"
    question = (
        "A single sample is 1 and all others are 0, so that every frequency has the same magnitude. Networks of several depths "
        "and widths and with clipped weights are trained on it: how much of the high frequencies do they reach?"
    )
    chapter = Chapter.SPECTRAL
    place = "A.1.5, figures A.5, A.6, A.7, A.8 and A.9"
    claims = claims_of("delta-peak")
    scales = {
        "smoke": {
            "samples": 40,
            "depths": (2, 3),
            "widths": (8, 16),
            "clips": (0.1, 2.0),
            "clipped": (3, 8),
            "steps": 20,
            "period": 10,
            "early": 10,
            "bands": 4,
        },
        "paper": {},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 15, "paper": 15}
    notes = {"desk": "as in the paper; depth counts the linear layers."}

    samples: int = 200
    depths: tuple[int, ...] = (3, 4, 5, 6)
    widths: tuple[int, ...] = (16, 32, 64, 128)
    clips: tuple[float, ...] = (0.1, 0.15, 0.2, 2.0)
    clipped: tuple[int, ...] = (6, 64)
    loose: float = 10.0
    rate: float = 3e-4
    steps: int = 60_000
    period: int = 1_000
    early: int = 10_000
    bands: int = 20

    def nets(self, sweep: str) -> list[Net]:
        """The networks of one sweep, from the smallest to the largest."""
        if sweep == "depth":
            return [Net(depth, self.widths[0], self.loose) for depth in self.depths]
        if sweep == "width":
            return [Net(self.depths[0], width, self.loose) for width in self.widths]
        return [Net(self.clipped[0], self.clipped[1], clip) for clip in self.clips]

    def all_nets(self) -> list[Net]:
        """Every network once."""
        return list(dict.fromkeys(net for sweep in SWEEPS for net in self.nets(sweep)))

    def cost(self) -> Cost:
        """Steps of all trainings."""
        return Cost(len(self.all_nets()) * self.steps, 0.0006, 300)

    def run(self, lab: Lab) -> None:
        """All networks, clipped after every update."""
        where = (torch.arange(self.samples) / self.samples)[:, None]
        peak = torch.zeros(self.samples, 1)
        peak[self.samples // 2] = 1
        data = Dataset(where, peak, "peak")
        for net in self.all_nets():
            model = common_network(lab, 1, net.width, net.depth)
            regress(
                lab,
                "spectrum",
                model,
                data,
                (self.rate, self.steps, self.period),
                partial(self._look, lab, net, data),
                name=" ".join(map(str, net)),
                largest=net.clip,
                **net._asdict(),
            )

    def _look(self, lab: Lab, net: Net, data: Dataset, training: Training) -> Row:
        with torch.no_grad():
            values = training.model(data.inputs).flatten()
        if lab.seed == 0 and net in self.nets("clip") and training.step % (3 * self.period) == 0:
            lab.log("prediction", **net._asdict(), step=training.step, values=values.tolist())
        relative = self.samples * discrete_spectrum(values, "plain")[1:]
        parts = relative.tensor_split(self.bands)
        return {"shares": [float(part.mean()) for part in parts], "high": float(relative[len(relative) // 2 :].mean())}

    def _high(self, results: Results, seed: int, net: Net, step: int) -> float:
        rows = results.table("spectrum", seed=seed, **net._asdict()).rows
        return float(min(rows, key=lambda row: abs(row["step"] - step))["high"])

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        found: dict[str, float | str] = {}
        for when, step in (("end", self.steps), ("early", self.early)):
            gains = {}
            for sweep in SWEEPS:
                nets = self.nets(sweep)
                gains[sweep] = self._high(results, seed, nets[-1], step) - self._high(results, seed, nets[0], step)
                found[f"SB-7-{sweep}-{when}"] = gains[sweep]
            found[f"SB-7-weaker-{when}"] = gains["depth"] - gains["width"]
        deepest = self.nets("clip")[-1]
        steps, shares = columns(results.table("spectrum", seed=seed, **deepest._asdict()), "shares")
        when_learnt = first_steps(steps, shares, 0.5)
        there = np.isfinite(when_learnt)
        reached = int(there.sum())
        found["SB-7-first"] = (
            rank_correlation(np.arange(self.bands)[there], when_learnt[there])
            if reached >= self.bands // 2
            else "fewer than half of the bands are learnt"
        )
        found["SB-7-blocked"] = self._high(results, seed, self.nets("clip")[0], self.steps)
        return found

    def draw(self, results: Results) -> Iterator[Picture]:
        """Spectra over steps by depth, width and clip, and predictions by clip."""
        for sweep in SWEEPS:
            yield self._sweep(results, sweep)
        yield self._target()
        yield self._predictions(results)

    def _sweep(self, results: Results, sweep: str) -> Picture:
        nets = self.nets(sweep)
        figure, axes = panels(2, (len(nets) + 1) // 2, height=2.9)
        for panel, net in zip(axes.flat, nets, strict=False):
            steps, shares = mean_map(results.table("spectrum", **net._asdict()), "shares", results.seeds)
            self._map(panel, steps, shares, "magnitude", self.samples // 2, vmin=0, vmax=1)
            label(panel, "frequency", "training step", f"{sweep} {getattr(net, sweep):g}")
        for panel in list(axes.flat)[len(nets) :]:
            panel.set_axis_off()
        others = ", ".join(f"{name} {getattr(nets[0], name):g}" for name in SWEEPS if name != sweep)
        return Picture(
            FIGURES[sweep],
            figure,
            f"Magnitudes of the network over those of the peak, by frequency and training step, for every {sweep} (with "
            f"{others}); mean over seeds, clipped at 1.",
        )

    def _map(self, axes: Axes, steps: Any, values: Any, scale: str, right: float, **options: Any) -> None:
        extent = (0, right, 0, max(float(steps[-1]), 1.0))
        heatmap(axes, values, scale, origin="lower", extent=extent, **options)

    def _target(self) -> Picture:
        figure, ((left, right),) = panels(2, height=2.6)
        peak = np.zeros(self.samples)
        peak[self.samples // 2] = 1
        left.plot(np.arange(self.samples) / self.samples, peak, color=PALETTE[0])
        spectrum = discrete_spectrum(torch.from_numpy(peak), "plain").numpy()
        right.plot(np.arange(len(spectrum)), spectrum, color=PALETTE[0])
        right.set_ylim(0, 2 / self.samples)
        label(left, "input", "value", "the target")
        label(right, "frequency", "magnitude", "its spectrum")
        return Picture("figure-a.5", figure, "The target, and its spectrum, which is flat.")

    def _predictions(self, results: Results) -> Picture:
        nets = self.nets("clip")
        figure, axes = panels(2, (len(nets) + 1) // 2, height=2.9)
        for panel, net in zip(axes.flat, nets, strict=False):
            steps, values = columns(results.table("prediction", **net._asdict()), "values")
            self._map(panel, steps, values, "prediction", 1.0, vmin=0, vmax=1)
            label(panel, "input", "training step", f"clip {net.clip:g}")
        for panel in list(axes.flat)[len(nets) :]:
            panel.set_axis_off()
        return Picture(
            "figure-a.9", figure, "What the network with clipped weights predicts, by training step; one seed."
        )
