"""Table 5.1 and figure 5.5: how many of the 1000 modes of stacked digits does a generator hit?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

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
from tangentlab.experiments._images import for_trial
from tangentlab.experiments.information._classifier import digit_classifier, in_unit_range, predictions
from tangentlab.experiments.information._games import GanTurn, Information
from tangentlab.experiments.information._measures import last_rows
from tangentlab.figures.style import band, label, legend_outside, panels
from tangentlab.information import Convolutional, ModeCoverage, coverage_of_modes
from tangentlab.models import ConvDiscriminator, ConvGenerator


class Arm(NamedTuple):
    """A way to train: the weight of the information, samples that are judged together, and what was published."""

    title: str
    beta: float
    packed: int
    full: str
    tiny: str


ARMS = {
    "gan": Arm("DCGAN", 0.0, 1, "99.0 modes, KL 3.40", "78.5 modes, KL 5.21"),
    "pac": Arm("PacDCGAN2", 0.0, 2, "1000 modes, KL 0.06", "484.5 modes, KL 2.61"),
    "mine": Arm("DCGAN + MINE", 1.0, 1, "1000 modes, KL 0.05", "not published"),
}
MODES = 1000


@experiment
class StackedMnist(Experiment):
    """Three arms from the same initial generator; the seed draws digits, weights and noise."""

    name = "stacked-mnist"
    title = "A thousand modes of stacked digits"
    question = (
        "Three random digits are the channels of an image: 1000 modes. A DCGAN learns them alone, with packed samples, or "
        "while it raises the information between samples and a code. How many modes do 26,000 samples hit, and how evenly?"
    )
    chapter = Chapter.INFORMATION
    place = "table 5.1 and figure 5.5"
    claims = claims_of("stacked-mnist")
    scales = {
        "smoke": {
            "dataset": "digits",
            "steps": 4,
            "batch": 16,
            "period": 2,
            "samples": 60,
            "classifier_steps": 4,
            "latent": 8,
            "codes": 4,
        },
        "paper": {"nets": "full", "steps": 100_000, "batch": 64, "period": 5_000, "latent": 100, "codes": 50},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.2, "desk": 150, "paper": 10_000}
    dropped = ("others/images-*",)
    notes = {
        "desk": "The tiny networks of PacGAN's table 3 (feature maps 64-32-16-8 and 2-4-8, 3 x 3 kernels, Adam 1e-4 and 2e-4), "
        "whose numbers are those to compare with, for 10,000 iterations; the paper's own networks are those of the scale paper."
    }

    dataset: str = "mnist"
    nets: str = "tiny"
    batch: int = 128
    steps: int = 10_000
    period: int = 1_000
    latent: int = 256
    codes: int = 128
    samples: int = 26_000
    classifier_steps: int = 1_500

    def cost(self) -> Cost:
        """Turns of all arms and the steps of the classifier."""
        return Cost(len(ARMS) * self.steps + self.classifier_steps, 0.07, 1500)

    def run(self, lab: Lab) -> None:
        """The same digits for all arms."""
        data, test = lab.dataset(self.dataset), lab.dataset(self.dataset, "test")
        classifier, accuracy = digit_classifier(lab, data, test, self.classifier_steps)
        lab.measure("M4-classifier", accuracy)
        digits = in_unit_range(data)
        floor = stacked_coverage(classifier, stack(digits, for_trial(lab, self.samples), lab.generator("floor")))
        lab.log("floor", modes=floor.modes, reverse_kl=floor.reverse_kl)

        def stacked(batch: tuple[Tensor, ...], generator: Generator) -> tuple[Tensor, ...]:
            return (stack(digits, len(batch[0]), generator),)

        for name, arm in ARMS.items():
            # As many numbers as images; every batch is three random digits for each.
            batches = Minibatches((torch.arange(len(digits)),), self.batch, lab.seed, augment=stacked)
            self._play(lab, name, arm, batches, classifier)

    def _players(self, arm: Arm) -> dict[str, Player]:
        discriminator: nn.Module
        if self.nets == "full":
            generator = ConvGenerator(self.latent, (512, 256, 128, 64), (2, 4, 7, 14, 28), 3)
            discriminator = ConvDiscriminator(3, 28, (64, 128, 256, 512), activation="relu", packed=arm.packed)
            statistics = Convolutional(3, 28, self.codes, (16, 32, 64), head=1024)
            rates, betas = (2e-4, 2e-4), (0.5, 0.999)
        else:
            leaky = partial(nn.LeakyReLU, 0.3)
            generator = ConvGenerator(self.latent, (64, 32, 16, 8), (4, 7, 14, 28), 3, kernel=3)
            discriminator = ConvDiscriminator(
                3, 28, (2, 4, 8), activation=leaky, packed=arm.packed, kernel=3, norm_first=True
            )
            statistics = Convolutional(3, 28, self.codes, (4, 8, 16), head=64)
            rates, betas = (1e-4, 2e-4), (0.5, 0.99)
        players = {
            "generator": Player.adam(generator, lr=rates[0], betas=betas),
            "discriminator": Player.adam(discriminator, lr=rates[1], betas=betas),
        }
        if arm.beta:
            players["statistics"] = Player.adam(statistics, lr=rates[1], betas=betas)
        return players

    def _play(self, lab: Lab, name: str, arm: Arm, batches: Minibatches, classifier: nn.Module) -> None:
        with lab.seeded("players"):
            players = self._players(arm)
        generator, count = players["generator"].model, for_trial(lab, self.samples)
        full = self.nets == "full"

        def prior(examples: int, entries: int, source: Generator | None = None) -> Tensor:
            """Uniform on [-1, 1] for the paper's networks, normal for the tiny ones."""
            if full:
                return 2 * torch.rand(examples, entries, generator=source) - 1
            return torch.randn(examples, entries, generator=source)

        @torch.no_grad()
        def record(game: Game) -> None:
            generator.eval()
            noise = prior(count, self.latent, lab.generator("samples"))
            images = torch.cat([generator(part) for part in noise.split(1000)])
            generator.train()
            found = stacked_coverage(classifier, images)
            lab.log("coverage", arm=name, step=game.step, modes=found.modes, reverse_kl=found.reverse_kl)
            if game.step == game.steps:
                lab.save_array(f"images-{name}", images[:36].half())

        information = Information(arm.beta)
        turn = GanTurn(self.latent, self.codes, information, prior, arm.packed)
        play(
            players,
            batches,
            turn,
            self.steps,
            lab=lab,
            name=name,
            callbacks=[OnPeriod(self.period, record)],
            parts={"information": information},
        )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the last rows of the log."""
        last = last_rows(results, "coverage", seed, "arm")
        mine, gan = last["mine"], last["gan"]
        return {
            "M4-modes": mine["modes"] - gan["modes"],
            "M4-kl": mine["reverse_kl"] - gan["reverse_kl"],
            "M4-pac": mine["modes"] - last["pac"]["modes"],
            "M4-all-modes": mine["modes"],
            "M4-small-kl": mine["reverse_kl"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Coverage over the iterations, with what was published in the legend; and samples."""
        figure, (row,) = panels(2)
        for axes, (column, what) in zip(
            row, (("modes", "modes hit"), ("reverse_kl", "reverse KL [nats]")), strict=True
        ):
            for name, arm in ARMS.items():
                published = arm.full if self.nets == "full" else arm.tiny
                band(
                    axes, results.curves("coverage", "step", column, arm=name), f"{arm.title} (published: {published})"
                )
            label(axes, "iteration", what)
        legend_outside(figure, row[0], 1)
        floor = results.table("floor").rows[0]
        yield Picture(
            "table-5.1",
            figure,
            f"Modes of 1000 hit by {self.samples:,} samples and the divergence of their histogram from the uniform one; mean "
            f"and range over seeds. As many real images hit {floor['modes']:.0f} modes with a divergence of "
            f"{floor['reverse_kl']:.3f}.",
        )
        yield self._images(results)

    def _images(self, results: Results) -> Picture:
        figure, (row,) = panels(3, width=3.0)
        for axes, (name, arm) in zip(row, ARMS.items(), strict=True):
            images = torch.as_tensor(results.array(f"images-{name}")).float()
            side = int(len(images) ** 0.5)
            tiles = (
                images[: side**2].reshape(side, side, 3, 28, 28).permute(0, 3, 1, 4, 2).reshape(28 * side, 28 * side, 3)
            )
            axes.imshow(((tiles + 1) / 2).clamp(0, 1).numpy())
            axes.set_title(arm.title)
            axes.axis("off")
        return Picture("figure-5.5", figure, "Samples of the three generators, digits as colour channels; first seed.")


def stack(digits: Tensor, count: int, generator: Generator) -> Tensor:
    """`count` images `(count, 3, h, w)` of three digits drawn at random."""
    places = torch.randint(len(digits), (count, 3), generator=generator)
    return digits[places][:, :, 0]


def stacked_coverage(classifier: nn.Module, images: Tensor) -> ModeCoverage:
    """Of images `(n, 3, h, w)` by the classes of their channels."""
    classes = torch.stack([predictions(classifier, images[:, channel, None]) for channel in range(3)], 1)
    return coverage_of_modes(classes @ torch.tensor([100, 10, 1]), MODES)
