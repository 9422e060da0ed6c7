"""Experiment 3: noise of low frequency spoils what a network learns from images, noise of high frequency comes too late to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, Training, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments.spectral._digits import error_on, two_digits
from tangentlab.experiments.spectral._waves import common_network, regress
from tangentlab.figures.style import PALETTE, band, label, legend_outside, panels

AXES = 5
"""Principal axes along which the second kind of noise oscillates."""


class Setting(NamedTuple):
    """A training: the kind of the noise, its frequency and its amplitude."""

    kind: str
    frequency: float
    amplitude: float

    @property
    def name(self) -> str:
        """As checkpoints call it."""
        return f"{self.kind} {self.frequency:g} {self.amplitude:g}"


@experiment
class RadialNoise(Experiment):
    """A training for every frequency and amplitude; the seed draws images and weights."""

    name = "radial-noise"
    title = "Noise of low frequency hurts most"
    question = (
        "The labels of two kinds of digits get noise that depends on the image: a wave of its norm, or along its principal "
        "axes. How does the best error on other images, without noise, depend on the noise's frequency and amplitude?"
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 3, figures 3.4 and A.2"
    claims = claims_of("radial-noise")
    scales = {
        "smoke": {"dataset": "digits", "images": 100, "steps": 6, "period": 3, "width": 16, "frequencies": (0.05, 1.0)},
        "paper": {"images": 10_000, "steps": 5_000},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.2, "desk": 12, "paper": 600}
    notes = {"desk": "800 images to train and 600 to validate, 400 steps; the paper does not give its frequencies."}

    dataset: str = "mnist"
    images: int = 1_400
    share: float = 4 / 7
    frequencies: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    amplitudes: tuple[float, ...] = (0.5, 1.0)
    width: int = 256
    layers: int = 6
    rate: float = 1e-4
    steps: int = 400
    period: int = 10

    def settings(self) -> list[Setting]:
        """No noise, radial waves of every frequency and amplitude, and waves along the axes of the extreme frequencies."""
        radial = [Setting("radial", k, beta) for beta in self.amplitudes for k in self.frequencies]
        low, high = self.frequencies[0], self.frequencies[-1]
        along = [Setting("axes", k, self.amplitudes[-1]) for k in (low, high)]
        return [Setting("none", 0.0, 0.0), *radial, *along]

    def cost(self) -> Cost:
        """Steps of all trainings."""
        return Cost(len(self.settings()) * self.steps, 0.035, 500)

    def run(self, lab: Lab) -> None:
        """The same images and initial weights in every training."""
        data = two_digits(lab, self.dataset, self.images)
        count = round(self.share * len(data))
        known, other = data.take(torch.arange(count)), data.take(torch.arange(count, len(data)))
        for setting in self.settings():
            noise = setting.amplitude * wave(known.inputs, setting.kind, setting.frequency)
            noisy = Dataset(known.inputs, known.targets + noise[:, None], data.name)
            model = common_network(lab, data.inputs.shape[1], self.width, self.layers)
            regress(
                lab,
                "training",
                model,
                noisy,
                (self.rate, self.steps, self.period),
                partial(_look, noisy, other),
                name=setting.name,
                **setting._asdict(),
            )

    def _curve(self, results: Results, seed: int, kind: str, frequency: float, amplitude: float) -> list[float]:
        facts = {"kind": kind, "frequency": frequency, "amplitude": amplitude}
        rows = results.table("training", seed=seed, **facts).rows
        return [row["validation"] for row in sorted(rows, key=lambda row: row["step"])]

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        low, high, most = self.frequencies[0], self.frequencies[-1], self.amplitudes[-1]
        clean = min(self._curve(results, seed, "none", 0.0, 0.0))

        def harm(kind: str, frequency: float) -> float:
            return min(self._curve(results, seed, kind, frequency, most)) - clean

        def dip(frequency: float) -> float:
            curve = self._curve(results, seed, "radial", frequency, most)
            return curve[-1] - min(curve)

        costs = harm("radial", low), harm("radial", high)
        return {
            "SB-3-low": costs[0],
            "SB-3-high": costs[0] - costs[1],
            "SB-3-dip": dip(high) - dip(low),
            "SB-3-axes": harm("axes", low) - harm("axes", high),
            "SB-3-size": costs[1] / costs[0] if costs[0] > 0 else "the low frequency costs nothing",
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Validation and training curves in four panels each, and the second kind of noise."""
        for column, name, what in (
            ("validation", "figure-3.4", "The error on other images, whose labels have no noise"),
            ("loss", "figure-a.2", "The training error, to labels with noise"),
        ):
            yield self._panels(results, column, name, what)
        yield self._axes(results)

    def _panels(self, results: Results, column: str, name: str, what: str) -> Picture:
        figure, axes = panels(2, 2, height=2.9, sharey=column == "validation")
        (first, second), (third, fourth) = axes
        none = {"kind": "none", "frequency": 0.0, "amplitude": 0.0}
        for panel, frequency in ((first, self.frequencies[0]), (second, self.frequencies[-1])):
            band(panel, results.curves("training", "step", column, **none), "0")
            for beta in self.amplitudes:
                facts = {"kind": "radial", "frequency": frequency, "amplitude": beta}
                band(panel, results.curves("training", "step", column, **facts), f"{beta:g}")
            label(panel, "training step", "mean squared error", f"frequency {frequency:g}")
            panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title="amplitude")
        for panel, beta in ((third, self.amplitudes[0]), (fourth, self.amplitudes[-1])):
            for color, frequency in zip(PALETTE, self.frequencies, strict=False):
                facts = {"kind": "radial", "frequency": frequency, "amplitude": beta}
                band(panel, results.curves("training", "step", column, **facts), f"{frequency:g}", color=color)
            label(panel, "training step", "mean squared error", f"amplitude {beta:g}")
        legend_outside(figure, fourth, len(self.frequencies), title="frequency (lower panels)")
        return Picture(name, figure, f"{what}, for radial noise: mean over seeds, and all seeds as a band.")

    def _axes(self, results: Results) -> Picture:
        figure, (axes,) = panels(2, sharey=True)
        for panel, kind in zip(axes, ("radial", "axes"), strict=True):
            for color, frequency in zip(PALETTE, (self.frequencies[0], self.frequencies[-1]), strict=False):
                facts = {"kind": kind, "frequency": frequency, "amplitude": self.amplitudes[-1]}
                band(panel, results.curves("training", "step", "validation", **facts), f"{frequency:g}", color=color)
            title = "waves of the norm" if kind == "radial" else "waves along principal axes"
            label(panel, "training step", "mean squared error", title)
        legend_outside(figure, axes[0], 2, title="frequency")
        return Picture(
            "axes", figure, "The error on other images, whose labels have no noise, for both kinds of noise."
        )


def _look(noisy: Dataset, other: Dataset, training: Training) -> Row:
    return {
        "loss": error_on(training.model, noisy.inputs, noisy.targets),
        "validation": error_on(training.model, other.inputs, other.targets),
    }


def wave(inputs: Tensor, kind: str, frequency: float) -> Tensor:
    """`sin(2 pi k |x|)`, or the mean over principal axes u of `sin(2 pi k u.x)` scaled to the same variance, `(n,)`."""
    if kind == "none":
        return torch.zeros(len(inputs))
    if kind == "radial":
        return torch.sin(2 * math.pi * frequency * inputs.norm(dim=1))
    centred = inputs - inputs.mean(0)
    vectors = torch.linalg.svd(centred.double(), full_matrices=False).Vh[: min(AXES, *inputs.shape)]
    signs = vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
    waves = torch.sin(2 * math.pi * frequency * centred.double() @ (vectors * signs).t())
    return (waves.sum(1) / math.sqrt(len(vectors))).float()
