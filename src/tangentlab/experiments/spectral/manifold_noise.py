"""Experiment 8: white noise is easier to learn on the curved manifold of digits than on a flat one of the same dimension."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from tangentlab.data import Dataset
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
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments.spectral._digits import error_on
from tangentlab.experiments.spectral._waves import common_network, regress
from tangentlab.figures.style import PALETTE, band, label, legend_below, panels
from tangentlab.linearized import at_progress
from tangentlab.models import AutoEncoder

Array = NDArray[np.float64]

MANIFOLDS = ("digits", "flat")


@experiment
class ManifoldNoise(Experiment):
    """One auto-encoder and two trainings; the seed draws images, noise and weights."""

    name = "manifold-noise"
    title = "White noise is easier on curved data"
    question = (
        "Random numbers are to be learnt as a function of 784 pixels. Once the inputs are digits as a denoising auto-encoder "
        "with 64 features sees them, once they fill a flat piece of 64 dimensions. Where does the loss fall faster?"
    )
    chapter = Chapter.SPECTRAL
    place = "A.1.6, figure A.10"
    claims = claims_of("manifold-noise")
    scales = {
        "smoke": {
            "dataset": "digits",
            "images": 100,
            "examples": 40,
            "code": 8,
            "hidden": 16,
            "epochs": 1,
            "steps": 10,
            "period": 1,
            "width": 16,
        },
        "paper": {"images": 60_000, "examples": 10_000, "steps": 10_000},
    }
    seeds = {"desk": 10, "paper": 10}
    minutes = {"smoke": 0.1, "desk": 15, "paper": 900}
    notes = {"desk": "5,000 images for the auto-encoder, 500 examples and 1,000 steps; the paper gives no network."}

    dataset: str = "mnist"
    images: int = 5_000
    examples: int = 500
    code: int = 64
    hidden: int = 256
    corruption: float = 0.3
    epochs: int = 40
    batch: int = 100
    width: int = 256
    layers: int = 6
    rate: float = 3e-4
    steps: int = 1_000
    period: int = 5

    def updates(self) -> int:
        """Of the auto-encoder."""
        return self.epochs * max(1, self.images // self.batch)

    def cost(self) -> Cost:
        """Updates of the auto-encoder and steps of both trainings."""
        return Cost(self.updates() + len(MANIFOLDS) * self.steps, 0.02, 600)

    def run(self, lab: Lab) -> None:
        """The auto-encoder, its reconstructions, and the same targets on both manifolds."""
        images = lab.dataset(self.dataset)
        images = images.take(torch.randperm(len(images), generator=lab.generator("images"))[: self.images])
        pixels = images.inputs.flatten(1)
        curved = self._reconstructed(lab, pixels)[: self.examples]
        flat = torch.zeros_like(curved)
        flat[:, : self.code] = torch.rand(len(flat), self.code, generator=lab.generator("flat"))
        noise = torch.rand(len(curved), 1, generator=lab.generator("noise"))
        lab.log("targets", variance=float(noise.var(correction=0)))
        for manifold, inputs in zip(MANIFOLDS, (curved, flat), strict=True):
            data = Dataset(inputs, noise, manifold)
            model = common_network(lab, inputs.shape[1], self.width, self.layers)
            regress(
                lab,
                "training",
                model,
                data,
                (self.rate, self.steps, self.period),
                partial(_look, data),
                name=manifold,
                manifold=manifold,
            )

    def _reconstructed(self, lab: Lab, pixels: Tensor) -> Tensor:
        """The images as the decoder makes them of their codes, `(images, pixels)`, with values between 0 and 1."""
        with lab.seeded("auto-encoder"):
            model = AutoEncoder((pixels.shape[1], self.hidden, self.code), "relu", linear_code=True)
        size = min(self.batch, len(pixels))
        batches = Minibatches((pixels, pixels), size, lab.seed, augment=partial(_corrupted, self.corruption))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train(model, batches, _pixel_loss, optimizer, self.updates(), lab=lab, name="auto-encoder")
        with torch.no_grad():
            found = torch.sigmoid(model(pixels))
        lab.log("auto-encoder", error=float((found - pixels).square().mean()), variance=float(pixels.var(0).mean()))
        return found

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        (coder,) = results.table("auto-encoder", seed=seed).rows
        (targets,) = results.table("targets", seed=seed).rows
        levels = targets["variance"] * np.array([0.1, 0.5])
        (late_flat, half_flat), (late_digits, half_digits) = (
            self._reached(results, seed, manifold, levels) for manifold in ("flat", "digits")
        )
        return {
            "SB-8-coder": coder["error"] / coder["variance"],
            "SB-8-easier": late_flat / late_digits,
            "SB-8-half": half_flat / half_digits,
        }

    def _reached(self, results: Results, seed: int, manifold: str, losses: Array) -> list[float]:
        """The step at which every loss was first reached, linear between rows, NaN where it never was."""
        rows = sorted(results.table("training", manifold=manifold, seed=seed).rows, key=lambda row: row["step"])
        return at_progress([row["loss"] for row in rows], [row["step"] for row in rows], losses).tolist()

    def draw(self, results: Results) -> Iterator[Picture]:
        """The losses."""
        figure, ((axes,),) = panels()
        names = ("digits of an auto-encoder", "flat")
        for manifold, name, color in zip(MANIFOLDS, names, PALETTE[::2], strict=False):
            band(axes, results.curves("training", "step", "loss", manifold=manifold), name, color=color)
        axes.set_yscale("log")
        label(axes, "training step", "mean squared error")
        legend_below(axes, 2)
        yield Picture(
            "figure-a.10",
            figure,
            f"The loss of a network that learns random numbers on {self.examples} inputs from two manifolds of "
            f"{self.code} dimensions in the space of pixels: mean over seeds, and all seeds as a band.",
        )


def _corrupted(share: float, batch: tuple[Tensor, ...], generator: Generator) -> tuple[Tensor, ...]:
    """A share of the pixels set to zero; the targets stay."""
    inputs, targets = batch
    return inputs * (torch.rand(inputs.shape, generator=generator) >= share), targets


def _pixel_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    inputs, targets = batch
    return nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)


def _look(data: Dataset, training: Training) -> Row:
    return {"loss": error_on(training.model, data.inputs, data.targets)}
