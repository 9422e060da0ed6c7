"""Figures 5.6 and C.1: reconstructions, samples and codes of adversarial inference on 25 Gaussians."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from tangentlab.data import gaussian_grid, grid
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Game,
    Lab,
    Minibatches,
    OnPeriod,
    Picture,
    Results,
    experiment,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.information._games import DenseCritic, DenseGenerator
from tangentlab.experiments.information._inference import RIVALS, Networks, compete
from tangentlab.experiments.information._measures import last_rows
from tangentlab.figures.style import band, label, legend_outside, panels
from tangentlab.information import coverage_of_points, reconstruction_error

SPREAD = 0.05


class NoisyEncoder(nn.Module):
    """`F([x, eps])` with two hidden layers; the noise is drawn at every call."""

    def __init__(self, noise: int, latent: int, width: int) -> None:
        super().__init__()
        self.noise, self.network = noise, DenseGenerator(2 + noise, latent, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Codes of points."""
        return self.network(x, torch.randn(len(x), self.noise))


@experiment
class AliGaussians(Experiment):
    """Four rivals from the same initial weights; the seed draws data, weights and noise."""

    name = "ali-gaussians"
    title = "Adversarial inference that reconstructs"
    question = (
        "Encoder and decoder of 25 Gaussians learn from a discriminator of pairs (ALI), with the information between data and "
        "codes as well, or with an explicit cycle (ALICE). How far from a point is its reconstruction, is it in the same mode, "
        "and do samples from the prior hit all modes?"
    )
    chapter = Chapter.INFORMATION
    place = "figures 5.6 and C.1"
    claims = claims_of("ali-gaussians")
    scales = {
        "smoke": {"images": 500, "steps": 6, "period": 3, "width": 16, "samples": 100},
        "paper": {"steps": 20_000, "period": 1_000},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 15, "paper": 150}
    notes = {"desk": "2,000 iterations of networks as in C.1.2; the paper gives none for this data set."}
    dropped = ("others/points", "others/reconstructed-*", "others/samples-*", "others/codes-*")

    images: int = 100_000
    batch: int = 100
    steps: int = 2_000
    period: int = 250
    width: int = 500
    rate: float = 1e-4
    noise: int = 2
    latent: int = 2
    samples: int = 1_500

    def cost(self) -> Cost:
        """Turns of all rivals."""
        return Cost(len(RIVALS) * self.steps, 0.025, 500)

    def run(self, lab: Lab) -> None:
        """All rivals on the same data."""
        data = gaussian_grid(self.images, lab.generator("data"), spacing=2.0, spread=SPREAD)
        other = gaussian_grid(self.samples, lab.generator("test"), spacing=2.0, spread=SPREAD)
        lab.save_array("points", other.inputs)
        lab.save_array("modes", other.targets)
        critic = 4 * self.width // 5
        networks = Networks(
            lambda: NoisyEncoder(self.noise, self.latent, self.width),
            lambda: DenseGenerator(self.latent, 2, self.width),
            lambda: DenseCritic(2 + self.latent, critic),
            lambda: DenseCritic(2 + self.latent, critic, nn.ELU),
            lambda: DenseCritic(4, critic),
        )
        for rival in RIVALS:

            def watch(encoder: nn.Module, decoder: nn.Module, rival: str = rival) -> list[OnPeriod]:
                return [
                    OnPeriod(self.period, lambda game: self._record(lab, rival, game, encoder, decoder, other.inputs))
                ]

            batches = Minibatches(data, self.batch, lab.seed)
            compete(lab, rival, networks, batches, self.steps, self.latent, self.rate, callbacks=watch)

    @torch.no_grad()
    def _record(
        self, lab: Lab, rival: str, game: Game, encoder: nn.Module, decoder: nn.Module, points: torch.Tensor
    ) -> None:
        """Reconstructions of other points, and samples from the prior, with the running averages of batch norms."""
        encoder.eval(), decoder.eval()
        codes = encoder(points)
        reconstructed = decoder(codes)
        samples = decoder(torch.randn(self.samples, self.latent, generator=lab.generator("samples")))
        encoder.train(), decoder.train()
        centres = grid(5, 4.0)
        same = torch.cdist(points, centres).argmin(1) == torch.cdist(reconstructed, centres).argmin(1)
        found = coverage_of_points(samples, centres, SPREAD)
        lab.log(
            "reconstruction",
            rival=rival,
            step=game.step,
            error=reconstruction_error(points, reconstructed).mean(),
            same=same.double().mean(),
            modes=found.modes,
            reverse_kl=found.reverse_kl,
            good=found.good_share,
        )
        if game.step == game.steps:
            for name, array in (("reconstructed", reconstructed), ("samples", samples), ("codes", codes)):
                lab.save_array(f"{name}-{rival}", array)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the last rows of the log."""
        last = last_rows(results, "reconstruction", seed, "rival")

        def gap(first: str, second: str, column: str) -> float:
            return float(last[first][column] - last[second][column])

        return {
            "M5-g-error": gap("ali", "mine", "error"),
            "M5-g-mode": gap("mine", "ali", "same"),
            "M5-g-all-modes": last["mine"]["modes"],
            "M5-g-alice-error": gap("mine", "alice-adv", "error"),
            "M5-g-alice-modes": gap("mine", "alice-adv", "reverse_kl"),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Points above and samples below, codes by mode, and the course of error and modes."""
        yield self._clouds(results)
        yield self._codes(results)
        yield self._course(results)

    def _clouds(self, results: Results) -> Picture:
        figure, rows = panels(4, 2, width=2.6, height=2.5)
        titles = {"reconstructed": "reconstructions", "samples": "samples from the prior"}
        for row, (name, what) in zip(rows, titles.items(), strict=True):
            for axes, (rival, (title, _, _)) in zip(row, RIVALS.items(), strict=True):
                points = results.array(f"{name}-{rival}")
                axes.scatter(points[:, 0], points[:, 1], s=2, alpha=0.4, linewidths=0, rasterized=True)
                axes.set(xlim=(-5, 5), ylim=(-5, 5))
                label(axes, "first entry", f"{what}" if rival == "ali" else "second entry", title)
        caption = (
            f"Reconstructions of other points and samples from the prior after {self.steps:,} iterations; first seed."
        )
        return Picture("figure-5.6", figure, caption)

    def _codes(self, results: Results) -> Picture:
        figure, (row,) = panels(4, width=2.6, height=2.6)
        modes = np.asarray(results.array("modes"))
        for axes, (rival, (title, _, _)) in zip(row, RIVALS.items(), strict=True):
            codes = results.array(f"codes-{rival}")
            axes.scatter(codes[:, 0], codes[:, 1], s=3, c=modes, cmap="turbo", linewidths=0, rasterized=True)
            label(axes, "first entry of the code", "second entry", title)
        return Picture("figure-c.1", figure, "Codes of other points, one colour for each of the 25 modes; first seed.")

    def _course(self, results: Results) -> Picture:
        figure, (row,) = panels(3)
        columns = {
            "error": "distance of the reconstruction",
            "same": "share in the same mode",
            "modes": "modes hit by samples",
        }
        for axes, (column, what) in zip(row, columns.items(), strict=True):
            for rival, (title, _, _) in RIVALS.items():
                band(axes, results.curves("reconstruction", "step", column, rival=rival), title)
            label(axes, "iteration", what)
        legend_outside(figure, row[0], 4)
        return Picture("course", figure, "Reconstruction and coverage over the iterations; mean and range over seeds.")
