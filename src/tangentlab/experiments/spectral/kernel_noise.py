"""Experiment 4, second half: noise of high frequency on the labels of images is learnt after the labels themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, Training, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments.spectral._digits import error_on, two_digits
from tangentlab.experiments.spectral._waves import common_network, mean_map, regress
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, panels
from tangentlab.spectral import KernelBasis, gaussian_kernel

KERNELS = ("published", "wide")
DIP = 200
"""The iteration at which the paper sees the validation loss dip."""


@experiment
class KernelNoise(Experiment):
    """One training per kernel; the seed draws images and weights."""

    name = "kernel-noise"
    title = "Noise of high frequency is learnt after the labels"
    question = (
        "The labels of two kinds of digits get noise that lives in the roughest eigenvectors of a Gaussian kernel. In which "
        "order does a network learn labels and noise, and when is it closest to the labels without noise?"
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 4, figures 3.5 and A.4"
    claims = claims_of("kernel-noise")
    scales = {
        "smoke": {"dataset": "digits", "images": 60, "steps": 20, "period": 10, "width": 16, "bins": 6},
        "paper": {"images": 2_000, "steps": 5_000},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 12, "paper": 60}
    notes = {
        "desk": "1,500 images and 1,500 steps. With the published width the kernel is nearly the identity, so there is a wide "
        "one beside it."
    }

    dataset: str = "mnist"
    images: int = 1_500
    widths: tuple[float, ...] = (round(1.25 * math.sqrt(2), 4), 10.0)
    exponent: float = 2.0
    amplitude: float = 1.0
    width: int = 256
    layers: int = 6
    rate: float = 1e-4
    steps: int = 1_500
    period: int = 20
    bins: int = 30

    def cost(self) -> Cost:
        """Steps of both trainings."""
        return Cost(len(KERNELS) * self.steps, 0.06, 700)

    def run(self, lab: Lab) -> None:
        """Decompose, add noise, train, and look at every spectrum on the way."""
        data = two_digits(lab, self.dataset, self.images)
        for name, width in zip(KERNELS, self.widths, strict=True):
            basis = KernelBasis.of(gaussian_kernel(data.inputs, width=width))
            noise = self.amplitude * basis.noise(self.exponent).float()[:, None]
            noisy = Dataset(data.inputs, data.targets + noise, data.name)
            lab.log("targets", kernel=name, kind="labels", spectrum=self._binned(basis, data.targets))
            lab.log("targets", kernel=name, kind="labels with noise", spectrum=self._binned(basis, noisy.targets))
            largest, smallest = float(basis.values[0]), float(basis.values[-1])
            lab.log("kernel", kernel=name, width=width, largest=largest, smallest=smallest)
            model = common_network(lab, data.inputs.shape[1], self.width, self.layers)
            regress(
                lab,
                "training",
                model,
                noisy,
                (self.rate, self.steps, self.period),
                partial(self._look, basis, data, noisy),
                name=name,
                kernel=name,
            )

    def _binned(self, basis: KernelBasis, values: Tensor) -> list[float]:
        """Mean magnitudes of the coefficients over consecutive eigenvectors."""
        parts = basis.spectrum(values.flatten()).abs().tensor_split(self.bins)
        return [float(part.mean()) for part in parts]

    def _look(self, basis: KernelBasis, data: Dataset, noisy: Dataset, training: Training) -> Row:
        with torch.no_grad():
            values = training.model(data.inputs)
        half = len(data) // 2
        rough, wanted = (basis.spectrum(one.flatten())[half:] for one in (values, noisy.targets))
        return {
            "loss": float((values - noisy.targets).square().mean()),
            "clean": error_on(training.model, data.inputs, data.targets),
            "rough": float((rough @ wanted) / (wanted @ wanted)),
            "spectrum": self._binned(basis, values),
        }

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        found: dict[str, float | str] = {}
        shares = []
        for kernel in KERNELS:
            rows = sorted(results.table("training", kernel=kernel, seed=seed).rows, key=lambda row: row["step"])
            dip, last = min(rows, key=lambda row: row["clean"]), rows[-1]
            shares.append(dip["rough"])
            if kernel == "published":
                found["SB-4-when"] = abs(math.log2(max(dip["step"], 1) / DIP))
                found["SB-4-fall"] = dip["loss"] - last["loss"]
            found[f"SB-4-rise-{kernel}"] = last["clean"] - dip["clean"]
            found[f"SB-4-unlearnt-{kernel}"] = last["rough"] - dip["rough"]
        return {**found, "SB-4-dip": max(shares)}

    def draw(self, results: Results) -> Iterator[Picture]:
        """Spectra at some steps, and the losses."""
        yield self._spectra(results)
        yield self._losses(results)

    def _spectra(self, results: Results) -> Picture:
        figure, (axes,) = panels(2, height=3.6)
        for panel, kernel in zip(axes, KERNELS, strict=True):
            targets = results.table("targets", kernel=kernel)
            places = np.linspace(0, self.images, self.bins + 1)[1:]
            for kind, style in (("labels", "--"), ("labels with noise", "-")):
                rows = [row["spectrum"] for row in targets.where(kind=kind).rows]
                panel.plot(places, np.mean(rows, axis=0), style, color=GRAY, label=kind)
            steps, spectra = mean_map(results.table("training", kernel=kernel), "spectrum", results.seeds)
            for color, wanted in zip(PALETTE, (40, DIP, 600, self.steps), strict=False):
                place = int(np.abs(steps - wanted).argmin())
                panel.plot(places, spectra[place], color=color, label=f"step {int(steps[place]):,}")
            panel.set_yscale("log")
            label(panel, "index of the eigenvector", "mean magnitude of the coefficients", f"{kernel} kernel")
            legend_below(panel, 2)
        return Picture(
            "figure-3.5",
            figure,
            "Coefficients of the network in the eigenvectors of a Gaussian kernel, from the smoothest to the roughest, at "
            "some steps, and those of the labels without and with noise; mean over seeds. Left: the published width, with "
            "which the kernel is nearly the identity. Right: a wide one.",
        )

    def _losses(self, results: Results) -> Picture:
        figure, (axes,) = panels(2)
        for panel, kernel in zip(axes, KERNELS, strict=True):
            for column, name in (("loss", "to the noisy labels"), ("clean", "to the labels without noise")):
                band(panel, results.curves("training", "step", column, kernel=kernel), name)
            label(panel, "training step", "mean squared error", f"{kernel} kernel")
            legend_below(panel, 1)
        return Picture(
            "figure-a.4",
            figure,
            "The error on the training images, to the noisy labels (which are trained on) and to those without noise: mean "
            "over seeds, and all seeds as a band.",
        )
