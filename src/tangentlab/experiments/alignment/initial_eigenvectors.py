"""Figure B.2: eigenvectors of the tangent kernel of a random network on a line are nearly Fourier modes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab import NTK
from tangentlab.alignment import fourier_power, kernel_modes
from tangentlab.experiments import Chapter, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.figures.style import PALETTE, heatmap, label, legend_below, panels
from tangentlab.models import MLP


@experiment
class InitialEigenvectors(Experiment):
    """The kernel of a random network at equally spaced points, decomposed and Fourier transformed."""

    name = "initial-eigenvectors"
    title = "A random network's kernel prefers low frequencies"
    question = (
        "Which functions does a network learn fastest before training has changed its kernel? The tangent kernel of a random "
        "network with six hidden layers is computed at equally spaced points of an interval. Are its eigenvectors waves, and "
        "does their frequency grow as their eigenvalue falls?"
    )
    chapter = Chapter.ALIGNMENT
    place = "B.1.5.2, figure B.2"
    claims = claims_of("initial-eigenvectors")
    scales = {"smoke": {"points": 20, "width": 16, "hidden": 2}, "paper": {}}
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 0.2, "paper": 0.2}
    notes = {"desk": "as in the paper; weights and biases have PyTorch's default initialization."}

    points: int = 50
    width: int = 256
    hidden: int = 6

    def run(self, lab: Lab) -> None:
        """One kernel, one decomposition."""
        where = torch.linspace(0, 1, self.points, dtype=torch.float64)[:, None]
        with lab.seeded("model"):
            model = MLP((1, *[self.width] * self.hidden, 1)).double()
        kernel = NTK(model, where, progress=False)
        centred, raw = kernel_modes(kernel, center="global"), kernel_modes(kernel)
        power = fourier_power(centred.vectors[:, 0])
        half = self.points // 2
        main = power[:half].argmax(1).double()
        pairs = (power[:, :-1] + power[:, 1:]).amax(1)
        for name, modes in (("centred", centred), ("not centred", raw)):
            lab.save_array(f"power, {name}", fourier_power(modes.vectors[:, 0]))
            lab.save_array(f"vectors, {name}", modes.vectors[:, 0])
            for place, value in enumerate((modes.values / modes.values[0]).tolist(), start=1):
                lab.log("eigenvalue", kernel=name, index=place, value=value)
        lab.measure("B.2-order", rank_correlation(np.arange(half), main))
        lab.measure("B.2-pure", float(pairs[:half].mean()))
        lab.measure("B.2-per-mille", float(centred.values[9] / centred.values[0]))

    def draw(self, results: Results) -> Iterator[Picture]:
        """Frequencies, some eigenvectors, eigenvalues; the uncentred twin."""
        yield _figure(results, "centred", "figure-b.2")
        yield _figure(results, "not centred", "figure-b.2-uncentred")


def _figure(results: Results, kernel: str, name: str) -> Picture:
    figure, ((left, middle, right),) = panels(3)
    power, vectors = results.array(f"power, {kernel}"), results.array(f"vectors, {kernel}")
    heatmap(left, np.sqrt(power.T), "Fourier magnitude", origin="lower", vmin=0, vmax=1)
    label(left, "index of the eigenvector", "frequency [periods]", "frequencies")
    shown = [place for place in (0, 5, 20) if place < len(vectors)]
    for place, color in zip(shown, PALETTE, strict=False):
        middle.plot(np.linspace(0, 1, vectors.shape[1]), vectors[place], color=color, label=f"j = {place}")
    label(middle, "input", "value of the eigenvector", "eigenvectors")
    for which, style in (("centred", "-"), ("not centred", "--")):
        curves = results.curves("eigenvalue", "index", "value", kernel=which)
        right.plot(curves.x, curves.mean, style, color=PALETTE[3], label=which)
        right.fill_between(curves.x, curves.low, curves.high, color=PALETTE[3], alpha=0.2, linewidth=0)
    right.set_yscale("log")
    label(right, "index", "eigenvalue over the first", "eigenvalues")
    for axes, columns in ((middle, 3), (right, 2)):
        legend_below(axes, columns)
    return Picture(
        name,
        figure,
        f"Left: Fourier magnitudes of the eigenvectors of a random network's tangent kernel, {kernel}, at equally spaced "
        "points of [0, 1]. Middle: three of them. Right: the eigenvalues, centred and not. Left and middle one seed; right "
        "the mean over seeds, all seeds as a band.",
    )
