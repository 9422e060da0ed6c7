"""The kernel that a network has learnt, used as a kernel: does it explain why networks overfit eigenfunctions?"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from tangentlab.data import Dataset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, OnPeriod, Picture, Results, Training, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import for_trial, image_data
from tangentlab.experiments.linearized._recipe import (
    EpochLoss,
    Recipe,
    binary_accuracy,
    build,
    eigenfunction_task,
    held_out,
    train_task,
)
from tangentlab.figures.style import PALETTE, band, label, legend_outside, panels
from tangentlab.linearized import linearize

MODELS = {"network": "network", "start": "linear, kernel of the start", "end": "linear, kernel of the trained network"}


@experiment
class PretrainedKernel(Experiment):
    """A network on an eigenfunction, and linear models with its first and its last kernel on the same data."""

    name = "pretrained-kernel"
    title = "Linear models with the kernel of a trained network"
    question = (
        "On an eigenfunction of its initial kernel a network fits the training images and generalizes worse than its "
        "linearization. Is it the kernel, which moved? Three models see the same images: the network, a linear model with "
        "the kernel of the start, and a linear model with the kernel that the network ended with."
    )
    chapter = Chapter.LINEARIZED
    place = "beyond linearized networks, E.3"
    claims = claims_of("pretrained-kernel")
    scales = {
        "smoke": {"data": "digits", "pixels": 8, "images": 150, "valid": 50, "index": 4, "epochs": 2, "batch": 50},
        "paper": {"pixels": 32, "images": 60_000, "valid": 10_000, "index": 100, "epochs": 100},
    }
    seeds = {"smoke": 1, "desk": 2, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 3, "paper": 2_000}
    notes = {"desk": "6,000 images of 16 x 16 pixels, 30 epochs; LeNet, eigenfunction 20."}

    data: str = "cifar10"
    pixels: int = 16
    images: int = 6_000
    valid: int = 1_000
    index: int = 20
    epochs: int = 30
    batch: int = 128
    rate: float = 0.05

    def recipe(self) -> Recipe:
        """The same for all three."""
        return Recipe(self.epochs, self.batch, self.rate)

    def cost(self) -> Cost:
        """One step per update."""
        return Cost(len(MODELS) * self.recipe().steps(self.images - self.valid), 0.03, 2000)

    def run(self, lab: Lab) -> None:
        """The network first, then both linear models, in differential form: they start from the function 0."""
        data, _ = image_data(lab, self.data, self.pixels, for_trial(lab, self.images, 128))
        with lab.seeded("model"):
            first = build("lenet", data.inputs.shape[1:]).eval()
        train, valid = held_out(lab, eigenfunction_task(lab, "labels", first, data, self.index), self.valid)
        with lab.seeded("model"):
            network = build("lenet", data.inputs.shape[1:])
        found = {"network": self._fit(lab, "network", network, train, valid)}
        for name, at in (("start", first), ("end", network.eval())):
            found[name] = self._fit(lab, name, linearize(at, offset=False), train, valid)
        gaps = {name: one["train"] - one["valid"] for name, one in found.items()}
        lab.measure("S3-E8-overfit", gaps["network"] - gaps["start"])
        lab.measure("S3-E8-faster", found["end"]["loss"] / found["start"]["loss"])
        lab.measure("S3-E8-valid", found["end"]["valid"] - found["start"]["valid"])

    def _fit(self, lab: Lab, name: str, model: nn.Module, train: Dataset, valid: Dataset) -> dict[str, float]:
        """Train one model; accuracies at the end and the mean training loss over epochs."""
        losses = EpochLoss(0.0)

        def record(training: Training) -> None:
            accuracy = binary_accuracy(model, valid)
            lab.log("along", model=name, epoch=round(training.epoch), valid=accuracy, loss=_last(losses))

        period = lab.capped(max(1, len(train) // min(self.batch, len(train))))
        train_task(lab, model, train, self.recipe(), MODELS[name], [losses, OnPeriod(period, record)])
        mean = sum(losses.losses) / max(1, len(losses.losses))
        return {"train": binary_accuracy(model, train), "valid": binary_accuracy(model, valid), "loss": mean}

    def draw(self, results: Results) -> Iterator[Picture]:
        """Training loss and validation accuracy of the three models."""
        figure, ((left, right),) = panels(2)
        for place, (name, words) in enumerate(MODELS.items()):
            for axes, key in ((left, "loss"), (right, "valid")):
                curves = results.curves("along", "epoch", key, model=name)
                shown = curves if key == "valid" else type(curves)(curves.x[1:], curves.y[:, 1:])
                band(axes, shown, words, color=PALETTE[place])
        left.set_yscale("log")
        label(left, "epoch", "training loss [nats]", "fit")
        label(right, "epoch", "validation accuracy", "generalization")
        legend_outside(figure, right, 3)
        yield Picture(
            "curves",
            figure,
            "A network trained on an eigenfunction of its initial kernel, and two linear models on the same task: with the "
            "kernel of the start, and with the kernel of the trained network. Mean over seeds, all seeds as a band.",
        )


def _last(losses: EpochLoss) -> float:
    return losses.losses[-1] if losses.losses else float("nan")
