"""Experiment 1: a network that learns a sum of sines learns the low ones first, whatever their amplitudes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.data import Dataset, sinusoid_sum
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, Training, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.spectral._waves import (
    columns,
    common_network,
    first_steps,
    learnt_amplitudes,
    map_over_steps,
    mean_map,
    regress,
    squared_error,
)
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, panels
from tangentlab.models import MLP
from tangentlab.spectral import wave_rates

SETTINGS = ("equal", "growing")
REACHED = 8
"""Frequencies out of ten that must be learnt before their order says anything."""


@experiment
class FrequencyOrder(Experiment):
    """One training per setting of the amplitudes; the seed draws phases and weights."""

    name = "frequency-order"
    title = "Low frequencies are learnt first"
    question = (
        "A network with five hidden layers is trained on a sum of ten sines with random phases. Which of them does it have "
        "after how many steps? Once all sines have the same amplitude, once the highest has ten times that of the lowest."
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 1, figures 3.1, 3.2 and A.1"
    claims = claims_of("frequency-order")
    scales = {
        "smoke": {"samples": 60, "top": 25, "steps": 20, "period": 10, "width": 16, "snapshots": (0, 10, 20)},
        "paper": {"steps": 80_000, "snapshots": (100, 1_000, 10_000, 80_000)},
    }
    seeds = {"desk": 5, "paper": 10}
    minutes = {"smoke": 0.1, "desk": 27, "paper": 150}
    notes = {"desk": "30,000 steps in place of 80,000; the learning rate is in no text of the paper."}

    samples: int = 200
    top: int = 50
    width: int = 256
    layers: int = 6
    rate: float = 3e-4
    steps: int = 30_000
    period: int = 100
    threshold: float = 0.5
    snapshots: tuple[int, ...] = (100, 1_000, 10_000, 30_000)

    @property
    def frequencies(self) -> list[int]:
        """5, 10, ..., up to the top one."""
        return list(range(5, self.top + 1, 5))

    def factors(self, setting: str) -> list[float]:
        """The amplitudes of the sines: all 1, or growing from 0.1 to 1."""
        count = len(self.frequencies)
        return [1.0 if setting == "equal" else (place + 1) / count for place in range(count)]

    def cost(self) -> Cost:
        """Steps of both trainings."""
        return Cost(len(SETTINGS) * self.steps, 0.005, 350)

    def run(self, lab: Lab) -> None:
        """Both settings, with the same phases and the same network."""
        for setting in SETTINGS:
            data = sinusoid_sum(self.samples, self.frequencies, lab.generator("phases"), self.factors(setting))
            model = common_network(lab, 1, self.width, self.layers)
            if setting == "equal":
                self._log_rates(lab, model, data)
            regress(
                lab,
                "spectrum",
                model,
                data,
                (self.rate, self.steps, self.period),
                partial(self._look, lab, setting, data),
                name=setting,
                setting=setting,
            )

    def _log_rates(self, lab: Lab, model: MLP, data: Dataset) -> None:
        rates = wave_rates(NTK(model, data.inputs, progress=False), self.frequencies)
        for frequency, rate in zip(self.frequencies, rates.tolist(), strict=True):
            lab.log("rate", frequency=frequency, rate=rate)
        lab.log("target", values=data.targets.flatten().tolist())

    def _look(self, lab: Lab, setting: str, data: Dataset, training: Training) -> Row:
        model, step = training.model, training.step
        if step % (10 * self.period) == 0 or step == training.steps:
            layers = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
            norms = [float(torch.linalg.matrix_norm(weight.detach(), 2)) for weight in layers]
            lab.log("norms", setting=setting, step=step, norms=norms)
        if lab.seed == 0 and setting == "equal" and (step in self.snapshots or step == training.steps):
            with torch.no_grad():
                lab.log("function", step=step, values=model(data.inputs).flatten().tolist())
        with torch.no_grad():
            error = float(squared_error(model, (data.inputs, data.targets)))
        shares = learnt_amplitudes(model, data.inputs, self.frequencies, self.factors(setting))
        return {"loss": error, "normalized": shares}

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        found: dict[str, float | str] = {}
        orders, gaps, falls = {}, [], []
        for setting in SETTINGS:
            table = results.table("spectrum", setting=setting, seed=seed)
            steps, shares = columns(table, "normalized")
            when = first_steps(steps, shares, self.threshold)
            there = np.isfinite(when)
            frequencies = np.array(self.frequencies)[there]
            found[f"SB-1-reached-{setting}"] = float(there.sum())
            orders[setting] = rank_correlation(frequencies, when[there])
            early = np.minimum(shares[int(np.abs(steps - self.steps / 10).argmin())], 1)
            half = len(early) // 2
            gaps.append(float(early[:half].mean() - early[half:].mean()))
            losses = [row["loss"] for row in sorted(table.rows, key=lambda row: row["step"])]
            falls.append(losses[-1] / losses[0])
            if setting == "equal":
                rates = results.table("rate", seed=seed)["rate"][there]
                found["SB-1-kernel"] = rank_correlation(-rates, when[there])
            _, norms = columns(results.table("norms", setting=setting, seed=seed), "norms")
            found[f"SB-1-norms-{setting}"] = float(np.prod(norms[-1] / norms[0]))
        return {
            **found,
            **{f"SB-1-order-{setting}": order for setting, order in orders.items()},
            "SB-1-strong": min(orders.values()),
            "SB-1-low-pass": min(gaps),
            "SB-1-loss": max(falls),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Maps of the spectrum, spectral norms, when every frequency was learnt, snapshots, losses."""
        yield self._maps(results)
        yield self._when(results)
        yield self._functions(results)
        yield self._losses(results)

    def _maps(self, results: Results) -> Picture:
        figure, axes = panels(2, 2, height=3.1)
        for (above, below), setting in zip(axes.T, SETTINGS, strict=True):
            steps, shares = mean_map(results.table("spectrum", setting=setting), "normalized", results.seeds)
            map_over_steps(above, steps, shares, self.frequencies, f"{setting} amplitudes")
            steps, norms = mean_map(results.table("norms", setting=setting), "norms", results.seeds)
            for number, (color, values) in enumerate(zip(PALETTE, norms.T, strict=False), start=1):
                below.plot(steps, values, color=color, label=f"layer {number}")
            below.locator_params(axis="x", nbins=4)
            label(below, "training step", "spectral norm of the weights")
            legend_below(below, 3)
        return Picture(
            "figure-3.1",
            figure,
            "Above: amplitudes of the network over those of the target, by frequency (to the right) and training step "
            "(upwards), clipped at 1. Low frequencies come first, also where they have a tenth of the amplitude. Below: the "
            "largest singular value of every layer's weights. Means over seeds.",
        )

    def _when(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        for setting, color in zip(SETTINGS, PALETTE, strict=False):
            whens = []
            for seed in results.seeds:
                table = results.table("spectrum", setting=setting, seed=seed)
                whens.append(first_steps(*columns(table, "normalized"), self.threshold))
            for when in whens:
                left.plot(self.frequencies, when, ".", color=color, alpha=0.35)
            medians = np.ma.median(np.ma.masked_invalid(np.array(whens)), axis=0).filled(np.nan)
            left.plot(self.frequencies, medians, "o-", color=color, label=f"{setting} amplitudes")
            if setting == "equal":
                for seed, when in zip(results.seeds, whens, strict=True):
                    rates = results.table("rate", seed=seed)["rate"]
                    right.plot(rates, when, "o", color=color, alpha=0.6)
        right.set_xscale("log")
        right.minorticks_off()
        for axes in (left, right):
            axes.set_yscale("symlog", linthresh=self.period)
            axes.set_ylim(bottom=0)
        label(left, "frequency", f"first step with {self.threshold:g} of the amplitude", "when it is learnt")
        label(right, "rate of the wave in the initial kernel", "the same step", "and what the kernel says")
        legend_below(left, 2)
        return Picture(
            "order",
            figure,
            "Left: the step at which every frequency reaches half of its amplitude; points are seeds, lines their medians. "
            "Right: the same step, equal amplitudes, over the Rayleigh quotient of the wave in the tangent kernel of the "
            "network before training, which is the rate at which gradient descent would learn it to first order. All seeds.",
        )

    def _functions(self, results: Results) -> Picture:
        rows = results.table("function").rows
        shown = list(dict.fromkeys(row["step"] for row in rows)) or [0]
        target = results.table("target").rows[0]["values"]
        figure, axes = panels(2, (len(shown) + 1) // 2, height=2.5)
        z = np.arange(len(target)) / len(target)
        for panel, step in zip(axes.flat, shown, strict=False):
            panel.plot(z, target, color=GRAY, linewidth=1.1, label="target")
            values = next((row["values"] for row in rows if row["step"] == step), None)
            if values is not None:
                panel.plot(z, values, color=PALETTE[2], label="network")
            label(panel, "input", "value", f"step {step:,}")
        for panel in list(axes.flat)[len(shown) :]:
            panel.set_axis_off()
        legend_below(axes[-1][0], 2)
        return Picture("figure-3.2", figure, "The function that the network has learnt after some steps; one seed.")

    def _losses(self, results: Results) -> Picture:
        figure, ((axes,),) = panels()
        for setting in SETTINGS:
            band(axes, results.curves("spectrum", "step", "loss", setting=setting), f"{setting} amplitudes")
        axes.set_yscale("log")
        label(axes, "training step", "mean squared error")
        legend_below(axes, 2)
        return Picture("figure-a.1", figure, "The training loss: mean over seeds, and all seeds as a band.")
