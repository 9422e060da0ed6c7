"""Neural anisotropy directions: how they look, and how well networks and linearized networks learn along them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import for_trial
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.linearized._recipe import (
    NAMES,
    PLACE,
    Recipe,
    binary_accuracy,
    build,
    train_task,
    twins,
)
from tangentlab.figures.style import DIVERGING, GRAY, PALETTE, band, label, panels
from tangentlab.linearized import anisotropy_directions, direction_dataset, gradient_directions

SHOWN = 10


@experiment
class NeuralDirections(Experiment):
    """Directions of LeNet and ResNet18 with GELU, and the accuracy on data that one direction separates."""

    name = "neural-directions"
    title = "Directions that a network sees, and directions that it does not"
    question = (
        "Two classes that differ along one direction of the input and in nothing else: a linear classifier needs no more. "
        "Does a convolutional network learn them equally well along every direction?\n\nThe kernel at initialization "
        "orders the directions: by the singular vectors of the mixed derivative in parameters and inputs, a network is "
        "trained along six of them, and so is its linearization."
    )
    chapter = Chapter.LINEARIZED
    place = f"{PLACE}, C"
    claims = claims_of("neural-directions")
    scales = {
        "smoke": {
            "nets": ("lenet",),
            "pixels": 8,
            "images": 200,
            "resnet_images": 100,
            "tests": 200,
            "epochs": 2,
            "resnet_epochs": 1,
            "places": (0.0, 0.5, 1.0),
            "batch": 50,
            "averaged": 5,
            "draws": 20,
            "base": 4,
        },
        "paper": {
            "pixels": 32,
            "resnet_images": 10_000,
            "epochs": 100,
            "resnet_epochs": 100,
            "base": 64,
            "places": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0),
            "zero_init": True,
        },
    }
    seeds = {"smoke": 1, "desk": 1, "paper": 1}
    minutes = {"smoke": 0.3, "desk": 14, "paper": 4_000}
    notes = {
        "desk": "images of 16 x 16 pixels (256 directions), six of them; 10 epochs (ResNet18: 6, on 2,500 images, with 16 "
        "channels in the first stage) in place of 100. One seed. Branches of ResNet18 start at full scale.",
    }

    nets: tuple[str, ...] = ("lenet", "resnet18")
    pixels: int = 16
    places: tuple[float, ...] = (0.0, 0.02, 0.08, 0.25, 0.5, 1.0)
    images: int = 10_000
    resnet_images: int = 2_500
    tests: int = 10_000
    epochs: int = 10
    resnet_epochs: int = 6
    batch: int = 128
    rate: float = 0.05
    base: int = 16
    activation: str = "gelu"
    zero_init: bool = False
    half_margin: bool = False
    averaged: int = 64
    draws: int = 400

    def recipe(self, kind: str) -> Recipe:
        """Epochs per network."""
        return Recipe(self.resnet_epochs if kind == "resnet18" else self.epochs, self.batch, self.rate)

    def examples(self, kind: str) -> int:
        """Training images per network."""
        return self.resnet_images if kind == "resnet18" else self.images

    def indices(self) -> list[int]:
        """Of the directions on which networks are trained."""
        return sorted({round(place * (self.pixels**2 - 1)) for place in self.places})

    def cost(self) -> Cost:
        """One step per update of every network and of its linearization."""
        each = [self.recipe(kind).steps(self.examples(kind)) for kind in self.nets]
        return Cost(2 * len(self.indices()) * sum(each), 0.08, 2500)

    def run(self, lab: Lab) -> None:
        """Directions of every network, then trainings along some of them."""
        correlations, alike, ranges, shares = [], [], [], []
        for kind in self.nets:
            directions = self._directions(lab, kind)
            shares.append(_shared(directions["over data"], directions["at 0"]))
            indices = self.indices()[: lab.capped(len(self.indices()))]
            accuracies = [self._accuracies(lab, kind, index, directions["at 0"][index]) for index in indices]
            own, linear = ([pair[name] for pair in accuracies] for name in ("network", "linearized"))
            correlations += [rank_correlation(indices, values) for values in (own, linear)]
            alike.append(rank_correlation(own, linear))
            ranges.append(own[0] - own[-1])
            if kind == "lenet":
                lab.measure("S3-E6-gradients", _shared(directions["by gradients"], directions["at 0"]))
        lab.measure("S3-E6-falls", max(correlations))
        lab.measure("S3-E6-alike", min(alike))
        lab.measure("S3-E6-range", min(ranges))
        lab.measure("S3-E6-zero", min(shares))

    def _network(self, lab: Lab, kind: str, *stream: int) -> nn.Module:
        with lab.seeded("model", kind, *stream):
            image = (1, self.pixels, self.pixels)
            return build(kind, image, base=self.base, activation=self.activation, zero_init=self.zero_init)

    def _directions(self, lab: Lab, kind: str) -> dict[str, Tensor]:
        """All directions at 0, the first ones over Gaussian inputs, and for LeNet those of input gradients."""
        shape = (1, self.pixels, self.pixels)

        def compute() -> dict[str, Tensor]:
            model = self._network(lab, kind).eval()
            if lab.max_steps is not None and kind == "resnet18":  # a trial need not take the hours of the full network
                model = build("lenet", shape, activation=self.activation).eval()
            at_zero = anisotropy_directions(model, torch.zeros(1, *shape))
            inputs = torch.randn(self.averaged, *shape, generator=lab.generator("inputs"))
            count = min(SHOWN, len(at_zero.directions))
            found = {"at 0": at_zero.directions, "over data": anisotropy_directions(model, inputs, count).directions}
            if kind == "lenet":
                older = gradient_directions(
                    lambda draw: self._network(lab, kind, draw).eval(), torch.zeros(shape), self.draws, SHOWN
                )
                found["by gradients"] = older.directions
            for place, value in enumerate(at_zero.singular_values.tolist()):
                lab.log("spectrum", net=kind, index=place, value=value)
            return found

        found = lab.stage(f"directions {kind}", compute)
        lab.save_array(f"directions-{kind}", found["at 0"][:SHOWN, 0].float())
        return found

    def _accuracies(self, lab: Lab, kind: str, index: int, direction: Tensor) -> dict[str, float]:
        """Test accuracies along one direction."""
        options: dict[str, Any] = {"half_margin": self.half_margin}
        train = direction_dataset(
            direction, for_trial(lab, self.examples(kind)), lab.generator("train", index), **options
        )
        test = direction_dataset(
            direction, for_trial(lab, self.tests), lab.generator("test", index), split="test", **options
        )
        found = {}
        for name, model in twins(lambda: self._network(lab, kind)):
            train_task(lab, model, train, self.recipe(kind), f"{NAMES[kind]} {name}, direction {index}")
            found[name] = binary_accuracy(model, test)
            lab.log("accuracy", net=kind, model=name, index=index, accuracy=found[name])
        return found

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracy against index, and the directions as images."""
        yield _accuracy_figure(results, list(self.nets), self.pixels**2)
        yield _images(results, list(self.nets))


