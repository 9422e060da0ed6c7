"""Figure B.1 and what is said of trained kernels: few directions matter, the kernel settles, and it has learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab import NTK, FMatDense
from tangentlab.alignment import compare_directions, kernel_velocity
from tangentlab.data import Dataset
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    OnSteps,
    Picture,
    Results,
    Training,
    experiment,
    geometric_steps,
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import cross_entropy, image_data, loss_and_accuracy, some_of
from tangentlab.figures.style import PALETTE, band, label, legend_below, panels
from tangentlab.kernels import predict, ridge_dual
from tangentlab.models import VGG


def kernel_regression(model: nn.Module, data: Dataset, test: Dataset, penalty: float) -> float:
    """Test accuracy of ridge regression on one-hot labels with the tangent kernel summed over outputs.

    `penalty` is relative to the mean eigenvalue of the kernel, whose scale training changes.
    """
    kernel = NTK(model, data.inputs, outputs="trace", progress=False).matrix().double()
    cross = NTK(model, test.inputs, data.inputs, outputs="trace", progress=False).matrix().double()
    scale = float(kernel.diagonal().mean())
    targets = nn.functional.one_hot(data.targets, data.classes or 10).double()
    weights = ridge_dual(kernel / scale, targets - targets.mean(0), penalty / len(kernel))
    scores = predict(cross / scale, weights) + targets.mean(0)
    return float((scores.argmax(1) == test.targets).double().mean())


@experiment
class TrainedKernel(Experiment):
    """VGG11 after a short training: perturbations, the speed of its kernel, and regression with it."""

    name = "trained-kernel"
    title = "What training leaves in the tangent kernel"
    question = (
        "A trained network has millions of parameters. Does its function depend on all of them alike? Perturb them along the "
        "top right singular vectors of the Jacobian and along random directions of the same length.\n\nThe same training "
        "tells two more things about its kernel: how fast it moves, early and late, and whether a linear model on the final "
        "kernel generalizes better than one on the initial kernel."
    )
    chapter = Chapter.ALIGNMENT
    place = "B.1.4, figure B.1; prologue of chapter 6"
    claims = claims_of("trained-kernel")
    scales = {
        "smoke": {"data": "digits", "pixels": 8, "channels": 1, "images": 100, "test": 40, "base": 2, "batch": 20,
                  "steps": 10, "probe": 8, "examples": 20, "directions": 5, "ratio": 2.0},
        "paper": {"images": 50_000, "base": 64, "steps": 5_000, "examples": 2_000},
    }  # fmt: skip
    seeds = {"smoke": 1, "desk": 3, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 15, "paper": 2_000}
    notes = {
        "desk": "VGG11 with 16 to 128 channels, ten epochs on 4,000 CIFAR-10 images. Perturbations of length 1 (the paper "
        "does not tell); singular vectors from 50 test images, effects on 200 others; regression on 400 images.",
    }

    data: Literal["digits", "cifar10"] = "cifar10"
    pixels: int = 32
    channels: int = 3
    images: int = 4_000
    test: int = 1_000
    base: int = 16
    batch: int = 100
    steps: int = 400
    rate: float = 0.01
    momentum: float = 0.9
    probe: int = 50
    examples: int = 400
    directions: int = 50
    radius: float = 1.0
    penalty: float = 0.01
    ratio: float = 1.6

    def cost(self) -> Cost:
        """One step per update."""
        return Cost(self.steps, 0.4, 1500)

    def run(self, lab: Lab) -> None:
        """Train once; look at the kernel on the way, and at start and end more closely."""
        data, test = image_data(lab, self.data, self.pixels, self.images)
        test = some_of(test, self.test)
        with lab.seeded("model"):
            model = VGG(11, 10, self.base, in_channels=self.channels, image_size=self.pixels)
        few, others = some_of(data, lab.capped(self.examples)), some_of(test, lab.capped(self.examples))
        before = lab.stage("initial kernel", lambda: kernel_regression(model, few, others, self.penalty))
        probe = test.inputs[: lab.capped(self.probe)]
        kernels: dict[int, Tensor] = {}

        def record(training: Training) -> None:
            kernels[training.step] = NTK(model, probe, outputs="trace", progress=False).data.double()

        points = OnSteps(geometric_steps(self.steps, 5.0, self.ratio), record, last=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
        batches = Minibatches(data, min(self.batch, len(data)), lab.seed)
        # Without checkpoints: the kernels on the way are not part of the training's state.
        train(model, batches, cross_entropy, optimizer, lab.capped(self.steps), callbacks=[points])
        lab.steps += lab.capped(self.steps)
        accuracy = loss_and_accuracy(model, test)[1]
        after = kernel_regression(model, few, others, self.penalty)
        lab.log("regression", before=before, after=after, network=accuracy)
        lab.measure("context-after-kernel", after - before)
        self._velocity(lab, kernels)
        self._directions(lab, model, test)

    def _velocity(self, lab: Lab, kernels: dict[int, Tensor]) -> None:
        steps = sorted(kernels)
        speeds = kernel_velocity([FMatDense(kernels[step]) for step in steps], steps)
        for start, end, speed in zip(steps, steps[1:], speeds, strict=False):
            lab.log("velocity", step=(start + end) / 2, velocity=speed)
        last, lengths = steps[-1], np.diff(steps)
        early = np.array(steps[1:]) <= max(0.1 * last, steps[1])
        late = np.array(steps[:-1]) >= min(0.6 * last, steps[-2])
        first, final = (np.average(speeds, weights=lengths * phase) for phase in (early, late))
        lab.measure("context-velocity", float(final / max(first, 1e-300)))

    def _directions(self, lab: Lab, model: nn.Module, test: Dataset) -> None:
        count = lab.capped(self.probe)
        found = compare_directions(
            model,
            test.inputs[:count],
            test.inputs[count : count + 4 * count],
            lab.capped(self.directions),
            self.radius,
            generator=lab.generator("directions"),
        )
        for place, (top, random) in enumerate(zip(found.top.tolist(), found.random.tolist(), strict=True), start=1):
            lab.log("directions", index=place, top=top, random=random)
        first, mean_random = float(found.top[0]), float(found.random.mean())
        lab.measure("B.1-random", mean_random / first)
        lab.measure("B.1-top", float(found.top.mean()) / mean_random)
        lab.measure("B.1-few", float(found.top[-1]) / first)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Perturbations; velocity; regression."""
        figure, ((axes,),) = panels()
        for key, name, color in (
            ("top", "top singular vectors", PALETTE[0]),
            ("random", "random directions", PALETTE[1]),
        ):
            band(axes, results.curves("directions", "index", key), name, color=color)
        axes.set_yscale("log")
        label(axes, "index of the direction", "change of the outputs [logits]")
        legend_below(axes)
        yield Picture(
            "figure-b.1",
            figure,
            "Root mean square change of the outputs on new images when the parameters of the trained network move by one unit "
            "of length along the top right singular vectors of its Jacobian, and along random directions. Mean over seeds, "
            "all seeds as a band.",
        )
        figure, ((left, right),) = panels(2)
        band(left, results.curves("velocity", "step", "velocity"), color=PALETTE[2], marker="o", markersize=3)
        left.set_xscale("log")
        left.set_yscale("log")
        label(left, "step", "kernel distance per step", "velocity of the kernel")
        table = results.table("regression")
        names = ("before", "after", "network")
        for place, name in enumerate(names):
            right.plot(np.full(len(table), place), table[name], "o", color=PALETTE[place])
        right.set_xticks(range(3), ["initial kernel", "final kernel", "network"])
        right.set_xlim(-0.5, 2.5)
        label(right, "predictor", "test accuracy", "regression")
        yield Picture(
            "trained-kernel",
            figure,
            "Left: one minus the cosine of consecutive tangent kernels, per step. Right: test accuracy of ridge regression "
            "with the initial and the final kernel of the network, on some of its training images, and of the network itself; "
            "one point per seed.",
        )
