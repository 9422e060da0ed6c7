"""Experiment 6: labels that alternate along a flower are easier with more petals; elsewhere, networks disagree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.axes import Axes

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.spectral._labelled import (
    HALF_WIDTH,
    beyond_base,
    fit_labels,
    labelled_flower,
    logits_on_square,
)
from tangentlab.experiments.spectral._waves import Array, common_network
from tangentlab.figures.style import DIVERGING, INK, heatmap, label, panels


@experiment
class FlowerLabels(Experiment):
    """A training per frequency and curve, and two inits for one of them."""

    name = "flower-labels"
    title = "Alternating labels are easier on curved data"
    question = (
        "Points of a flower are labelled by the sign of a wave along it. How many labels does a network get right, by the "
        "frequency of the wave and the number of petals? And what do two networks that do make of the rest of the plane?"
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 6, figures 3.7 and 3.9"
    claims = claims_of("flower-labels")
    scales = {
        "smoke": {
            "samples": 100,
            "frequencies": (10, 20, 40),
            "petals": (0, 4),
            "steps": 10,
            "width": 16,
            "side": 20,
            "shown": (20, 4),
        },
        "paper": {
            "frequencies": tuple(range(50, 401, 50)),
            "petals": tuple(range(0, 21, 2)),
            "steps": 50_000,
        },
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 55, "paper": 15_000}
    notes = {
        "desk": "20 of 88 cells, 2,500 steps. Base rates differ by cell, and frequencies 200 and 400 meet 5 distinct phases "
        "only, so accuracies are taken relative to the base rate."
    }

    samples: int = 1_000
    frequencies: tuple[int, ...] = (50, 100, 200, 300, 400)
    petals: tuple[int, ...] = (0, 6, 12, 20)
    threshold: float = 0.5
    width: int = 256
    layers: int = 6
    rate: float = 1e-3
    steps: int = 2_500
    side: int = 160
    shown: tuple[int, ...] = (200, 20)

    def cells(self) -> list[tuple[int, int, int]]:
        """Frequency, petals and number of the initialization; the cell whose maps are shown has two."""
        plain = [(k, petals, 0) for k in self.frequencies for petals in self.petals]
        return [*plain, (self.shown[0], self.shown[1], 1)]

    def cost(self) -> Cost:
        """Steps of all trainings."""
        return Cost(len(self.cells()) * self.steps, 0.02, 450)

    def run(self, lab: Lab) -> None:
        """All cells with the same phase and initial weights."""
        for frequency, petals, init in self.cells():
            data = labelled_flower(self.samples, frequency, petals, self.threshold, lab.generator("phase"))
            model = common_network(lab, 2, self.width, self.layers, *([init] if init else []))
            name = f"{frequency} on {petals} ({init})"
            fit_labels(lab, model, data, self.steps, self.rate, name, frequency=frequency, petals=petals, init=init)
            if (frequency, petals) == self.shown:
                lab.save_array(f"logits {init}", logits_on_square(model, self.side).half())
                lab.save_array("points", torch.cat([data.inputs, data.targets], 1).half())

    def _relative(self, results: Results, seed: int) -> Array:
        """Accuracies at the end beyond the base rate, `(petals, frequencies)`."""
        table = results.table("accuracy", seed=seed, init=0)
        found = np.full((len(self.petals), len(self.frequencies)), np.nan)
        for row, petals in enumerate(self.petals):
            for column, frequency in enumerate(self.frequencies):
                rows = table.where(petals=petals, frequency=frequency).rows
                if rows:
                    last = max(rows, key=lambda one: one["step"])
                    found[row, column] = beyond_base(last["accuracy"], last["base"])
        return found

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """From the log and the two maps."""
        relative = self._relative(results, seed)
        facts = {"frequency": self.shown[0], "petals": self.shown[1], "seed": seed}
        last = [
            max(results.table("accuracy", init=init, **facts).rows, key=lambda row: row["step"])["accuracy"]
            for init in (0, 1)
        ]
        maps = [results.array(f"logits {init}", seed) > 0 for init in (0, 1)]
        return {
            "SB-6-petals": float((relative[-1] - relative[0]).mean()),
            "SB-6-frequency": float((relative[:, 0] - relative[:, -1]).mean()),
            "SB-6-order": float(np.mean([rank_correlation(self.petals, column) for column in relative.T])),
            "SB-6-fitted": min(last),
            "SB-6-elsewhere": float((maps[0] == maps[1]).mean()),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """The heatmap and the two maps."""
        figure, ((axes,),) = panels()
        mean = np.mean([self._relative(results, seed) for seed in results.seeds], axis=0)
        heatmap(axes, mean, "accuracy beyond the base rate", origin="lower", vmin=0, vmax=1)
        axes.set_xticks(range(len(self.frequencies)), [str(k) for k in self.frequencies])
        axes.set_yticks(range(len(self.petals)), [str(petals) for petals in self.petals])
        label(axes, "frequency of the labels", "petals")
        yield Picture(
            "figure-3.9",
            figure,
            f"Training accuracy after {self.steps:,} steps, 0 at the base rate of the cell and 1 without mistakes; mean over "
            "seeds.",
        )
        if results.has_arrays("logits 0") and results.has_arrays("logits 1"):
            yield self._maps(results)

    def _maps(self, results: Results) -> Picture:
        figure, (axes,) = panels(2, height=4.1)
        points = results.array("points")
        for init, panel in enumerate(axes):
            _decision_map(panel, results.array(f"logits {init}"), points)
            label(panel, "first coordinate", "second coordinate", f"initialization {init + 1}")
        return Picture(
            "figure-3.7",
            figure,
            f"Two networks that differ in their initial weights, trained on labels of frequency {self.shown[0]} on "
            f"{self.shown[1]} petals. Colours: the predicted class; lines: equal absolute logits; dots: the training points. "
            "One seed.",
        )


def _decision_map(axes: Axes, logits: Array, points: Array) -> None:
    """Predicted classes, contours of confidence and the points of the flower."""
    extent = (-HALF_WIDTH, HALF_WIDTH, -HALF_WIDTH, HALF_WIDTH)
    axes.imshow(np.sign(logits), origin="lower", extent=extent, cmap=DIVERGING, vmin=-2, vmax=2, aspect="equal")
    line = np.linspace(-HALF_WIDTH, HALF_WIDTH, len(logits))
    axes.contour(line, line, np.abs(logits), 5, colors=INK, linewidths=0.35, alpha=0.5)
    axes.scatter(points[:, 0], points[:, 1], c=2 * points[:, 2] - 1, cmap=DIVERGING, vmin=-1, vmax=1, s=2.5)
    axes.grid(False)
