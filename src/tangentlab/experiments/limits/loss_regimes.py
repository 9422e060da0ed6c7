"""Squared against exponential loss on a diagonal network: one remembers the scale of its start, the other forgets it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, label, legend_beside, panels
from tangentlab.implicit_bias import (
    FlowPotential,
    diagonal_predictor,
    diagonal_start,
    follow_flow,
    l1_margin,
    l2_margin,
    least_l2,
    minimum_on,
)


@experiment
class LossRegimes(Experiment):
    """Margins along the flow of the exponential loss from several scales, next to the limits of the squared loss."""

    name = "loss-regimes"
    title = "The exponential loss leaves the kernel regime, late"
    question = (
        "With the squared loss a large start stays in the kernel regime for ever. The slides end on the comparison "
        "with the exponential loss, whose weights grow without bound, and do not answer it. What does its flow "
        "maximize, early and late?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, Squared Loss vs Exp Loss"
    claims = claims_of("loss-regimes")
    scales = {
        "smoke": {"features": 6, "samples": 4, "alphas": (0.1, 3.0), "depth": 30.0, "moments": 12},
        "paper": {},
    }
    seeds = {"desk": 5, "paper": 5}
    minutes = {"smoke": 0.1, "desk": 4, "paper": 4}
    notes = {"desk": "the slides ask the question without data: the setting is ours"}

    features: int = 30
    samples: int = 10
    alphas: tuple[float, ...] = (0.01, 1.0, 10.0)
    depth: float = 1e6
    moments: int = 80

    def cost(self) -> Cost:
        """One step per alpha and loss."""
        return Cost(2 * len(self.alphas), 10.0, 300)

    def run(self, lab: Lab) -> None:
        """Flows of `log L` until `-log L` is `depth`, at moments evenly spaced in the logarithm of `-log L`."""
        stream = lab.generator("data")
        x = torch.randn(self.samples, self.features, generator=stream, dtype=torch.float64)
        y = torch.randint(0, 2, (self.samples,), generator=stream).double() * 2 - 1
        best = {1: _margin(l1_margin(x, y), x, y, 1), 2: _margin(l2_margin(x, y), x, y, 2)}
        for kind, alpha in lab.loop([(k, a) for k in ("squared", "exponential") for a in self.alphas], "flows"):
            if kind == "squared":
                beta, kernel = minimum_on(x, y, FlowPotential(alpha)).beta, least_l2(x, y)
                lab.log("squared", alpha=alpha, from_l2=float((beta - kernel).norm() / kernel.norm()))
                continue
            weights = diagonal_start(self.features, alpha)
            for goal in torch.logspace(0, math.log10(self.depth), self.moments).tolist():
                weights = follow_flow(
                    lambda w: torch.logsumexp(-y * (x @ diagonal_predictor(w)), 0),
                    weights,
                    until=1e6,
                    loss_below=-goal,
                    tolerance=1e-7,
                ).end
                beta = diagonal_predictor(weights)
                shares = {f"l{p}": _margin(beta, x, y, p) / best[p] for p in (1, 2)}
                lab.log("margins", alpha=alpha, progress=goal, **shares)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """The ends of the flows, and the order in which margins peak."""
        large, small = max(self.alphas), min(self.alphas)
        margins = results.table("margins", seed=seed)
        if len(margins.rows) < self.moments * len(self.alphas):
            return cut_short(self.claims)
        squared = results.table("squared", seed=seed)
        late = {alpha: margins.where(alpha=alpha).rows[-1] for alpha in self.alphas}
        path = margins.where(alpha=large).rows
        return {
            "S4c-X6-squared": squared.where(alpha=large).rows[0]["from_l2"],
            "S4c-X6-l1": min(row["l1"] for row in late.values()),
            "S4c-X6-first-l2": max(row["l2"] for row in path),
            "S4c-X6-then-l1": max(row["l2"] for row in path) - path[-1]["l2"],
            "S4c-X6-small": max(row["l2"] for row in path) - max(row["l2"] for row in margins.where(alpha=small).rows),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Both margins along the flow, by alpha."""
        figure, axes = panels(2)
        for place, p in zip(axes[0], (2, 1), strict=True):
            for alpha, color in zip(self.alphas, PALETTE, strict=False):
                curves = results.curves("margins", "progress", f"l{p}", alpha=alpha)
                place.plot(curves.x, curves.mean, color=color, label=f"{alpha:g}")
                place.fill_between(curves.x, curves.low, curves.high, color=color, alpha=0.2, linewidth=0)
            place.axhline(1, color=GRAY, linestyle=":")
            place.set_xscale("log")
            label(place, "− log loss", f"L{p} margin over the largest", f"L{p} margin")
        legend_beside(axes[0][1], "α")
        yield Picture(
            "margins",
            figure,
            "The flow of the exponential loss on a diagonal network from the scale α: the normalized margin of its "
            "predictor in the L2 and in the L1 sense, over the largest possible one. Mean over seeds, all seeds as a band.",
        )


def _margin(beta: Tensor, x: Tensor, y: Tensor, p: int) -> float:
    """`min_i y_i <beta, x_i> / |beta|_p`."""
    return float((y * (x @ beta)).min() / torch.linalg.vector_norm(beta, p))
