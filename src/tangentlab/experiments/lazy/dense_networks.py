"""Figure C.9: dense networks of two layers on the three data sets of the quadratic model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.lazy._quadratic_figures import (
    REGIMES,
    Array,
    equal_progress,
    gap,
    over_time,
)
from tangentlab.linearized import AlphaModel, at_progress
from tangentlab.linearized.quadratic import Regime
from tangentlab.linearized.quadratic_examples import QuadraticExample, noisy_labels, reversed_order, spurious_feature

ALPHAS: dict[Regime, float] = {"full": 0.1, "linearized": 10.0}
UPDATES: dict[str, dict[Regime, int]] = {
    "order-figure": {"full": 150, "linearized": 4_000},
    "order": {"full": 600, "linearized": 40_000},
    "noise-figure": {"full": 400, "linearized": 8_000},
    "noise": {"full": 500, "linearized": 30_000},
    "spurious-figure": {"full": 400, "linearized": 3_000},
    "spurious": {"full": 1_500, "linearized": 15_000},
}
"""Where nearly all is learnt; the slowest mode takes a time of 1 / eigenvalue."""


class DensePairs(nn.Module):
    """R bias-free networks `x -> w2^T W1 x` side by side, `(n, d)` to `(R, n)`; W1 as `(R, d, width)`."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs; the two layers are multiplied first, which costs n times less."""
        return (x @ (self.first @ self.second)).squeeze(-1)

    @torch.no_grad()
    def kernels(self, x: Tensor) -> Tensor:
        """Tangent kernels `X (W1 W1^T + |w2|^2 I) X^T` of all networks, `(R, n, n)`."""
        hidden = x @ self.first
        return hidden @ hidden.mT + self.second.square().sum((1, 2))[:, None, None] * (x @ x.T)


