"""Mixtures have few large singular values, and on corrupted clusters descent learns the true labels first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.data import Dataset, label_noise, random_clusters
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
from tangentlab.experiments._images import Row, follow
from tangentlab.experiments.limits._measures import cut_short, log_slope, share_right
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, log_height, panels, step_axis
from tangentlab.limits import ClusterTheorem, MixtureTheorem
from tangentlab.metrics import NTK
from tangentlab.models import FixedOutputMLP

SHOWN = 30


@experiment
class CorruptedClusters(Experiment):
    """`V phi(W x)` with a fixed V: its Jacobian on Gaussian mixtures, and its descent on clusters with corrupted labels."""

    name = "corrupted-clusters"
    title = "Stopped in time, descent on corrupted clusters finds every true label"
    question = (
        "On a mixture of Gaussians with small variance, inputs of one component have almost one gradient, so the Jacobian "
        "has one large singular value for each component and output, K²C in all, and descent learns along those first. "
        "Corrupted labels lie outside of them. How sharp is that gap, and how long does descent on clusters with a share ρ of "
        "corrupted labels know the true ones?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Soltanolkotabi, Gaussian mixture model and Robustness to corruption"
    claims = claims_of("corrupted-clusters")
    scales = {
        "smoke": {"counts": (72, 144), "width": 30, "steps": 60, "points": 100, "spreads": (0.0, 0.05, 0.2)},
        "paper": {},
    }
    seeds = {"desk": 5, "paper": 5}
    minutes = {"smoke": 0.2, "desk": 3, "paper": 3}
    notes = {"desk": "the slides name no sizes: K = 3, C = 2 and L = 10 are ours"}

    classes: int = 3
    components: int = 2
    dimension: int = 50
    width: int = 40
    counts: tuple[int, ...] = (75, 150, 300, 600)
    spreads: tuple[float, ...] = (0.0, 0.01, 0.05, 0.2)
    confidence: float = 4.0
    clusters: int = 10
    corruptions: tuple[float, ...] = (0.05, 0.2, 0.4)
    points: int = 300
    inputs: int = 20
    hidden: int = 200
    radius: float = 0.05
    steps: int = 3000

    @property
    def theorem(self) -> MixtureTheorem:
        """Of the mixture."""
        return MixtureTheorem(self.classes, self.components, self.confidence)

    @property
    def _mixture_steps(self) -> int:
        return round(self.theorem.steps)

    def cost(self) -> Cost:
        """Spectra and updates."""
        spectra = len(self.spreads) + len(self.counts)
        return Cost(spectra + self._mixture_steps + len(self.corruptions) * self.steps, 0.003, 600)

    def run(self, lab: Lab) -> None:
        """Spectra, a training on the mixture, and one for every share of corrupted labels."""
        for spread in lab.loop(list(self.spreads), "spreads"):
            values = singular_values(*self._mixture(lab, spread, max(self.counts)))
            gaps = (values[:-1] / values[1:].clamp_min(1e-8 * float(values[0])))[: 5 * self.theorem.large_values]
            for rank, value in enumerate(values[:SHOWN].tolist(), 1):
                lab.log("spectrum", spread=spread, rank=rank, value=value)
            place = int(gaps.argmax()) + 1
            lab.log("gaps", spread=spread, place=place, ratio=float(gaps[self.theorem.large_values - 1]))
        for count in lab.loop(list(self.counts), "sizes"):
            values = singular_values(*self._mixture(lab, self.radius, count))[: self.theorem.large_values]
            lab.log("growth", count=count, value=float(values.log().mean().exp()))
        self._learn_mixture(lab)
        for corruption in self.corruptions:
            self._learn_clusters(lab, corruption)

    def _mixture(self, lab: Lab, spread: float, count: int, split: str = "train") -> tuple[nn.Module, Dataset]:
        number = self.classes * self.components
        mixture = random_clusters(number, self.classes, self.dimension, spread, lab.generator("mixture"))
        data, _ = mixture.sample(count, lab.generator("mixture", split))
        with lab.seeded("mixture network"):
            return FixedOutputMLP(self.dimension, self.width, self.classes).double(), data

    def _learn_mixture(self, lab: Lab) -> None:
        """Gamma K^2 C steps on clean labels, and the share of new points that are misclassified along them."""
        model, data = self._mixture(lab, self.radius, max(self.counts))
        _, new = self._mixture(lab, self.radius, 1000, "test")
        targets = nn.functional.one_hot(data.targets, self.classes).double()

        def measure(training: Training) -> Row:
            return {"error": 1 - share_right(model(new.inputs), new.targets)}

        self._descend(lab, "mixture", model, (data.inputs, targets), self._mixture_steps, measure)

    def _learn_clusters(self, lab: Lab, corruption: float) -> None:
        """Descent on corrupted labels of two classes, -1 and 1; who is right is judged by the true ones."""
        clusters = random_clusters(self.clusters, 2, self.inputs, self.radius, lab.generator("clusters"), sphere=True)
        data, members = clusters.sample(self.points, lab.generator("clusters", "train"))
        new, _ = clusters.sample(1000, lab.generator("clusters", "test"))
        noisy, mask = label_noise(data, corruption, lab.generator("labels"), groups=members)
        with lab.seeded("cluster network"):
            model = FixedOutputMLP(self.inputs, self.hidden, activation="relu").double()

        def measure(training: Training) -> Row:
            nearest, unseen = (model(inputs) for inputs in (data.inputs, new.inputs))
            return {
                "true": share_right(nearest, data.targets),
                "memorized": share_right(nearest[mask], noisy.targets[mask]),
                "new": share_right(unseen, new.targets),
            }

        targets = (2.0 * noisy.targets - 1).double()[:, None]
        self._descend(
            lab,
            "clusters",
            model,
            (data.inputs, targets),
            self.steps,
            measure,
            stop_of(self, corruption),
            rho=corruption,
        )

    def _descend(
        self,
        lab: Lab,
        table: str,
        model: nn.Module,
        data: tuple[Tensor, Tensor],
        steps: int,
        measure: Callable[[Training], Row],
        *also: int,
        **facts: Any,
    ) -> None:
        """Full batches at a rate of 1 / (largest eigenvalue of the tangent kernel at the start)."""
        rate = 1 / float(NTK(model, data[0]).eigvalsh().max())
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
        at = sorted({*geometric_steps(steps, 1.0, 1.2), *(step for step in also if step <= steps)})
        name = f"{table} {facts.get('rho', '')}".strip()
        follow(
            lab,
            table,
            model,
            Minibatches(data, None, lab.seed),
            optimizer,
            steps,
            at,
            measure,
            loss=half_squares,
            name=name,
            **facts,
        )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        gaps, growth, mixture = (results.table(name, seed=seed).rows for name in ("gaps", "growth", "mixture"))
        known = {row["rho"]: row for row in results.table("clusters", seed=seed).rows}
        if (
            len(growth) < len(self.counts)
            or len(known) < len(self.corruptions)
            or known[self.corruptions[-1]]["step"] < self.steps
        ):
            return cut_short(self.claims)
        ratios = {row["spread"]: row["ratio"] for row in gaps if row["spread"]}
        few, some, many = self.corruptions
        at = {
            rho: results.table("clusters", seed=seed, rho=rho, step=stop_of(self, rho)).rows[0]
            for rho in self.corruptions
        }
        return {
            "S4b-T4-count": max(abs(row["place"] - self.theorem.large_values) for row in gaps),
            "S4b-T4-growth": abs(log_slope(growth, "count", "value") - 0.5),
            "S4b-T4-gap": ratios[min(ratios)] / ratios[max(ratios)],
            "S4b-T4-error": mixture[-1]["error"],
            "S4b-T5-true": at[few]["true"],
            "S4b-T5-beyond": at[some]["true"],
            "S4b-T5-new": at[few]["new"],
            "S4b-T5-lost": at[many]["true"] - known[many]["true"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Spectra and their growth; true and memorized labels along the descent."""
        yield self._spectra(results)
        yield self._labels(results)

    def _spectra(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        for spread, color in zip(results.table("spectrum").distinct("spread"), PALETTE, strict=False):
            band(left, results.curves("spectrum", "rank", "value", spread=spread), f"spread {spread:g}", color=color)
        left.axvline(self.theorem.large_values + 0.5, color=GRAY, linestyle=":")
        left.set_yscale("log")
        left.set_ylim(bottom=1e-3)
        label(left, "rank", "singular value", f"K = {self.classes}, C = {self.components}, {max(self.counts)} points")
        legend_below(left)
        curves = results.curves("growth", "count", "value")
        band(right, curves, "large singular values", color=PALETTE[0], marker="o")
        right.plot(curves.x, curves.mean[0] * np.sqrt(curves.x / curves.x[0]), color=GRAY, linestyle=":", label="√n")
        right.set_xscale("log")
        right.set_xticks(self.counts, [str(count) for count in self.counts])
        right.minorticks_off()
        log_height(right)
        label(right, "points n", "geometric mean", f"the {self.theorem.large_values} largest, spread {self.radius:g}")
        legend_below(right)
        return Picture(
            "spectrum",
            figure,
            f"Left: the {SHOWN} largest singular values of the Jacobian at the start by the spread of the components (distance "
            "of a point from the centre of its component, which has norm 1); the dotted line stands behind number K²C = "
            f"{self.theorem.large_values}. Without spread the others are 0 up to rounding. Right: the geometric mean of the "
            "large ones over the number of points. Mean over seeds, all seeds as a band.",
        )

    def _labels(self, results: Results) -> Picture:
        figure, ((left, right),) = panels(2)
        for rho, color in zip(self.corruptions, PALETTE, strict=False):
            band(left, results.curves("clusters", "step", "true", rho=rho), f"ρ = {rho:g}", color=color)
            band(right, results.curves("clusters", "step", "memorized", rho=rho), f"ρ = {rho:g}", color=color)
            left.axvline(stop_of(self, rho), color=color, linestyle=":")
        for axes, what, title in (
            (left, "share of true labels", f"all {self.points} points"),
            (right, "share of corrupted labels", "corrupted points"),
        ):
            step_axis(axes, self.steps, 1.0)
            label(axes, "step", what, title)
            legend_below(axes, 3)
        return Picture(
            "labels",
            figure,
            f"Descent on {self.clusters} clusters with a share ρ of corrupted labels in each (colours). Left: share of points "
            "whose nearest label is the true one; dotted, L log(1/ρ) steps. Right: share of the corrupted points whose nearest "
            "label is the corrupted one. Mean over seeds, all seeds as a band.",
        )


def stop_of(setting: CorruptedClusters, corruption: float) -> int:
    """L log(1 / rho) steps, or the last one when the training is shorter."""
    return min(round(ClusterTheorem(setting.clusters, corruption).steps), setting.steps)


def singular_values(model: nn.Module, data: Dataset) -> Tensor:
    """Those of the Jacobian, descending."""
    return NTK(model, data.inputs).eigvalsh().flip(0).clamp_min(0).sqrt()


def half_squares(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """`|f - y|^2 / 2`, summed over examples."""
    inputs, targets = batch
    return (model(inputs) - targets).square().sum() / 2
