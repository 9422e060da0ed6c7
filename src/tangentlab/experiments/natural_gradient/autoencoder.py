"""Figure 4.3: the MNIST auto-encoder, EKFAC and EKFAC-ra against KFAC, SGD, Adam and SOAP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Literal

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset, downscale
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Minibatches, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, some_of
from tangentlab.experiments.natural_gradient import _autoencoder_figures as figures
from tangentlab.experiments.natural_gradient._competitors import (
    COLORS,
    MODEL_FISHER,
    NATURAL,
    adam,
    model_fisher,
    natural,
    sgd,
    soap,
)
from tangentlab.experiments.natural_gradient._optimizer_race import (
    DIVERGED,
    Competitor,
    Field,
    compete,
    curve,
    envelope,
    grid,
    reaches,
    share_below,
    winner,
)
from tangentlab.models import AutoEncoder, glorot_

SHORT = {"ekfac": "ekfac", "ekfac-ra": "ra", MODEL_FISHER: "model"}
KEYS = {short: key for key, short in SHORT.items()}


def methods(period: int) -> list[Competitor]:
    """The competitors."""
    family = [natural(key, name, COLORS[key], period) for key, name in NATURAL.items()]
    return [*family, model_fisher("multi_label", period), sgd("sgd", norm=True), adam(), soap()]


def reconstruction(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Cross-entropy between pixels and their reconstruction, summed over pixels, mean over images, in nats."""
    pixels = batch[0].flatten(1)
    return nn.functional.binary_cross_entropy_with_logits(model(pixels), pixels, reduction="none").sum(1).mean()


def load_images(lab: Lab, name: str, pixels: int, images: int) -> tuple[Dataset, Dataset]:
    """Training and validation images with values in [0, 1], averaged down to `pixels`."""
    parts = [lab.dataset(name, split) for split in ("train", "test")]
    parts = [part.first(min(images, len(part))) for part in parts]
    small = [downscale(part, pixels) if pixels < part.inputs.shape[-1] else part for part in parts]
    return small[0], small[1]


def make_field(
    lab: Lab, train_set: Dataset, valid_set: Dataset, widths: tuple[int, ...], batch: int, epochs: int, repeat: int = 0
) -> Field:
    """The auto-encoder's race; another `repeat` has other initial weights and another order of the images."""
    size = train_set.inputs[0].numel()

    def network(norm: bool) -> nn.Module:
        with lab.seeded("model", repeat):
            return glorot_(AutoEncoder((size, *widths), batch_norm=norm))

    def score(model: nn.Module) -> dict[str, float]:
        parts = {"train": train_set, "valid": valid_set}
        with torch.no_grad():
            return {key: float(reconstruction(model, tuple(some_of(part, 2000)))) for key, part in parts.items()}

    return Field(network, reconstruction, score, Minibatches(train_set, batch, lab.seed + repeat), epochs)


OWN = ("ra", "model")
RIVALS = {"sgd": "SGD with batch norm", "adam": "Adam with batch norm"}
UNITS = {"time": "seconds", "half": "epoch"}


