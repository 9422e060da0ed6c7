"""Figure 4.4: what it costs to renew the curvature rarely, and how far its spectrum drifts meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from tangentlab import per_example_grads
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
)
from tangentlab.experiments import train as train_model
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Points, Row
from tangentlab.experiments.natural_gradient._competitors import COLORS, NATURAL, natural
from tangentlab.experiments.natural_gradient._optimizer_race import (
    DIVERGED,
    Competitor,
    compete,
    envelope,
    grid,
    logarithmic,
    logged,
)
from tangentlab.experiments.natural_gradient.autoencoder import load_images, make_field, reconstruction
from tangentlab.figures.style import label, legend_below, panels, quantity
from tangentlab.models import AutoEncoder, glorot_
from tangentlab.optim import EKFACra, NaturalSGD
from tangentlab.optim.layer_block import LayerBlock

Array = NDArray[Any]
FIGURE = "§4.4.1, figure 4.4"
NEVER = 10**9


def pixel_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Reconstruction loss of every image."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)


def spectrum_distance(exact: Array, scales: Tensor) -> float:
    """Distance of sorted eigenvalues, relative to the length of the exact ones; the shorter list ends in zeros."""
    found = np.sort(scales.double().flatten().numpy())[::-1]
    size = max(len(exact), len(found))
    one, two = np.zeros(size), np.zeros(size)
    one[: len(exact)], two[: len(found)] = np.sort(exact)[::-1], found
    return float(np.linalg.norm(one - two) / np.linalg.norm(one))


@experiment
class Amortization(Experiment):
    """The auto-encoder with curvature that is renewed every so many updates, and one layer's spectrum under a frozen basis."""

    name = "amortization"
    title = "Curvature that is renewed rarely"
    question = (
        "Decompositions of the Kronecker factors are the expensive part, so they are done only every so many updates. "
        "What does that cost in progress per epoch, and does it cost EKFAC less than KFAC, since EKFAC keeps "
        "re-estimating the scales in its basis? The auto-encoder is trained with several periods.\n\nThen the "
        "eigenbasis of one layer is computed once and frozen, and the spectrum that each method believes in is compared "
        "with that of the exact second moment of the gradients, as training goes on."
    )
    chapter = Chapter.NATURAL_GRADIENT
    place = FIGURE
    claims = claims_of("amortization")
    scales = {
        "smoke": {"data": "digits", "pixels": 8, "widths": (24, 12, 6), "images": 300, "batch": 50, "epochs": 2,
                  "first": (0.01,), "second": (0.1,), "periods": (2, 4), "examples": 60, "layer": "encoder.4"},
        "paper": {"pixels": 28, "widths": (1000, 500, 250, 30), "images": 60_000, "examples": 1_500},
    }  # fmt: skip
    minutes = {"smoke": 0.2, "desk": 15, "paper": 3_000}
    notes = {
        "desk": "10,000 images at 14 x 14 pixels and layers of a quarter of the width; four settings of learning rate and "
        "damping per method and period. In the first period the curvature is also renewed at updates 1, 2, 4, ...: a basis "
        "of the first update alone makes all methods diverge before the period matters.",
    }

    data: Literal["digits", "mnist"] = "mnist"
    pixels: int = 14
    widths: tuple[int, ...] = (250, 125, 62, 16)
    images: int = 10_000
    batch: int = 200
    epochs: int = 20
    periods: tuple[int, ...] = (10, 50, 200)
    first: tuple[float, ...] = (0.1, 0.01)
    second: tuple[float, ...] = (0.1, 0.01)
    examples: int = 1_500
    layer: str = "encoder.6"
    rate: float = 0.01
    damping: float = 0.01

    def cost(self) -> Cost:
        """One step per update: KFAC with one period more, then the frozen basis."""
        trainings = (3 * len(self.periods) + 1) * len(self.first) * len(self.second) + 1
        return Cost(trainings * self.epochs * (self.images // self.batch), 0.015, 800)

    def run(self, lab: Lab) -> None:
        """All periods, then the spectrum under a frozen basis."""
        train_set, valid_set = load_images(lab, self.data, self.pixels, self.images)
        field = make_field(lab, train_set, valid_set, self.widths, self.batch, self.epochs)
        rows: list[Row] = []
        for method, period in self._contests():
            for point in grid(self.first, self.second):
                rows += compete(lab, field, method, point, "periods", period=period)
        self._judge_periods(lab, rows)
        self._judge_spectrum(lab, self._spectrum(lab, train_set))

    def _contests(self) -> Iterator[tuple[Competitor, int]]:
        """Every method with every period, KFAC with period 1 as well."""
        for key, name in NATURAL.items():
            for period in (1, *self.periods) if key == "kfac" else self.periods:
                yield natural(key, name, COLORS[key], period), period

    def _judge_periods(self, lab: Lab, rows: list[Row]) -> None:
        def final(key: str, period: int) -> float:
            return envelope(row for row in rows if row["method"] == key and row["period"] == period)[self.epochs]

        def seconds(period: int) -> float:
            ends = [r for r in rows if r["method"] == "kfac" and r["period"] == period and r["epoch"] == self.epochs]
            return float(np.mean([row["seconds"] for row in ends]))

        def growth(key: str) -> float:
            return final(key, self.periods[-1]) / final(key, self.periods[0]) - 1

        values = {
            "4.4-period-one": final("kfac", 1) / min(final("kfac", period) for period in self.periods),
            "4.4-time": seconds(self.periods[len(self.periods) // 2]) / seconds(1),
            "4.4-ekfac": growth("ekfac") - growth("kfac"),
            "4.4-ra": growth("ekfac-ra") - growth("kfac"),
        }
        for claim, value in values.items():
            if math.isfinite(value):
                lab.measure(claim, value)
            else:
                lab.not_tested(claim, "every training of a method diverged")

    def _spectrum(self, lab: Lab, train_set: Dataset) -> list[Row]:
        """Train with EKFAC-ra in a basis that is never renewed; compare spectra of one layer at every epoch."""
        pixels = train_set.inputs.flatten(1)
        with lab.seeded("model", "spectrum"):
            model = glorot_(AutoEncoder((pixels.shape[1], *self.widths)))
        precond = EKFACra(model, damping=self.damping, period=NEVER, warm_up=False)
        optimizer = NaturalSGD(model, lr=self.rate, preconditioner=precond)
        batches = Minibatches((pixels,), min(self.batch, len(pixels)), lab.seed)
        few = pixels[: self.examples]

        def record(training: Training) -> list[Row]:
            block = next((b for group, b in precond.blocks.items() if group.name == self.layer), None)
            assert block is not None
            if training.step == 0 or block.scale is None or block.left.values is None:
                return []
            row = {"epoch": round(training.epoch), **self._distances(model, block, few, batches.at(training.step)[0])}
            lab.log("spectrum", **row)
            return [row]

        points = Points(range(0, self.epochs * batches.per_epoch + 1, batches.per_epoch), record)
        train_model(
            model, batches, reconstruction, optimizer, self.epochs * batches.per_epoch, lab=lab, name="spectrum",
            callbacks=[points],
        )  # fmt: skip
        return points.rows

    def _distances(self, model: nn.Module, block: LayerBlock, few: Tensor, batch: Tensor) -> dict[str, float]:
        """Non-zero eigenvalues of G are those of the Gram matrix of the layer's gradients over n."""

        def rows(pixels: Tensor) -> Tensor:
            found = per_example_grads(model, (pixels, pixels), pixel_losses, layers=self.layer, progress=False)
            return found.flat

        gradients = rows(few).double()
        exact = np.linalg.eigvalsh((gradients @ gradients.T).numpy() / len(few))
        own = rows(batch)
        scales = block.rotate(block.form.to_matrix(own)).square().mean(0)
        assert block.left.values is not None and block.right.values is not None and block.scale is not None
        kronecker = block.left.values[:, :, None] * block.right.values[:, None, :]
        beliefs = {"kfac": kronecker, "ekfac": scales, "ekfac-ra": block.scale}
        return {key: spectrum_distance(exact.clip(0), scale) for key, scale in beliefs.items()}

    def _judge_spectrum(self, lab: Lab, rows: list[Row]) -> None:
        if len(rows) < 2:
            for claim in ("4.4-spectrum-ekfac", "4.4-spectrum-ra"):
                lab.not_tested(claim, "too few epochs")
            return
        half = rows[len(rows) // 2 :]
        means = {key: float(np.mean([row[key] for row in half])) for key in NATURAL}
        lab.measure("4.4-spectrum-ekfac", means["ekfac"] / means["kfac"])
        lab.measure("4.4-spectrum-ra", means["ekfac-ra"] / means["kfac"])

    def draw(self, results: Results) -> Iterator[Picture]:
        """Loss per epoch and per second for every period; the spectrum."""
        rows = logged(results, "periods")
        figure, ((left, middle, right),) = panels(3)
        styles = dict(zip((1, *self.periods), ("-", "-", "--", ":"), strict=False))
        for key in NATURAL:
            for period in sorted({row["period"] for row in rows if row["method"] == key}):
                own = [row for row in rows if row["method"] == key and row["period"] == period]
                best = {epoch: value for epoch, value in envelope(own).items() if value < DIVERGED}
                clock = {epoch: min(r["seconds"] for r in own if r["epoch"] == epoch) for epoch in best}
                look: dict[str, Any] = {"color": COLORS[key], "linestyle": styles.get(period, "-.")}
                look["linewidth"] = 0.9 if period == 1 else 1.8
                left.plot(list(best), list(best.values()), label=f"{NATURAL[key]}, {period}", **look)
                middle.plot([clock[epoch] for epoch in best], list(best.values()), **look)
        for key, name in NATURAL.items():
            table = results.table("spectrum")
            if len(table):
                right.plot(table["epoch"], table[key], color=COLORS[key], label=name)
        logarithmic(left, middle, right)
        label(left, "epoch", quantity("training loss", "nats"), "best over the settings")
        label(middle, quantity("time in updates", "s"), quantity("training loss", "nats"), "the same over time")
        label(right, "epoch", "distance of spectra", "one layer, frozen basis")
        legend_below(left)
        legend_below(right)
        yield Picture(
            "figure-4.4",
            figure,
            "Left: best training loss over the settings for several periods (in updates) between renewals of KFAC's "
            "inverses and EKFAC's eigenbases. Middle: the same against the time spent in updates. Right: distance between "
            "the sorted eigenvalues of the exact second moment of one layer's gradients and those that each method "
            "assumes, in an eigenbasis that is computed once at the start.",
        )
