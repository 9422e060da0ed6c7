"""Figures 5.3 and 5.4: does raising the information between samples and a code keep a GAN from losing modes?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from tangentlab.data import Dataset, gaussian_grid, grid, spiral, spiral_curve
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Game,
    Lab,
    Minibatches,
    OnPeriod,
    Picture,
    Player,
    Results,
    experiment,
    play,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.information._games import DenseCritic, DenseGenerator, GanTurn, Information
from tangentlab.experiments.information._measures import last_rows
from tangentlab.figures.style import band, heatmap, label, legend_outside, panels
from tangentlab.information import ModeCoverage, coverage_of_modes, coverage_of_points

ARMS = {0.0: "GAN", 1.0: "GAN + MINE"}
SETS = {"gaussians": "25 Gaussians", "spiral": "spiral"}
SPREAD = 0.05
PIECES, FINE = 25, 40


@experiment
class GanModes(Experiment):
    """Two data sets, each learned with and without the information term; the seed draws data, weights and noise."""

    name = "gan-modes"
    title = "A GAN that tells its code"
    question = (
        "A generator learns 25 Gaussians, and a spiral, from a discriminator alone, or while it also raises the information "
        "that its samples carry about a part of its input. How many modes do 2,500 samples hit, and how evenly?"
    )
    chapter = Chapter.INFORMATION
    place = "figures 5.3 and 5.4"
    claims = claims_of("gan-modes")
    scales = {"smoke": {"images": 500, "steps": 6, "period": 3, "width": 16, "samples": 100}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 15, "paper": 15}
    dropped = ("others/data-*", "others/samples-*")
    notes = {
        "desk": "The printed settings. Grid and spread of the Gaussians are PacGAN's; the paper gives neither the spiral nor "
        "the sizes of noise and code (here 2 and 2). The longer arm is --set steps=20000; claims are judged at 5,000."
    }

    images: int = 100_000
    batch: int = 100
    steps: int = 5_000
    judged: int = 5_000
    period: int = 500
    width: int = 500
    rate: float = 1e-4
    noise: int = 2
    codes: int = 2
    samples: int = 2_500

    def cost(self) -> Cost:
        """Turns of all games."""
        return Cost(len(SETS) * len(ARMS) * self.steps, 0.02, 500)

    def run(self, lab: Lab) -> None:
        """The same data and initial weights with and without the information term."""
        makers = {
            "gaussians": lambda g: gaussian_grid(self.images, g, spacing=2.0, spread=SPREAD),
            "spiral": self._spiral,
        }
        for name, make in makers.items():
            data = make(lab.generator("data", name))
            lab.save_array(f"data-{name}", data.inputs[: self.samples])
            for beta in ARMS:
                self._play(lab, data, name, beta)

    def _spiral(self, generator: torch.Generator) -> Dataset:
        return spiral(self.images, generator, spread=SPREAD)

    def _play(self, lab: Lab, data: Dataset, name: str, beta: float) -> None:
        latent, critic = self.noise + self.codes, 4 * self.width // 5
        with lab.seeded("players", name):
            players = {
                "generator": Player.adam(DenseGenerator(latent, 2, self.width), lr=self.rate),
                "discriminator": Player.adam(DenseCritic(2, critic), lr=self.rate),
                "statistics": Player.adam(DenseCritic(2 + self.codes, critic, torch.nn.ELU), lr=self.rate),
            }
        if not beta:
            del players["statistics"]
        generator = players["generator"].model

        def samples() -> Tensor:
            generator.eval()
            with torch.no_grad():
                points = generator(torch.randn(self.samples, latent, generator=lab.generator("samples")))
            generator.train()
            return points

        def record(game: Game) -> None:
            found = coverage(name, samples())
            facts = {"modes": found.modes, "reverse_kl": found.reverse_kl, "good": found.good_share}
            lab.log("coverage", data=name, beta=beta, step=game.step, **facts)
            if game.step == min(self.judged, game.steps):
                lab.save_array(f"samples-{name}-{beta:g}", samples())

        information = Information(beta)
        play(
            players,
            Minibatches(data, self.batch, lab.seed),
            GanTurn(latent, self.codes, information),
            self.steps,
            lab=lab,
            name=f"{name} {beta:g}",
            callbacks=[OnPeriod(self.period, record)],
            parts={"information": information},
        )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log, at the printed number of iterations."""

        def at_end(name: str, beta: float, column: str) -> float:
            return float(last_rows(results, "coverage", seed, "beta", self.judged, data=name)[beta][column])

        def gain(name: str, column: str) -> float:
            return at_end(name, 1.0, column) - at_end(name, 0.0, column)

        return {
            "M3-gaussians": gain("gaussians", "modes"),
            "M3-spiral": gain("spiral", "modes"),
            "M3-all-modes": at_end("gaussians", 1.0, "modes"),
            "M3-kl-gaussians": gain("gaussians", "reverse_kl"),
            "M3-kl-spiral": gain("spiral", "reverse_kl"),
            "M3-quality": gain("gaussians", "good"),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Densities of the Gaussians, points of the spirals, and coverage over the iterations."""
        yield self._densities(results)
        yield self._points(results)
        yield self._coverage(results)

    def _shown(self, results: Results, name: str) -> dict[str, np.ndarray]:
        """Data and samples of the first seed, by the name of the panel."""
        arms = {ARMS[beta]: results.array(f"samples-{name}-{beta:g}") for beta in ARMS}
        return {"data": results.array(f"data-{name}"), **arms}

    def _densities(self, results: Results) -> Picture:
        figure, (row,) = panels(3, width=3.3)
        for axes, (title, points) in zip(row, self._shown(results, "gaussians").items(), strict=True):
            counts, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=160, range=[[-5, 5], [-5, 5]], density=True)
            density = gaussian_filter(counts, 2.0)
            heatmap(axes, density, "density", extent=(-5, 5, -5, 5), origin="lower", vmin=0)
            label(axes, "first entry", "second entry", title)
        when = f"{min(self.judged, self.steps):,}"
        return Picture(
            "figure-5.4",
            figure,
            f"25 Gaussians and {self.samples:,} samples of both generators after {when} iterations, as densities under a "
            "Gaussian kernel of .125; first seed.",
        )

    def _points(self, results: Results) -> Picture:
        figure, (row,) = panels(3, width=3.0)
        for axes, (title, points) in zip(row, self._shown(results, "spiral").items(), strict=True):
            axes.scatter(points[:, 0], points[:, 1], s=2, alpha=0.4, linewidths=0, rasterized=True)
            axes.set(xlim=(-5, 5), ylim=(-5, 5))
            label(axes, "first entry", "second entry", title)
        return Picture("figure-5.3", figure, "The spiral and samples of both generators, as in figure 5.4; first seed.")

    def _coverage(self, results: Results) -> Picture:
        figure, grid_of_axes = panels(2, 2, height=2.6)
        columns = {"modes": "modes hit", "reverse_kl": "reverse KL [nats]"}
        for row, (column, title) in zip(grid_of_axes, columns.items(), strict=True):
            for axes, name in zip(row, SETS, strict=True):
                for beta, arm in ARMS.items():
                    band(axes, results.curves("coverage", "step", column, data=name, beta=beta), arm)
                label(axes, "iteration", title, SETS[name])
        legend_outside(figure, grid_of_axes[0][0], 2)
        return Picture(
            "coverage",
            figure,
            f"Modes with at least one of {self.samples:,} samples within three standard deviations (the spiral in {PIECES} "
            "pieces of equal probability), and the divergence of the histogram over modes from the uniform one; mean and range "
            "over seeds.",
        )


def coverage(name: str, points: Tensor) -> ModeCoverage:
    """Over the 25 Gaussians, or over pieces of the spiral."""
    if name == "gaussians":
        return coverage_of_points(points, grid(5, 4.0), SPREAD)
    along = (torch.arange(PIECES * FINE) + 0.5) / (PIECES * FINE)
    distances, nearest = torch.cdist(points, spiral_curve(along)).min(1)
    return coverage_of_modes(nearest // FINE, PIECES, distances <= 3 * SPREAD)
