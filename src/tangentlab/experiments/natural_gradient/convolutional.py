"""Figures 4.5, 4.6 and A.1 to A.5: VGG11 and ResNet34 on CIFAR-10, several batch sizes, a decaying learning rate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Minibatches, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, cross_entropy, image_data, loss_and_accuracy, some_of
from tangentlab.experiments.natural_gradient import _convolutional_claims as claims
from tangentlab.experiments.natural_gradient import _convolutional_figures as figures
from tangentlab.experiments.natural_gradient._competitors import COLORS, NATURAL, adam, natural, sgd, soap
from tangentlab.experiments.natural_gradient._optimizer_race import Competitor, Field, compete, grid, halving, winner
from tangentlab.models import VGG11, ResNet34

Point = tuple[float, float]


@dataclass(frozen=True)
class ConvolutionalRace(Experiment):
    """A race on images: a grid per method, the natural gradients with further batch sizes, the winners with a schedule.

    Methods on natural gradients have a grid of learning rates and dampings and the largest batch; the others as many
    learning rates, and the middle batch, as in the paper. At the other batch sizes natural gradients keep the selected
    damping and try all learning rates again. With halved learning rates, every method has its selected setting.
    """

    family: ClassVar[tuple[str, ...]]
    rivals: ClassVar[tuple[str, ...]]

    data: Literal["digits", "cifar10"] = "cifar10"
    pixels: int = 16
    base: int = 16
    images: int = 4_000
    scored: int = 2_000
    epochs: int = 15
    period: int = 50
    batches: tuple[int, int, int] = (50, 200, 500)
    natural_rates: tuple[float, ...] = (0.1, 0.03)
    dampings: tuple[float, ...] = (0.1, 0.03)
    sgd_rates: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01)
    adam_rates: tuple[float, ...] = (0.01, 0.003, 0.001, 0.0003)
    halved_every: int = 5

    @abstractmethod
    def network(self, channels: int, norm: bool) -> nn.Module:
        """A fresh network."""

    def methods(self) -> list[Competitor]:
        """The competitors, by name."""
        own = [natural(key, NATURAL[key], COLORS[key], self.period, sua=True) for key in self.family]
        others = {"sgd": sgd("sgd", norm=False), "sgd-bn": sgd("sgd-bn", norm=True), "adam": adam(), "soap": soap()}
        return own + [others[key] for key in self.rivals]

    def grid(self, key: str) -> list[Point]:
        """The settings of a method: SGD has momentum 0.9, Adam and SOAP have their usual betas."""
        if key in NATURAL:
            return grid(self.natural_rates, self.dampings)
        if key.startswith("sgd"):
            return grid(self.sgd_rates, (0.1,))
        return grid(self.adam_rates, (0.05 if key == "soap" else 0.001,))

    def batch_of(self, key: str) -> int:
        """The batch size of a method in the main figure."""
        return self.batches[2] if key in NATURAL else self.batches[1]

    def cost(self) -> Cost:
        """One step per update."""
        updates = 0
        for key in (*self.family, *self.rivals):
            main = self.images // self.batch_of(key)
            updates += main * (len(self.grid(key)) + (key in claims.SCHEDULED))
            if key in NATURAL:
                updates += sum(self.images // size for size in self.batches[:2]) * len(self.natural_rates)
        return Cost(updates * self.epochs, self.seconds_per_update, 1_500)

    seconds_per_update: ClassVar[float]

    def run(self, lab: Lab) -> None:
        """The grids, the other batch sizes, the schedule."""
        parts = image_data(lab, self.data, self.pixels, self.images)
        fields = {size: self._field(lab, *parts, size) for size in self.batches}
        rows: list[Row] = []
        halved: list[Row] = []
        for method in self.methods():
            size = self.batch_of(method.key)
            own: list[Row] = []
            for point in self.grid(method.key):
                own += compete(lab, fields[size], method, point, "race", batch=size)
            rate, second = winner(own)
            lab.log("selected", method=method.key, first=rate, second=second)
            for other in self.batches[:2] if method.key in NATURAL else ():
                for first in self.natural_rates:
                    own += compete(lab, fields[other], method, (first, second), "race", batch=other)
            rows += own
            if method.key in claims.SCHEDULED:
                schedule = halving(rate, self.halved_every * fields[size].batches.per_epoch)
                halved += compete(
                    lab, fields[size], method, (rate, second), "halved", schedule, batch=size, halved=True
                )
        for claim, value in claims.measure(self, rows, halved).items():
            if isinstance(value, str):
                lab.not_tested(claim, value)
            else:
                lab.measure(claim, value)

    def _field(self, lab: Lab, train_set: Dataset, valid_set: Dataset, size: int) -> Field:
        channels = train_set.inputs.shape[1]
        most = lab.capped(self.scored)  # a trial of a few steps evaluates and trains on a few images
        scored = {"train": some_of(train_set, most), "valid": some_of(valid_set, most)}

        def network(norm: bool) -> nn.Module:
            with lab.seeded("model"):
                return self.network(channels, norm)

        def score(model: nn.Module) -> dict[str, float]:
            train, _ = loss_and_accuracy(model, scored["train"])
            valid, accuracy = loss_and_accuracy(model, scored["valid"])
            return {"train": train, "valid": valid, "error": 1 - accuracy}

        return Field(network, cross_entropy, score, Minibatches(train_set, min(size, 10 * most), lab.seed), self.epochs)

    def draw(self, results: Results) -> Iterator[Picture]:
        """All panels."""
        yield from figures.draw(results, self)


_SMOKE = {
    "data": "digits",
    "pixels": 8,
    "base": 2,
    "images": 60,
    "scored": 30,
    "epochs": 2,
    "period": 3,
    "batches": (20, 30, 60),
    "natural_rates": (0.001,),
    "dampings": (0.1,),
    "sgd_rates": (0.001,),
    "adam_rates": (0.001,),
    "halved_every": 1,
}
_PAPER = {
    "pixels": 32,
    "base": 64,
    "images": 50_000,
    "scored": 10_000,
    "epochs": 100,
    "period": 500,
    "halved_every": 20,
}
_QUESTION = (
    "Does EKFAC train convolutional networks faster than KFAC, SGD, Adam and SOAP, per epoch and per second? {net} learns "
    "CIFAR-10. Networks with natural gradients have no batch norm, convolutions the spatially-uncorrelated factors "
    "(SUA), and eigenbases or inverses are renewed every {period} updates. Each method has {settings} settings; at each "
    "epoch the best training loss over its settings counts, and the clock runs during updates alone.\n\nThen the batch "
    "size varies, since larger batches mean fewer renewals per epoch, and the learning rate is halved every few epochs."
)
_DESK = (
    "4,000 images at 16 x 16 pixels, 16 channels in the first stage, 15 epochs, one seed. Four settings per method; at "
    "other batch sizes the selected damping with both learning rates; with halved learning rates the setting that was "
    "selected without."
)


@experiment
class Vgg11Optimizers(ConvolutionalRace):
    """VGG11: figures 4.5, A.1, A.2 and A.4."""

    name = "vgg11-optimizers"
    title = "EKFAC on a VGG11"
    question = _QUESTION.format(net="A VGG11", period=50, settings="four")
    chapter = Chapter.NATURAL_GRADIENT
    place = "§4.4.2 and A.5, figures 4.5, A.1, A.2, A.4"
    claims = claims_of("vgg11-optimizers")
    scales = {"smoke": _SMOKE, "paper": _PAPER}
    minutes = {"smoke": 0.3, "desk": 60, "paper": 100_000}
    notes = {"desk": _DESK, "paper": "the paper gives neither epochs nor grids."}
    family = ("ekfac", "ekfac-ra", "kfac")
    rivals = ("sgd", "sgd-bn", "adam", "soap")
    seconds_per_update = 0.13

    def network(self, channels: int, norm: bool) -> nn.Module:
        """VGG11 with He's initialization."""
        return VGG11(base=self.base, batch_norm=norm, in_channels=channels, image_size=self.pixels)


@experiment
class Resnet34Optimizers(ConvolutionalRace):
    """ResNet34: figures 4.6, A.3 and A.5."""

    name = "resnet34-optimizers"
    title = "EKFAC-ra on a ResNet34 without batch norm"
    question = _QUESTION.format(net="A ResNet34", period=50, settings="four")
    chapter = Chapter.NATURAL_GRADIENT
    place = "§4.4.2 and A.5, figures 4.6, A.3, A.5"
    claims = claims_of("resnet34-optimizers")
    scales = {"smoke": _SMOKE, "paper": _PAPER}
    minutes = {"smoke": 0.5, "desk": 60, "paper": 300_000}
    notes = {
        "desk": f"{_DESK} As in the figure, of the two EKFACs only EKFAC-ra.",
        "paper": "the paper gives neither epochs nor grids.",
    }
    family = ("ekfac-ra", "kfac")
    rivals = ("sgd-bn", "adam", "soap")
    seconds_per_update = 0.2

    def network(self, channels: int, norm: bool) -> nn.Module:
        """ResNet34; without batch norm the initialization of appendix A.3."""
        return ResNet34(base=self.base, norm=norm, in_channels=channels)
