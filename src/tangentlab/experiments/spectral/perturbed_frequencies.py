"""Experiment 2: when the parameters of a trained network are shaken, its low frequencies last longest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.data import Dataset, sinusoid_sum
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    OnPeriod,
    Picture,
    Results,
    Training,
    experiment,
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import for_trial
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.spectral._waves import common_network, learnt_amplitudes, squared_error
from tangentlab.figures.style import PALETTE, band, heatmap, label, legend_beside, panels
from tangentlab.models import MLP
from tangentlab.spectral import perturbed_spectrum


@experiment
class PerturbedFrequencies(Experiment):
    """A training until all frequencies are there, then random directions of growing length."""

    name = "perturbed-frequencies"
    title = "Low frequencies survive a perturbation of the parameters"
    question = (
        "A network has learnt a sum of sines. Its parameters are moved by a given distance in a random direction: which of "
        "the sines are still there?"
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 2, figure 3.3"
    claims = claims_of("perturbed-frequencies")
    scales = {
        "smoke": {"samples": 60, "top": 25, "steps": 20, "width": 16, "sizes": (0.0, 0.5, 1.0), "directions": 3},
        "paper": {"steps": 80_000, "sizes": tuple(round(0.05 * place, 2) for place in range(101))},
    }
    seeds = {"desk": 5, "paper": 5}
    minutes = {"smoke": 0.1, "desk": 15, "paper": 60}
    notes = {"desk": "trained until 0.9 of every amplitude is there, at most 30,000 steps; 21 lengths."}

    samples: int = 200
    top: int = 50
    width: int = 256
    layers: int = 6
    rate: float = 1e-3
    steps: int = 30_000
    fitted: float = 0.9
    sizes: tuple[float, ...] = tuple(round(0.25 * place, 2) for place in range(21))
    directions: int = 100

    @property
    def frequencies(self) -> list[int]:
        """10, 15, ..., up to the top one."""
        return list(range(10, self.top + 1, 5))

    def cost(self) -> Cost:
        """At most so many steps; a training stops when all is learnt."""
        return Cost(self.steps, 0.006, 350)

    def run(self, lab: Lab) -> None:
        """Train, then perturb."""
        data = sinusoid_sum(self.samples, self.frequencies, lab.generator("phases"))
        model = common_network(lab, 1, self.width, self.layers)
        last = self._trained(lab, model, data)
        lab.log("fitted", step=last, normalized=self._shares(model, data))
        spectrum = perturbed_spectrum(
            model,
            data.inputs,
            self.frequencies,
            self.sizes,
            for_trial(lab, self.directions, 2),
            generator=lab.generator("directions"),
        )
        for size, row in zip(self.sizes, spectrum.tolist(), strict=True):
            for frequency, share in zip(self.frequencies, row, strict=True):
                lab.log("perturbed", size=size, frequency=frequency, share=share)

    def _shares(self, model: MLP, data: Dataset) -> list[float]:
        return learnt_amplitudes(model, data.inputs, self.frequencies, [1.0] * len(self.frequencies))

    def _trained(self, lab: Lab, model: MLP, data: Dataset) -> int:
        def look(training: Training) -> None:
            if min(self._shares(model, data)) >= self.fitted:
                training.stop()

        optimizer = torch.optim.Adam(model.parameters(), lr=self.rate)
        batches = Minibatches(data, None, lab.seed)
        return train(
            model, batches, squared_error, optimizer, self.steps, lab=lab, callbacks=[OnPeriod(100, look)]
        ).step

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        orders, gaps = [], []
        for size in self.sizes[1:]:
            rows = results.table("perturbed", size=size, seed=seed)
            shares = rows["share"]
            orders.append(rank_correlation(rows["frequency"], shares))
            gaps.append((size, float(shares[:2].mean() - shares[-2:].mean())))
        middle = self.sizes[-1] / 2
        (fitted,) = results.table("fitted", seed=seed).rows
        return {
            "SB-2-fitted": float(min(fitted["normalized"])),
            "SB-2-order": float(np.mean(orders)),
            "SB-2-gap": next(gap for size, gap in gaps if size >= middle),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """The map, and some frequencies as curves."""
        figure, ((left, right),) = panels(2)
        table = results.table("perturbed")
        values = np.array(
            [[table.where(size=size, frequency=k)["share"].mean() for k in self.frequencies] for size in self.sizes]
        )
        top = len(self.frequencies) - 0.5
        heatmap(left, values, "share", origin="lower", vmin=0, vmax=1, extent=(-0.5, top, 0, self.sizes[-1]))
        left.set_xticks(range(len(self.frequencies)), [str(k) for k in self.frequencies])
        label(left, "frequency", "length of the perturbation", "what is left")
        for color, frequency in zip(PALETTE, self.frequencies[::2], strict=False):
            band(right, results.curves("perturbed", "size", "share", frequency=frequency), str(frequency), color=color)
        label(right, "length of the perturbation", "amplitude over that before", "by frequency")
        legend_beside(right, "frequency")
        yield Picture(
            "figure-3.3",
            figure,
            "Amplitudes of a trained network whose parameters were moved in a random direction, over its own amplitudes "
            f"(mean over {self.directions} directions): left mean over seeds, clipped at 1; right some frequencies, mean over "
            "seeds and all seeds as a band.",
        )