@experiment
class AutoencoderOptimizers(Experiment):
    """An auto-encoder trained by seven optimizers over equal grids, and the selected settings repeated."""

    name = "autoencoder-optimizers"
    title = "EKFAC on the MNIST auto-encoder"
    question = (
        "Does a better approximation of the curvature train faster? A deep auto-encoder with sigmoid units is the "
        "classical hard case: SGD and Adam need batch norm to get anywhere on it. Each optimizer gets the same number "
        "of settings and epochs; at each epoch the best training loss over all its settings counts. EKFAC re-estimates "
        "the scales in KFAC's eigenbasis from every minibatch, EKFAC-ra keeps a running average of squared batch "
        "gradients instead. SOAP, Adam in the eigenbasis of gradient moments, is today's rival.\n\nThe paper takes the "
        "empirical Fisher matrix. Beyond it, EKFAC-ra runs in the eigenbasis of the model's own Fisher matrix as well, with "
        "steps that are clipped by their KL divergence.\n\nThe selected settings are trained again "
        "from other initial weights, and the clock runs during updates alone."
    )
    chapter = Chapter.NATURAL_GRADIENT
    place = "§4.4.1, figure 4.3"
    claims = claims_of("autoencoder-optimizers")
    scales = {
        "smoke": {
            "data": "digits",
            "pixels": 8,
            "widths": (24, 12, 6),
            "images": 300,
            "batch": 50,
            "epochs": 2,
            "first": (0.01,),
            "second": (0.1, 0.01),
            "repeats": 1,
            "period": 3,
        },
        "paper": {"pixels": 28, "widths": (1000, 500, 250, 30), "images": 60_000, "repeats": 2},
    }
    minutes = {"smoke": 0.2, "desk": 63, "paper": 30_000}
    notes = {
        "desk": "10,000 images at 14 x 14 pixels and layers of a quarter of the width, 196-250-125-62-16; one batch size. "
        "SGD's grid has its momentum, Adam's and SOAP's their second beta in the place of the damping. All networks have "
        "Glorot's initialization for sigmoids (the paper names none), and in the first period the curvature is also renewed at "
        "updates 1, 2, 4, ...: with torch's own initialization and one basis per epoch from the start, every natural gradient "
        "lost to SGD and Adam. The clipping of EKFAC-ra with the model's Fisher matrix, 0.01, was chosen from 0.3, 0.1, 0.03, "
        "0.01 and 0.003 in short trials on the same images.",
        "paper": "the paper searches further settings at random around each grid point, and batch 500.",
    }

    data: Literal["digits", "mnist"] = "mnist"
    pixels: int = 14
    widths: tuple[int, ...] = (250, 125, 62, 16)
    images: int = 10_000
    batch: int = 200
    epochs: int = 20
    period: int = 50
    first: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0001)
    second: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0001)
    repeats: int = 2

    def cost(self) -> Cost:
        """One step per update: all grids, and the selected settings again."""
        trainings = 7 * (len(self.first) * len(self.second) + self.repeats)
        weights = 2 * sum(one * two for one, two in pairwise((self.pixels**2, *self.widths)))
        return Cost(trainings * self.epochs * (self.images // self.batch), 0.005 + 1.4e-7 * weights, 700)

    def run(self, lab: Lab) -> None:
        """All grids, then the selected settings from other initial weights."""
        train_set, valid_set = load_images(lab, self.data, self.pixels, self.images)
        rows: list[Row] = []
        for method in methods(self.period):
            field = make_field(lab, train_set, valid_set, self.widths, self.batch, self.epochs)
            for point in grid(self.first, self.second):
                rows += compete(lab, field, method, point, "grid")
            best = winner(row for row in rows if row["method"] == method.key)
            lab.log("selected", method=method.key, first=best[0], second=best[1])
            for repeat in range(1, self.repeats + 1):
                again = make_field(lab, train_set, valid_set, self.widths, self.batch, self.epochs, repeat)
                rows += compete(lab, again, method, best, "repeats", repeat=repeat)
        self._judge(lab, rows)

    def _judge(self, lab: Lab, rows: list[Row]) -> None:
        """Numbers of all claims."""
        by_method = {
            method.key: [row for row in rows if row["method"] == method.key] for method in methods(self.period)
        }
        grids = {key: [row for row in own if "repeat" not in row] for key, own in by_method.items()}
        curves = {key: envelope(own) for key, own in grids.items()}
        pairs = (("ekfac", "kfac"), ("ekfac", "sgd"), ("ekfac", "adam"), ("ekfac-ra", "kfac"), ("ekfac-ra", "sgd"))
        for one, other in (*pairs, ("ekfac-ra", "adam"), ("ekfac-ra", "soap"), (MODEL_FISHER, "soap")):
            claim = f"4.3-{SHORT[one]}-{other}"
            lab.measure(claim, share_below(curves[one], curves[other]))
        for rival, own, unit in product(RIVALS, OWN, UNITS):
            ratio = self._worst(by_method[KEYS[own]], by_method[rival], UNITS[unit])
            if math.isnan(ratio):
                lab.not_tested(f"4.3-{own}-{unit}-{rival}", f"a training by {RIVALS[rival]} diverged")
            else:
                lab.measure(f"4.3-{own}-{unit}-{rival}", ratio)
        valid = {key: min(row["valid"] for row in grids[key]) for key in ("kfac", "ekfac")}
        ends = [row["train"] for row in grids["ekfac"] if row["epoch"] == self.epochs]
        if max(valid.values()) < DIVERGED:
            lab.measure("4.3-validation", abs(valid["ekfac"] / valid["kfac"] - 1))
        else:
            lab.not_tested("4.3-validation", "every training of KFAC or of EKFAC diverged")
        if min(ends) < DIVERGED:
            lab.measure("4.3-narrow", sum(end <= 1.1 * min(ends) for end in ends) / len(ends))
        else:
            lab.not_tested("4.3-narrow", "every training of EKFAC diverged")

    def _worst(self, own: list[Row], rival: list[Row], unit: str) -> float:
        """Largest ratio, over repeated trainings, of reaching the rival's final loss to the rival's whole training.

        NaN where the rival diverges: there is nothing to reach.
        """
        ratios = []
        for repeat in [None, *range(1, self.repeats + 1)]:
            ours, theirs = (curve(rows, winner(rows), repeat=repeat) for rows in (own, rival))
            goal, whole = theirs[-1]["train"], float(theirs[-1][unit])
            if goal >= DIVERGED:
                return math.nan
            ratios.append(reaches(ours, goal, unit) / max(whole, 1e-9))
        return max(ratios)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Figure 4.3 and its sensitivity panel."""
        yield from figures.draw(results, methods(self.period))
