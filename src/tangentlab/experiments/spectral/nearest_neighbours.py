"""Appendix A.5.2: a network's decision is smoother than that of nearest neighbours, which make nothing of the curve's shape."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.data import grid
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.spectral._labelled import (
    HALF_WIDTH,
    base_rate,
    beyond_base,
    fit_labels,
    labelled_flower,
    logits_on_square,
)
from tangentlab.experiments.spectral._waves import Array, common_network
from tangentlab.figures.style import INK, PALETTE, heatmap, label, legend_beside, panels
from tangentlab.spectral import neighbour_probabilities, radial_spectrum

NETWORK = "network"


@experiment
class NearestNeighbours(Experiment):
    """One training and one search; the seed draws the phase and the weights."""

    name = "nearest-neighbours"
    title = "A network is smoother than its nearest-neighbour rivals"
    question = (
        "Alternating labels on a flower are learnt by a network and by K nearest neighbours. How much of every frequency is in "
        "their maps of probabilities? And do nearest neighbours gain from more petals, as networks do?"
    )
    chapter = Chapter.SPECTRAL
    place = "A.5.2, figure A.13"
    claims = claims_of("nearest-neighbours")
    scales = {
        "smoke": {
            "samples": 100,
            "frequency": 10,
            "petal": 4,
            "steps": 10,
            "width": 16,
            "side": 20,
            "neighbours": (1, 3, 10),
            "frequencies": (10, 20),
            "petals": (0, 4),
        },
        "paper": {"steps": 50_000},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 4, "paper": 55}
    notes = {"desk": "2,500 steps at a learning rate of 0.001; the paper does not say which K."}

    samples: int = 1_000
    frequency: int = 150
    petal: int = 20
    threshold: float = 0.5
    width: int = 256
    layers: int = 6
    rate: float = 1e-3
    steps: int = 2_500
    side: int = 200
    neighbours: tuple[int, ...] = (1, 3, 5, 10, 50)
    frequencies: tuple[int, ...] = tuple(range(50, 401, 50))
    petals: tuple[int, ...] = tuple(range(0, 21, 2))

    def cost(self) -> Cost:
        """Steps of the training, and one per cell of the heatmaps."""
        return Cost(self.steps + len(self.frequencies) * len(self.petals), 0.02, 500)

    def run(self, lab: Lab) -> None:
        """Train, map, transform; then the accuracies of neighbours on all curves."""
        data = labelled_flower(self.samples, self.frequency, self.petal, self.threshold, lab.generator("phase"))
        model = common_network(lab, 2, self.width, self.layers)
        fit_labels(lab, model, data, self.steps, self.rate, "network", frequency=self.frequency, petals=self.petal)
        square = grid(self.side, HALF_WIDTH)
        maps = neighbour_probabilities(data.inputs, data.targets, square, self.neighbours)
        network = torch.sigmoid(logits_on_square(model, self.side)).double()
        learners = {NETWORK: network, **{str(k): maps[n].view_as(network) for n, k in enumerate(self.neighbours)}}
        spacing = 2 * HALF_WIDTH / (self.side - 1)
        for name, values in learners.items():
            k, zeta = radial_spectrum(values, spacing)
            lab.log("radial", learner=name, frequencies=k.tolist(), zeta=zeta.tolist())
        for frequency, petals in lab.loop(
            [(k, petals) for k in self.frequencies for petals in self.petals], "neighbours"
        ):
            cell = labelled_flower(self.samples, frequency, petals, self.threshold, lab.generator("phase"))
            shares = neighbour_probabilities(cell.inputs, cell.targets, cell.inputs, self.neighbours)
            right = (shares > 0.5) == (cell.targets[:, 0] > 0.5)
            base = base_rate(cell.targets)
            for count, accuracy in zip(self.neighbours, right.double().mean(1).tolist(), strict=True):
                lab.log("neighbours", K=count, frequency=frequency, petals=petals, beyond=beyond_base(accuracy, base))

    def _zeta(self, results: Results, seed: int) -> tuple[Array, dict[str, Array]]:
        rows = results.table("radial", seed=seed).rows
        return np.array(rows[0]["frequencies"]), {row["learner"]: np.array(row["zeta"]) for row in rows}

    def _accuracies(self, results: Results, seed: int, count: int) -> Array:
        """`(petals, frequencies)`."""
        table = results.table("neighbours", seed=seed, K=count)
        cells = {(row["petals"], row["frequency"]): row["beyond"] for row in table.rows}
        return np.array([[cells.get((petals, k), np.nan) for k in self.frequencies] for petals in self.petals])

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        k, zeta = self._zeta(results, seed)
        high, low = k > k[-1] / 2, k < k[-1] / 10
        rivals = [zeta[str(count)] for count in self.neighbours]
        table = results.table("accuracy", seed=seed)
        last = max(table.rows, key=lambda row: row["step"])
        orders = [
            rank_correlation(self.petals, column)
            for count in self.neighbours[1:]
            for column in self._accuracies(results, seed, count).T
        ]
        ratios = [float(zeta[NETWORK][high].mean() / rival[high].mean()) for rival in rivals]
        lows = float(zeta[NETWORK][low].mean() / rivals[0][low].mean())
        fall, *falls = (float(one[high].mean() / one[low].mean()) for one in (zeta[NETWORK], *rivals))
        return {
            "SB-10-fitted": last["accuracy"],
            "SB-10-smooth": max(ratios),
            "SB-10-expressive": abs(float(np.log2(lows))),
            "SB-10-decay": fall / min(falls),
            "SB-10-petals": float(np.mean(orders)),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Radial spectra, and heatmaps of neighbours."""
        figure, ((axes,),) = panels(width=6.0)
        k, _ = self._zeta(results, results.seeds[0])
        spectra = [self._zeta(results, seed)[1] for seed in results.seeds]
        for color, name in zip((INK, *PALETTE), spectra[0], strict=False):
            values = np.mean([one[name] for one in spectra], axis=0)
            axes.plot(k, values, color=color, linewidth=1.3, label=name if name == NETWORK else f"K = {name}")
        axes.set_yscale("log")
        label(axes, "radial frequency [periods per unit of length]", "radial magnitude ζ")
        legend_beside(axes)
        yield Picture(
            "figure-a.13e",
            figure,
            "Radial spectra of the maps of probabilities of a network and of K nearest neighbours on a square, trained on the "
            f"same points: labels of frequency {self.frequency} on {self.petal} petals. Mean over seeds.",
        )
        yield self._heatmaps(results)

    def _heatmaps(self, results: Results) -> Picture:
        counts = self.neighbours[1:]
        figure, axes = panels(2, (len(counts) + 1) // 2, height=3.0)
        for panel, count in zip(axes.flat, counts, strict=False):
            mean = np.mean([self._accuracies(results, seed, count) for seed in results.seeds], axis=0)
            extent = (-0.5, len(self.frequencies) - 0.5, -0.5, len(self.petals) - 0.5)
            heatmap(panel, mean, "accuracy", origin="lower", vmin=0, vmax=1, extent=extent)
            shown = range(0, len(self.frequencies), max(1, len(self.frequencies) // 4))
            panel.set_xticks(list(shown), [str(self.frequencies[place]) for place in shown])
            rows = range(0, len(self.petals), max(1, len(self.petals) // 5))
            panel.set_yticks(list(rows), [str(self.petals[place]) for place in rows])
            label(panel, "frequency of the labels", "petals", f"K = {count}")
        for panel in list(axes.flat)[len(counts) :]:
            panel.set_axis_off()
        return Picture(
            "figure-a.13",
            figure,
            "Training accuracy of K nearest neighbours, 0 at the base rate and below and 1 without mistakes; mean over seeds.",
        )
