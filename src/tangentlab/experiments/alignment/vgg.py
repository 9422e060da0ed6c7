"""Figures 6.2, 6.3 and B.8: spectrum and alignment of a VGG19's tangent kernel along its training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import nn

from tangentlab.data import Dataset, label_noise
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
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Points, Row, cross_entropy, image_data, loss_and_accuracy, some_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.alignment import _vgg_figures as figures
from tangentlab.experiments.alignment._kernels import kernel_rows
from tangentlab.models import VGG


@experiment
class VGGAlignment(Experiment):
    """Kernels on a train and a test probe at geometric steps, with and without label noise, at two learning rates."""

    name = "vgg-alignment"
    title = "A deep network's kernel stretches along few directions, and towards the labels"
    question = (
        "How does the tangent kernel of a deep convolutional network change while it is trained, and what does label noise do "
        "to it?\n\nA VGG19 without batch norm learns CIFAR-10, with the true labels and with half of them random, at two "
        "learning rates. Along the way the kernels of all outputs on train and test images are decomposed, as a whole and "
        "layer by layer."
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.3.2, §6.3.3, figures 6.2, 6.3, B.8"
    claims = claims_of("vgg-alignment")
    scales = {
        "smoke": {"data": "digits", "pixels": 8, "channels": 1, "images": 100, "depth": 11, "base": 2, "batch": 20,
                  "steps": 4, "probe": 6, "test": 40, "ratio": 4.0, "default_steps": 2},
        "paper": {"images": 50_000, "base": 64, "steps": 20_000, "default_steps": 2_500, "test": 10_000},
    }  # fmt: skip
    seeds = {"smoke": 1, "desk": 3, "paper": 1}
    minutes = {"smoke": 0.3, "desk": 180, "paper": 20_000}
    notes = {
        "desk": "VGG19 with 16 to 128 channels, Kaiming-normal, on 4,000 CIFAR-10 images for 40 epochs, without augmentation "
        "or weight decay; kernels of 100 train and 100 test images at 44 steps.",
    }

    data: Literal["digits", "cifar10"] = "cifar10"
    pixels: int = 32
    channels: int = 3
    images: int = 4_000
    test: int = 1_000
    depth: int = 19
    base: int = 16
    batch: int = 100
    steps: int = 1_600
    default_steps: int = 200
    rates: tuple[float, ...] = (0.01, 0.003)
    momentum: float = 0.9
    noises: tuple[float, ...] = (0.0, 0.5)
    probe: int = 100
    ratio: float = 1.15

    def cost(self) -> Cost:
        """One step per update, of all trainings."""
        return Cost(len(self.rates) * len(self.noises) * self.steps + self.default_steps, 0.4, 1500)

    def run(self, lab: Lab) -> None:
        """All four trainings from the same initial network."""
        clean, test = image_data(lab, self.data, self.pixels, self.images)
        test = some_of(test, self.test)
        found: dict[tuple[float, float], list[Row]] = {}
        for noise in self.noises:
            data, _ = label_noise(clean, noise, lab.generator("labels"), "random")
            for rate in self.rates:
                found[noise, rate] = self._follow(lab, self._network(lab), data, test, noise=noise, rate=rate)
        self._judge(lab, found)
        self._try_default(lab, clean)

    def _network(self, lab: Lab) -> nn.Module:
        with lab.seeded("model"):
            return VGG(self.depth, 10, self.base, in_channels=self.channels, image_size=self.pixels)

    def _batches(self, lab: Lab, data: Dataset) -> Minibatches:
        return Minibatches(data, min(self.batch, len(data)), lab.seed)

    def _sgd(self, model: nn.Module, rate: float) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=self.momentum)

    def _try_default(self, lab: Lab, data: Dataset) -> None:
        """The same network with the initialization of its layers' own constructors."""
        model, rate = self._network(lab), max(self.rates)
        with lab.seeded("default"):
            for module in model.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    module.reset_parameters()
        optimizer, name = self._sgd(model, rate), "default initialization"
        done = train(model, self._batches(lab, data), cross_entropy, optimizer, self.default_steps, lab=lab, name=name)
        loss, accuracy = loss_and_accuracy(model, some_of(data, self.test))
        lab.log("default", step=done.step, loss=loss, accuracy=accuracy)
        lab.measure("6.2-default", abs(loss - math.log(10)))

    def _follow(self, lab: Lab, model: nn.Module, data: Dataset, test: Dataset, **facts: float) -> list[Row]:
        count = lab.capped(self.probe)  # a trial of a few steps is a trial of a few examples
        probes = {"train": some_of(data, count), "test": some_of(test, count)}

        def record(training: Training) -> list[Row]:
            scores = {
                "train": loss_and_accuracy(model, some_of(data, self.test)),
                "test": loss_and_accuracy(model, test),
            }
            rows = []
            for split, probe in probes.items():
                loss, accuracy = scores[split]
                row, parts = kernel_rows(model, probe)
                row = {"step": training.step, "split": split, "loss": loss, "accuracy": accuracy, **row}
                lab.log("kernel", **facts, **row)
                for part in parts:
                    lab.log("layers", **facts, step=training.step, split=split, **part)
                rows.append(row | {"layers": [part["cka"] for part in parts]})
            return rows

        points = Points(geometric_steps(self.steps, 5.0, self.ratio), record)
        batches, optimizer = self._batches(lab, data), self._sgd(model, facts["rate"])
        name = f"noise {facts['noise']:g}, rate {facts['rate']:g}"
        train(model, batches, cross_entropy, optimizer, self.steps, lab=lab, name=name, callbacks=[points])
        return points.rows

    def _judge(self, lab: Lab, found: dict[tuple[float, float], list[Row]]) -> None:
        (clean, noisy), (high, low) = self.noises, self.rates
        runs = {
            key: {s: [row for row in rows if row["split"] == s] for s in ("train", "test")}
            for key, rows in found.items()
        }
        train_rows, test_rows = runs[clean, high]["train"], runs[clean, high]["test"]
        start, end = train_rows[0], train_rows[-1]
        ranks = {key: np.array([row["effective_rank"] for row in parts["train"]]) for key, parts in runs.items()}
        lab.measure("6.2-max", end["max"] / start["max"])
        lab.measure("6.2-mean", end["mean"] / start["mean"])
        lab.measure("6.2-larger-faster", (end["max"] / start["max"]) / max(end["median"] / start["median"], 1e-12))
        lab.measure("6.2-erank-clean", float(ranks[clean, high].min() / ranks[clean, high][0]))
        lab.measure("6.2-erank-noise", float(ranks[noisy, high].min() / ranks[noisy, high][0]))
        lab.measure("6.2-T40", max(row.get("T_40", 0.0) for row in train_rows))
        pairs = [(a["effective_rank"], b["effective_rank"]) for a, b in zip(train_rows, test_rows, strict=True)]
        lab.measure("6.2-alike", float(np.mean([abs(a - b) / b for a, b in pairs])))
        lab.measure("6.2-fitted", end["accuracy"])
        lab.measure("6.3-rise", max(row["cka"] for row in train_rows) - start["cka"])
        heights = sorted(max(values) for values in zip(*(row["layers"] for row in train_rows), strict=True))
        lab.measure("6.3-layers", heights[-3])
        lab.measure("6.3-top", end["layers"][-1] / max(end["layers"]))
        noisy_train, noisy_test = runs[noisy, high]["train"], runs[noisy, high]["test"]
        accuracy = [row["accuracy"] for row in noisy_test]
        lab.measure("6.2-anticorrelated", rank_correlation(ranks[noisy, high], accuracy, least=3))
        lab.measure("6.2-overfitting", float(ranks[noisy, high][-1] / ranks[noisy, high].min()))
        best = int(np.argmax(accuracy))
        lab.measure("6.3-test-above", noisy_test[best]["cka"] / max(noisy_train[best]["cka"], 1e-12))
        peak = int(np.argmax([row["cka"] for row in noisy_test]))
        lab.measure("6.3-peak", accuracy[peak] / max(max(accuracy), 1e-12))
        lab.measure("B.8-drop", float(ranks[clean, low].min() / ranks[clean, low][0]))
        lab.measure("B.8-higher", float(ranks[clean, low].min() / ranks[clean, high].min()))

    def draw(self, results: Results) -> Iterator[Picture]:
        """Spectra and alignments at the higher rate, the lower rate, and all of it not centred."""
        high, low = self.rates
        for suffix, twin in (("", ""), ("_raw", "-uncentred")):
            yield figures.spectrum(results, f"figure-6.2{twin}", self.noises, high, suffix, self.steps)
            yield figures.alignment(results, f"figure-6.3{twin}", self.noises, high, suffix, self.steps)
            yield figures.spectrum(results, f"figure-b.8{twin}", self.noises, low, suffix, self.steps)