def _shared(some: Tensor, others: Tensor) -> float:
    """Mean squared norm of unit vectors projected on the span of the first of the others, as many."""
    first, second = some.flatten(1).double(), others[: len(some)].flatten(1).double()
    return float((first @ second.T).square().sum() / len(first))


def _accuracy_figure(results: Results, nets: list[str], count: int) -> Picture:
    figure, axes = panels(len(nets) + 1)
    for panel, kind in zip(axes[0], nets, strict=False):
        for place, (name, style) in enumerate((("network", "-"), ("linearized", "--"))):
            curves = results.curves("accuracy", "index", "accuracy", net=kind, model=name)
            band(panel, curves, name, color=PALETTE[place], linestyle=style, marker="o")
        panel.axhline(0.5, color=GRAY, linestyle=":", linewidth=1)
        panel.set(xscale="symlog", xlim=(-0.3, 1.3 * count), ylim=(0.44, 1.03))
        panel.set_xticks([0, 10, 100], ["0", "10", "100"])
        panel.minorticks_off()
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        label(panel, "index of the direction", "test accuracy", NAMES[kind])
    for place, kind in enumerate(nets):
        curves = results.curves("spectrum", "index", "value", net=kind)
        scaled = curves.mean / curves.mean[0]
        axes[0, -1].plot(curves.x + 1, scaled, color=PALETTE[place + 2], label=NAMES[kind])
    axes[0, -1].set(xscale="log", yscale="log")
    axes[0, -1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    label(axes[0, -1], "index + 1", "singular value / first", "mixed derivative at 0")
    return Picture(
        "accuracy",
        figure,
        "Left and middle: test accuracy on data that one anisotropy direction separates, for a network and for its "
        "linearization (dotted: chance). Right: the singular values that order the directions.",
    )


def _images(results: Results, nets: list[str]) -> Picture:
    figure, axes = panels(SHOWN, 2 * len(nets), width=0.95, height=1.0)
    for row, kind in enumerate(nets):
        images = torch.from_numpy(results.array(f"directions-{kind}"))
        spectra = torch.fft.fftshift(torch.fft.fft2(images), dim=(-2, -1)).abs()
        for column in range(SHOWN):
            reach = float(images[column].abs().max())
            axes[2 * row, column].imshow(images[column], cmap=DIVERGING, vmin=-reach, vmax=reach)
            axes[2 * row + 1, column].imshow(spectra[column])
            for panel, what in ((axes[2 * row, column], NAMES[kind]), (axes[2 * row + 1, column], "|DFT|")):
                panel.set(xticks=[], yticks=[])
                panel.grid(False)
                panel.set_xlabel(str(column), fontsize=7, labelpad=1)
                panel.set_ylabel(what, fontsize=7, labelpad=1)
    return Picture(
        "directions",
        figure,
        "The first ten anisotropy directions at initialization, as images and as magnitudes of their two-dimensional "
        "Fourier transforms (zero frequency in the middle).",
    )
