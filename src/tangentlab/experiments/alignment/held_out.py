"""Figures B.5 and B.6: on held-out data the alignment with the labels rises in three networks, centred or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    Picture,
    Results,
    Training,
    experiment,
    geometric_steps,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import (
    Row,
    evaluation,
    follow,
    image_data,
    loss_and_accuracy,
    some_of,
)
from tangentlab.experiments.alignment._kernels import alignments
from tangentlab.figures.style import PALETTE, band, label, panels, step_axis
from tangentlab.models import MLP, VGG, ResNet18
from tangentlab.recorder import View

NETWORKS = ("MLP", "VGG19", "ResNet18")
NORM_PASSES = 10
Images = Literal["digits", "mnist", "cifar10"]


@experiment
class HeldOutAlignment(Experiment):
    """Alignment on test images along the training of an MLP, a VGG19 and a ResNet18."""

    name = "held-out-alignment"
    title = "The kernel aligns with labels it has not seen"
    question = (
        "Is the alignment of the tangent kernel with the labels a matter of the training examples, or does it hold on "
        "held-out data, for all kinds of networks, and without centring as well?"
    )
    chapter = Chapter.ALIGNMENT
    place = "B.3.2, figures B.5 and B.6"
    claims = claims_of("held-out-alignment")
    scales = {
        "smoke": {"digits": "digits", "pictures": "digits", "pixels": 8, "images": 100, "digit_images": 100, "test": 40,
                  "width": 8, "hidden": 2, "depth": 11, "base": 2, "batch": 20, "digit_steps": 6, "steps": 3, "probe": 6,
                  "ratio": 4.0},
        "paper": {"digit_images": 60_000, "images": 50_000, "base": 64, "pixels": 32, "steps": 20_000, "probe": 100},
    }  # fmt: skip
    seeds = {"smoke": 1, "desk": 2, "paper": 1}
    minutes = {"smoke": 0.5, "desk": 20, "paper": 20_000}
    notes = {
        "desk": "MLP 6 x 80 on 10,000 MNIST images; VGG19 (32 pixels, without batch norm) and ResNet18 (16 pixels, batch norm "
        "in evaluation mode) with 16 base channels on 2,000 CIFAR-10 images for 25 epochs; kernels of 50 test images; "
        "two seeds.",
    }

    digits: Images = "mnist"
    pictures: Images = "cifar10"
    digit_images: int = 10_000
    images: int = 2_000
    test: int = 1_000
    pixels: int = 16
    width: int = 80
    hidden: int = 6
    depth: int = 19
    base: int = 16
    batch: int = 100
    digit_steps: int = 1_000
    steps: int = 500
    rate: float = 0.01
    digit_rate: float = 0.02
    momentum: float = 0.9
    probe: int = 50
    ratio: float = 2.2

    def cost(self) -> Cost:
        """One step per update, of all three networks."""
        return Cost(self.digit_steps + 2 * self.steps, 0.25, 1200)

    def run(self, lab: Lab) -> None:
        """Three trainings, one after the other."""
        for network in NETWORKS:
            rows = self._follow(lab, network)
            for figure, key in (("B.5", "cka"), ("B.6", "ka")):
                lab.measure(f"{figure}-{network.lower()}", rows[-1][key] / max(rows[0][key], 1e-12))

    def _follow(self, lab: Lab, network: str) -> list[Row]:
        is_mlp = network == "MLP"
        source, images = (self.digits, self.digit_images) if is_mlp else (self.pictures, self.images)
        data, test = image_data(lab, source, self.pixels if network == "ResNet18" else 32, images)
        test = some_of(test, self.test)
        model = self._network(lab, network, data.inputs)
        batches = Minibatches(data, min(self.batch, len(data)), lab.seed)
        probe = some_of(test, lab.capped(self.probe))

        def measured(_: Training) -> Row:
            with evaluation(model, batches, lab.capped(NORM_PASSES)):
                found = alignments(View.of(model, tuple(probe)))
                accuracy = loss_and_accuracy(model, test)[1]
            return {"accuracy": accuracy, **{key: found[key] for key in ("cka", "cka_global", "ka")}}

        steps, rate = (self.digit_steps, self.digit_rate) if is_mlp else (self.steps, self.rate)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=self.momentum)
        points = geometric_steps(steps, 5.0, self.ratio)
        own = (model, batches, optimizer, steps, points, measured)
        return follow(lab, "alignment", *own, name=network, network=network)

    def _network(self, lab: Lab, network: str, inputs: torch.Tensor) -> nn.Module:
        channels, pixels = inputs.shape[1], inputs.shape[2]
        with lab.seeded("model", network):
            if network == "MLP":
                return MLP((inputs[0].numel(), *[self.width] * self.hidden, 10))
            if network == "VGG19":
                return VGG(self.depth, 10, self.base, in_channels=channels, image_size=pixels)
            return ResNet18(10, base=self.base, in_channels=channels)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Both figures, three panels each."""
        for name, key, text, tail in (
            ("figure-b.5", "cka", "CKA with the labels", "centred per output"),
            ("figure-b.6", "ka", "alignment, not centred", "nothing centred"),
        ):
            figure, (axes,) = panels(3)
            for axis, network, color in zip(axes, NETWORKS, PALETTE, strict=False):
                band(
                    axis,
                    results.curves("alignment", "step", key, network=network),
                    color=color,
                    marker="o",
                    markersize=3,
                )
                axis.set_ylim(bottom=0)
                step_axis(axis, self.digit_steps if network == "MLP" else self.steps)
                label(axis, "step", text, network)
            yield Picture(
                name,
                figure,
                f"Alignment of the tangent kernel with the labels on held-out images, {tail}, along three trainings. Mean "
                "over seeds, all seeds as a band.",
            )