@experiment
class DenseRegimes(Experiment):
    """Losses of examples and groups, for alpha = 0.1 and 10, on the data sets of the quadratic model."""

    name = "dense-regimes"
    title = "What comes first, lazily and not: dense networks of two layers"
    question = (
        "The quadratic model that can be solved has one weight per mode of the data. Do networks whose two weight matrices "
        "are dense learn in the same order?\n\nThe same three data sets: one mode per example, wrong labels, a spurious "
        "feature. Linear networks of two layers are trained by gradient descent with alpha = 0.1, which learns features, and "
        "alpha = 10, which nearly does not, from the same random starts."
    )
    chapter = Chapter.LAZY
    place = "C.7, figure C.9"
    claims = claims_of("dense-regimes")
    scales = {"smoke": {"runs": 3, "share": 0.01}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 4, "paper": 4}
    notes = {
        "desk": "20 networks in each of 3 seeds; learning rate 0.001 / alpha^2 on the mean squared error, PyTorch's initial "
        "weights halved, as wide as the inputs. Claims take the worse of two variants: with f0 in the output and, as in the "
        "authors' code and in the figure, without it. The data of the first example follow the text, y_i = mu_{n-i+1} / "
        "sqrt(mu_i); the authors' code leaves the order of the mu as it is, so that y_i = sqrt(mu_i)."
    }

    runs: int = 20
    rate: float = 1e-3
    scale_of_start: float = 0.5
    offsets: tuple[bool, ...] = (False, True)
    records: int = 200
    share: float = 1.0

    def examples(self) -> dict[str, QuadraticExample]:
        """The data sets of figure 5.4; width follows the number of inputs, 200 for two of the figure's."""
        return {
            "order-figure": reversed_order((9, 8, 7, 6, 5)),
            "order": reversed_order((5, 3, 2, 1, 0.5)),
            "noise-figure": noisy_labels(20, 5, 5.0, 200),
            "noise": noisy_labels(20, 3, 2.0),
            "spurious-figure": spurious_feature(20, 5, 1.0, 10.0, 200),
            "spurious": spurious_feature(20, 4, 0.3, 0.5),
        }

    def updates(self, name: str, regime: Regime) -> int:
        """Steps of gradient descent of one training."""
        return max(2, round(self.share * UPDATES[name][regime]))

    def cost(self) -> Cost:
        """One step per update of all runs."""
        steps = sum(self.updates(name, regime) for name in UPDATES for regime in REGIMES)
        return Cost(len(self.offsets) * steps, 0.0004, 400)

    def run(self, lab: Lab) -> None:
        """Every data set in both regimes and both variants, then the claims."""
        measured: dict[str, list[float]] = {claim.id: [] for claim in self.claims}
        for name, example in self.examples().items():
            start = self._start(lab, name, example)
            for offset in self.offsets:
                curves: dict[Regime, dict[str, Array]] = {}
                moved: dict[Regime, float] = {}
                for regime in REGIMES:
                    what = f"{name}, {regime}" + (" + f0" if offset else "")
                    found = lab.stage(what, partial(self._train, lab, what, name, example, start, regime, offset))
                    curves[regime] = self._saved(lab, f"{'f0-' if offset else ''}{name}-{regime}", example, found)
                    lab.log("kernel", data=name, regime=regime, offset=offset, alignment=found["alignment"])
                    moved[regime] = 1 - found["alignment"]
                measured["C.9-lazy"].append(moved["linearized"] / moved["full"])
                if name.startswith("order"):
                    measured["C.9-order"].append(_order(curves, list(example.groups)))
                else:
                    measured[f"C.9-{name}"].append(gap(name, curves))
        for claim in self.claims:
            values = measured[claim.id]
            if np.isnan(values).any():
                lab.not_tested(claim.id, "a training never came to the progress at which it is compared")
            else:
                lab.measure(claim.id, max(values) if claim.relation in ("<=", "<") else min(values))

    def _start(self, lab: Lab, name: str, example: QuadraticExample) -> DensePairs:
        """Networks at their start, without the weights of inputs that are 0 in all examples: these never matter."""
        width = example.inputs.shape[1]
        used = example.inputs.any(0)
        first, second = [], []
        for run in range(self.runs):
            with lab.seeded("model", name, run):
                first.append(nn.Linear(width, width, bias=False).weight.detach().double().T[used])
                second.append(nn.Linear(width, 1, bias=False).weight.detach().double().T)
        return DensePairs(self.scale_of_start * torch.stack(first), self.scale_of_start * torch.stack(second))

    def _train(
        self,
        lab: Lab,
        what: str,
        name: str,
        example: QuadraticExample,
        start: DensePairs,
        regime: Regime,
        offset: bool,
    ) -> dict[str, Any]:
        """Steps `(T,)`, mean losses `1/2 (f - y)^2` of the runs `(T, n)`, alignment of first and last kernel."""
        inputs, targets = example.inputs[:, example.inputs.any(0)], example.targets
        knob = AlphaModel(start, ALPHAS[regime], offset=offset)
        initial = start(inputs).detach()
        optimizer = torch.optim.SGD(knob.model.parameters(), lr=knob.learning_rate(self.rate))
        updates = lab.capped(self.updates(name, regime))
        recorded = {*np.linspace(0, updates, self.records).round().astype(int).tolist()}
        steps, losses = [], []

        def errors_at(step: int) -> Tensor:
            errors = (knob(inputs, initial=initial) - targets).square()
            if step in recorded:
                steps.append(step)
                losses.append(errors.detach().mean(0) / 2)
            return errors

        for step in lab.loop(range(updates), what):
            optimizer.zero_grad()
            errors_at(step).mean(1).sum().backward()
            optimizer.step()
        errors_at(updates)
        trained = knob.model
        assert isinstance(trained, DensePairs)
        before, after = (net.kernels(inputs).flatten(1) for net in (start, trained))
        alignment = nn.functional.cosine_similarity(before, after, dim=1).mean()
        return {"steps": torch.tensor(steps), "losses": torch.stack(losses), "alignment": float(alignment)}

    @staticmethod
    def _saved(lab: Lab, name: str, example: QuadraticExample, found: dict[str, Any]) -> dict[str, Array]:
        """Curves of all groups by name, with "time" and "total", kept for the figure."""
        curves = {"time": found["steps"].double().numpy(), "total": found["losses"].mean(1).numpy()}
        groups = {group: value.numpy() for group, value in example.group_losses(found["losses"]).items()}
        lab.save_array(name, np.stack([curves["time"], *groups.values()]))
        return curves | groups

    def draw(self, results: Results) -> Iterator[Picture]:
        """The panels of figure 5.4 for dense networks, and the lower ones at equal progress."""
        yield Picture(
            "figure-c.9",
            over_time(results, self.examples(), "iteration / last iteration"),
            "Loss of examples (left) and of groups of examples along the training of dense networks: alpha = 0.1 (solid) and "
            "alpha = 10 (dashed), each on its own clock, output without f0. Mean over runs; seeds as a band. Top: the numbers "
            "of the published figure. Bottom: mu = 5, 3, 2, 1, 0.5; 3 wrong labels of 20 with eta = 2; a minority of 4 of 20 "
            "with lambda = 0.3.",
        )
        yield Picture(
            "equal-progress",
            equal_progress(results),
            "The lower panels of the figure at equal progress: full is alpha = 0.1, linearized is alpha = 10.",
        )


def _order(curves: dict[Regime, dict[str, Array]], groups: list[str]) -> float:
    """Rank correlation between regimes of the times at which the losses of examples have come to 1/4 of the start.

    The output is then half-way. NaN where an example never comes there.
    """
    times = []
    for regime in REGIMES:
        lines = curves[regime]
        times.append([float(at_progress(lines[g], lines["time"], [lines[g][0] / 4])[0]) for g in groups])
    return float("nan") if np.isnan(times).any() else rank_correlation(*times)
