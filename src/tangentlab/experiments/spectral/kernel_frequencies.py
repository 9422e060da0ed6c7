"""Experiment 4, first half: the eigenvectors of a Gaussian kernel on a line are waves, ordered by frequency."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.figures.style import PALETTE, heatmap, label, panels
from tangentlab.kernels import main_frequency
from tangentlab.spectral import KernelBasis, discrete_spectrum, gaussian_kernel


@experiment
class KernelFrequencies(Experiment):
    """Kernels of three widths at 50 points, decomposed and Fourier transformed."""

    name = "kernel-frequencies"
    title = "The eigenvectors of a Gaussian kernel are ordered by frequency"
    question = (
        "On images there is no Fourier transform to look at, and the index of a kernel's eigenvector takes its place. On 50 "
        "equally spaced points, where both exist: does the frequency of the eigenvectors grow with their index?"
    )
    chapter = Chapter.SPECTRAL
    place = "experiment 4, figures 3.6 and A.3"
    claims = claims_of("kernel-frequencies")
    scales = {"smoke": {"points": 20, "widths": (0.05,)}, "paper": {}}
    minutes = {"smoke": 0.05, "desk": 0.1, "paper": 0.1}
    random = False
    notes = {"desk": "as in the paper, which does not say the width: from 0.1 on, the kernel is singular to rounding."}

    points: int = 50
    widths: tuple[float, ...] = (0.01, 0.02, 0.05)

    def cost(self) -> Cost:
        """One step per width."""
        return Cost(len(self.widths), 0.01, 250)

    def run(self, lab: Lab) -> None:
        """Decompose, count sign changes, transform."""
        where = torch.linspace(0, 1, self.points, dtype=torch.float64)[:, None]
        for width in lab.loop(self.widths, "widths"):
            vectors = KernelBasis.of(gaussian_kernel(where, width=width)).vectors
            changes = ((vectors[:, :-1] * vectors[:, 1:]) < 0).sum(1)
            order = rank_correlation(np.arange(self.points), main_frequency(vectors))
            wrong = int((changes != torch.arange(self.points)).sum())
            lab.log("width", width=width, order=order, wrong=wrong)
            if width == self.widths[-1]:
                lab.save_array("vectors", vectors)
                lab.save_array("spectra", discrete_spectrum(vectors))

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        table = results.table("width", seed=seed)
        return {"SB-4-order": float(table["order"].min()), "SB-4-crossings": float(table["wrong"].max())}

    def draw(self, results: Results) -> Iterator[Picture]:
        """The map of frequencies and the two extreme eigenvectors."""
        figure, ((left, right),) = panels(2)
        if not results.has_arrays("spectra"):
            return
        vectors, spectra = results.array("vectors"), results.array("spectra")
        heatmap(left, spectra, "magnitude", origin="lower", extent=(0, spectra.shape[1], 0.5, len(spectra) + 0.5))
        label(left, "frequency [periods]", "index of the eigenvector", "spectra")
        where = np.linspace(0, 1, vectors.shape[1])
        for row, color, name in ((0, PALETTE[0], "the first"), (-1, PALETTE[1], "the last")):
            right.plot(where, vectors[row], color=color, label=name, linewidth=1.2)
        label(right, "input", "value of the eigenvector", "two eigenvectors")
        right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        yield Picture(
            "figures-3.6-a.3",
            figure,
            f"Eigenvectors of the Gaussian kernel of width {self.widths[-1]:g} at {self.points} equally spaced points. Left: "
            "their discrete Fourier transforms. Right: those of the largest and of the smallest eigenvalue.",
        )
