"""The experiment of figures 3.3 to 3.6: its question, its claims, its scales and its run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.experiments import (
    Chapter,
    Cost,
    Lab,
    Minibatches,
    Picture,
    Results,
    Training,
    experiment,
    train,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Points, Row, batched, cross_entropy, image_data, loss_and_accuracy, some_of
from tangentlab.experiments.metrics import _fim_quality_claims as judge
from tangentlab.experiments.metrics import _fim_quality_figures as draw
from tangentlab.experiments.metrics import _fim_quality_measures as measure
from tangentlab.experiments.metrics._residual import FULL, SMALL, ResidualSetting


@experiment
class FimQuality(ResidualSetting):
    """Diag, QuasiDiag, BlockDiag, KFAC and EKFAC against the exact Fisher matrix, along a training."""

    name = "fim-quality"
    title = "How good are the approximations of the Fisher matrix?"
    question = (
        "The Fisher matrix of a network with millions of parameters cannot be stored, so one works with approximations "
        "of it: its diagonal, blocks, Kronecker products. Which of them is best at what? Each is compared with the "
        "exact matrix F, which is never stored but multiplied with vectors, at several points of a training: for its "
        "trace, for products Fv and quadratic forms vᵀFv with random unit vectors v, and for the damped inverse, where "
        "(F̂+λ)⁻¹(F+λ)v should give v back.\n\nF is estimated from 5 labels per image, drawn from the network's own "
        "predictions. Approximation and truth either share these draws, so that all that differs is the approximation, "
        "or draw independently, as in the paper."
    )
    chapter = Chapter.METRICS
    place = "§3.4.1, figures 3.3-3.6"
    claims = claims_of("fim-quality")
    scales = {
        "smoke": {
            **SMALL,
            "updates": 6,
            "points": (0,),
            "examples": 20,
            "fisher_batch": 10,
            "vectors": 2,
            "dampings": 9,
        },
        "paper": {**FULL, "rate": 0.01, "points": (0, 780, 3_900, 15_600), "examples": 2_000, "fisher_batch": 8},
    }
    seeds = {"smoke": 1, "desk": 3, "paper": 1}
    minutes = {"smoke": 0.1, "desk": 9, "paper": 20_000}
    notes = {
        "desk": "a residual network of 3 blocks with 16 to 64 channels (77,706 parameters) on CIFAR-10 at 16 x 16 "
        "pixels stands for ResNet50 on TinyImageNet; the Fisher matrix is that of 300 test images. The network has no "
        "batch norm, whose parameters have no Kronecker structure; its convolutions have biases instead. BlockDiag is "
        "left out: one block would take 5.5 GB.",
        "paper": "the paper gives neither the optimizer nor the training points nor the number of images in its Fisher matrix. "
        "ResNet50 is taken without batch norm, whose parameters have no Kronecker structure, with the initialization "
        "of appendix A.3 (24 million parameters). BlockDiag does not fit.",
    }

    points: tuple[int, ...] = (0, 25, 100)
    examples: int = 300
    fisher_batch: int = 100
    samples: int = 5
    vectors: int = 10
    dampings: int = 17
    block_limit: int = 4096

    def cost(self) -> Cost:
        """One step is one update, or all representations at one point of the training with one kind of draws."""
        points = len({*self.points, self.updates})
        return Cost(self.updates + points * len(measure.DRAWS), 0.25, 900)

    def run(self, lab: Lab) -> None:
        """Train, and compare all representations with the truth at every point."""
        data, test = image_data(lab, self.data, self.pixels, self.images)
        model = self.network(lab, data, norm=False).eval()
        inputs = batched(some_of(test, self.examples).inputs, self.fisher_batch)
        inputs = inputs[: lab.capped(len(inputs))]
        names = measure.representations(model, self.block_limit)
        dampings = np.geomspace(1e-6, 1e2, self.dampings).tolist()

        def compare(training: Training) -> list[Row]:
            loss, accuracy = loss_and_accuracy(model, some_of(test, 1000))
            truth = measure.exact(model, inputs, self.samples, self.vectors, lab, training.step)
            lab.log("training", step=training.step, loss=loss, accuracy=accuracy, trace=truth.trace)
            rows: list[Row] = []
            for draws in lab.loop(measure.DRAWS, f"Fisher matrices at step {training.step}"):
                settings = (self.samples, truth, draws, dampings)
                rows += measure.compare(model, inputs, names, *settings, lab, training.step)
            for row in rows:
                lab.log(row["kind"], **{key: value for key, value in row.items() if key != "kind"})
            return rows

        points = Points(self.points, compare)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
        batches = Minibatches(data, min(self.batch, len(data)), lab.seed)
        train(model, batches, cross_entropy, optimizer, self.updates, lab=lab, callbacks=[points])
        for claim, value in judge.numbers(points.rows).items():
            lab.measure(claim, value)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Figures 3.3 to 3.6 and a scoreboard."""
        return draw.pictures(results)
