"""Experiment 5: the same signal is learnt faster along a curve with more petals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from tangentlab import NTK
from tangentlab.data import Dataset, flower, sinusoid_sum
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, Training, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.spectral._waves import (
    Array,
    columns,
    common_network,
    learnt_amplitudes,
    map_over_steps,
    mean_map,
    regress,
    squared_error,
)
from tangentlab.figures.style import PALETTE, band, label, legend_beside, log_height, panels
from tangentlab.spectral import latent_reach, wave_rates

DIRECTIONS = 64


@experiment
class FlowerFrequencies(Experiment):
    """One training per curve; the seed draws phases and weights."""

    name = "flower-frequencies"
    title = "Curved data make high frequencies easy"
    question = (
        "A sum of ten sines is defined along a closed curve in the plane, and a network has to learn it from the points of the "
        "curve. Does it matter whether the curve is a circle or a flower with many petals?"
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 5, figure 3.8"
    claims = claims_of("flower-frequencies")
    scales = {
        "smoke": {"samples": 100, "top": 40, "steps": 10, "period": 5, "width": 16, "petals": (0, 4)},
        "paper": {"steps": 50_000, "period": 100},
    }
    seeds = {"desk": 5, "paper": 10}
    minutes = {"smoke": 0.1, "desk": 14, "paper": 700}
    notes = {"desk": "2,000 steps in place of 50,000: the claims are judged at the progress that is reached there."}

    samples: int = 1_000
    top: int = 200
    petals: tuple[int, ...] = (0, 4, 10, 16)
    width: int = 256
    layers: int = 6
    rate: float = 3e-4
    steps: int = 2_000
    period: int = 50

    @property
    def frequencies(self) -> list[int]:
        """20, 40, ..., up to the top one."""
        return list(range(20, self.top + 1, 20))

    def cost(self) -> Cost:
        """Steps of all trainings."""
        return Cost(len(self.petals) * self.steps, 0.02, 450)

    def run(self, lab: Lab) -> None:
        """The same phases and the same initial weights on every curve."""
        for petals in self.petals:
            data = sinusoid_sum(self.samples, self.frequencies, lab.generator("phases"), petals=petals)
            model = common_network(lab, 2, self.width, self.layers)
            if not lab.max_steps:
                rates = wave_rates(NTK(model, data.inputs, progress=False), self.frequencies)
                lab.log("rates", petals=petals, rates=rates.tolist())
            regress(
                lab,
                "spectrum",
                model,
                data,
                (self.rate, self.steps, self.period),
                partial(self._look, data),
                name=f"{petals} petals",
                petals=petals,
            )

    def _look(self, data: Dataset, training: Training) -> Row:
        with torch.no_grad():
            error = float(squared_error(training.model, (data.inputs, data.targets)))
        ones = [1.0] * len(self.frequencies)
        return {"loss": error, "normalized": learnt_amplitudes(training.model, data.inputs, self.frequencies, ones)}

    def _last(self, results: Results, seed: int) -> tuple[Array, list[float]]:
        """Learnt shares at the end, at most 1, `(curves, frequencies)`, and the losses."""
        shares, losses = [], []
        for petals in self.petals:
            table = results.table("spectrum", petals=petals, seed=seed)
            shares.append(np.minimum(columns(table, "normalized")[1][-1], 1))
            losses.append(max(table.rows, key=lambda row: row["step"])["loss"])
        return np.array(shares), losses

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        shares, losses = self._last(results, seed)
        upper = shares[:, shares.shape[1] // 2 :].mean(1)
        rates = [row["rates"] for row in results.table("rates", seed=seed).rows]
        return {
            "SB-5-attenuation": float(upper[-1] - upper[0]),
            "SB-5-loss": losses[0] / losses[-1],
            "SB-5-order": rank_correlation(self.petals, upper),
            "SB-5-kernel": rank_correlation(np.ravel(rates), shares.ravel()) if rates else "the run was cut short",
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Maps of the spectrum, losses, and how far frequencies reach along a curve."""
        yield self._maps(results)
        yield self._losses(results)

    def _maps(self, results: Results) -> Picture:
        count = len(self.petals)
        figure, axes = panels(2, (count + 1) // 2, height=3.0)
        for panel, petals in zip(axes.flat, self.petals, strict=False):
            steps, shares = mean_map(results.table("spectrum", petals=petals), "normalized", results.seeds)
            map_over_steps(panel, steps, shares, self.frequencies, f"L = {petals}")
            inset = panel.inset_axes((0.7, 0.66, 0.28, 0.32))
            points = flower(torch.linspace(0, 1, 600), petals)
            inset.plot(points[:, 0], points[:, 1], color="white", linewidth=0.9)
            inset.set_aspect("equal")
            inset.set_axis_off()
        return Picture(
            "figure-3.8",
            figure,
            "Amplitudes of the network along the curve over those of the target, by frequency (to the right) and training "
            "step (upwards), clipped at 1; mean over seeds. The curves, with L petals, are drawn in white.",
        )

    def _losses(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        angles = torch.linspace(0, math.pi, DIRECTIONS, dtype=torch.float64)
        units = torch.stack([angles.cos(), angles.sin()], 1)
        for color, petals in zip(PALETTE, self.petals, strict=False):
            band(left, results.curves("spectrum", "step", "loss", petals=petals), f"L = {petals}", color=color)
            reach = float(latent_reach(partial(flower, petals=petals), units).max())
            wanted = np.linspace(0, self.top, 2)
            right.plot(wanted, wanted / reach, color=color, label=f"L = {petals}")
        log_height(left)
        label(left, "training step", "mean squared error", "training loss")
        label(right, "frequency along the curve", "frequency needed in the plane", "by stationary phase")
        legend_beside(right)
        return Picture(
            "figure-3.8e",
            figure,
            "Left: the training losses, mean over seeds and all seeds as a band. Right: the smallest frequency in the plane "
            "(periods per unit of length) that has a stationary phase with a given frequency along the curve (periods around "
            "it): l = k · γ'(z), largest over places and directions.",
        )
