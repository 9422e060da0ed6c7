"""The experiment of figures 3.3 to 3.6: its question, its claims, its scales and its run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.experiments import (
    Batches,
    Chapter,
    Claim,
    Cost,
    Lab,
    Picture,
    Results,
    Training,
    experiment,
    train,
)
from tangentlab.experiments._images import Points, Row, batched, cross_entropy, image_data, loss_and_accuracy, some_of
from tangentlab.experiments.metrics import _fim_quality_claims as judge
from tangentlab.experiments.metrics import _fim_quality_figures as draw
from tangentlab.experiments.metrics import _fim_quality_measures as measure
from tangentlab.experiments.metrics._residual import FULL, SMALL, ResidualSetting

EVERY_SCALE = ("smoke", "desk", "paper")
_CELLS = "share of training points, of shared and independent draws"
_SOLVES = f"{_CELLS} and of dampings from 1e−4 to 1e−1"


def _best(claim: str, sentence: str, measured: str, place: str) -> Claim:
    """A claim that something is the best in more than half of the cases."""
    return Claim(claim, sentence, measured, ">", 0.5, place)


CLAIMS = (
    _best(
        "3.3-kfac-cosine",
        "KFAC is the best representation for operations with the inverse (exact Tikhonov damping): direction.",
        f"{_SOLVES} in which its cosine of v and (F̂+λ)⁻¹(F+λ)v is the highest",
        "§3.4.1, figure 3.3",
    ),
    _best(
        "3.3-kfac-residual",
        "KFAC is the best representation for operations with the inverse (exact Tikhonov damping): residual.",
        f"{_SOLVES} in which its residual is the lowest",
        "§3.4.1, figure 3.3",
    ),
    _best(
        "3.3-kfac-factored-cosine",
        "KFAC is the best representation for operations with the inverse (factored damping with π): direction.",
        f"{_SOLVES} in which its cosine is the highest",
        "§3.4.1, figure 3.3",
    ),
    _best(
        "3.3-kfac-factored-residual",
        "KFAC is the best representation for operations with the inverse (factored damping with π): residual.",
        f"{_SOLVES} in which its residual is the lowest",
        "§3.4.1, figure 3.3",
    ),
    Claim(
        "3.3-large-damping",
        "With large damping every representation solves alike: the cosine goes to 1.",
        "smallest cosine at the largest damping, over representations, training points and draws",
        ">=",
        0.999,
        "figure 3.3",
    ),
    _best(
        "3.4-ekfac-cosine",
        "EKFAC is the best representation for products Fv: direction.",
        f"{_CELLS} in which its cosine with Fv is the highest",
        "§3.4.1, figure 3.4",
    ),
    _best(
        "3.4-ekfac-residual",
        "EKFAC is the best representation for products Fv: residual.",
        f"{_CELLS} in which its residual is the lowest",
        "§3.4.1, figure 3.4",
    ),
    _best(
        "3.5-ekfac",
        "EKFAC is the best representation for quadratic forms vᵀFv.",
        f"{_CELLS} in which its relative error is the lowest",
        "§3.4.1, figure 3.5",
    ),
    Claim(
        "3.6-shared",
        "On shared draws the trace is exact for Diag, QuasiDiag and EKFAC.",
        "largest relative error over these three and all training points",
        "<=",
        1e-5,
        "figure 3.6",
        EVERY_SCALE,
    ),
    Claim(
        "3.6-independent",
        "On independent draws Diag, QuasiDiag and EKFAC are off by the fluctuation of the sampled labels only.",
        "mean relative error of the trace over these three and all training points",
        "<=",
        0.1,
        "figure 3.6",
    ),
    Claim(
        "3.6-kfac",
        "KFAC is clearly the worst on the trace.",
        "its error over the largest error of Diag, QuasiDiag and EKFAC, independent draws, smallest training point",
        ">=",
        2,
        "figure 3.6",
    ),
    Claim(
        "3-no-winner",
        "No representation is the best for all operations.",
        "largest share of the four operations (trace, vᵀFv, Fv, solve with exact damping) that one representation wins",
        "<",
        1,
        "§3.4.1",
    ),
)


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
    claims = CLAIMS
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
        "paper": "the paper tells neither optimizer nor training points nor how many images its Fisher matrix has. "
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
        batches = Batches(data, min(self.batch, len(data)), lab.seed)
        train(model, batches, cross_entropy, optimizer, self.updates, lab=lab, callbacks=[points])
        for claim, value in judge.numbers(points.rows).items():
            lab.measure(claim, value)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Figures 3.3 to 3.6 and a scoreboard."""
        return draw.pictures(results)
