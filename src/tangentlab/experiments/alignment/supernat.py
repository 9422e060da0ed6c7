"""Figure 6.5: rescaling the features at every step keeps noise out, if its free constants are chosen for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Generator, Tensor

from tangentlab.alignment import supernat_descent
from tangentlab.errors import NumericsError
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.figures.style import PALETTE, band, label, legend_below, panels, step_axis

Normalization = Literal["fixed", "trace", "max", "none"]
RUNS: tuple[tuple[Normalization, str], ...] = (
    ("none", "gradient descent"),
    ("fixed", "SuperNat, one fixed rate"),
    ("trace", "SuperNat, trace kept"),
)
DIVERGED = 10.0
"""The error that a run counts for when it diverged, or has a larger one."""


def noisy_regression(
    examples: int, noise_features: int, variance: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Features `[phi, phi_noise]` (n, 1 + d) and targets `phi + P eps` (n,) with `P = phi_noise phi_noise^T`."""
    signal = torch.randn(examples, generator=generator, dtype=torch.float64)
    noise = torch.randn(examples, noise_features, generator=generator, dtype=torch.float64) / noise_features**0.5
    eps = variance**0.5 * torch.randn(examples, generator=generator, dtype=torch.float64)
    return torch.cat([signal[:, None], noise], 1), signal + noise @ (noise.t() @ eps)


@experiment
class SuperNat(Experiment):
    """Gradient descent against SuperNat on a regression with one true feature and ten of noise."""

    name = "supernat"
    title = "Feature rescaling that selects the signal"
    question = (
        "If capacity grows with the features that a step uses, one can rescale the features after every step so as to keep it "
        "least: modes in which there is nothing to learn become slow. On a linear regression whose targets carry noise along "
        "ten of eleven features, does this generalize better than gradient descent, and does it depend on the constants that "
        "the algorithm leaves open?"
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.4.1.2, figure 6.5"
    claims = claims_of("supernat")
    scales = {"smoke": {"steps": 1000, "repeats": 2, "sweep": (1.0, 2.0)}, "paper": {}}
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 1, "paper": 1}
    notes = {
        "desk": "as in the paper (d = 10, variance 0.1, n = 50); each seed is the mean over ten draws. The paper tells "
        "neither learning rate nor scale: here 0.3 n/λ₁ and 2 over the largest initial gradient. Test errors are against the "
        "clean target.",
    }

    examples: int = 50
    noise_features: int = 10
    variance: float = 0.1
    steps: int = 2000
    repeats: int = 10
    lr_scale: float = 0.3
    rate_scale: float = 2.0
    sweep: tuple[float, ...] = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)

    def cost(self) -> Cost:
        """One step per draw."""
        return Cost(self.repeats, 1.0, 400)

    def run(self, lab: Lab) -> None:
        """All algorithms on the same draws; then the fixed rate over a range."""
        errors: dict[Normalization, list[Tensor]] = {name: [] for name, _ in RUNS}
        swept: dict[float, list[float]] = {scale: [] for scale in self.sweep}
        for draw in lab.loop(range(self.repeats), "draws"):
            generator = lab.generator("data", draw)
            features, targets = noisy_regression(self.examples, self.noise_features, self.variance, generator)
            test, _ = noisy_regression(1000, self.noise_features, self.variance, generator)
            for name, _ in RUNS:
                errors[name].append(self._errors(features, targets, test, name, self.rate_scale))
            for scale in self.sweep:
                swept[scale].append(self._final(features, targets, test, scale))
        means = {name: torch.stack(found).mean(0) for name, found in errors.items()}
        for algorithm, mean in means.items():
            for step in sorted({round(1.08**k) - 1 for k in range(200)} | {self.steps}):
                if step <= self.steps:
                    lab.log("error", algorithm=algorithm, step=step, error=float(mean[step]))
        for scale, values in swept.items():
            lab.log("sweep", scale=scale, error=sum(values) / len(values))
        final, least = ({name: float(v) for name, v in row.items()} for row in _ends(means))
        lab.measure("6.5-better", final["fixed"] / final["none"])
        lab.measure("6.5-freeze", (final["fixed"] - least["fixed"]) / max(final["none"] - least["none"], 1e-12))
        lab.measure("6.5-constants", final["trace"] / final["none"])
        lab.measure("6.5-on-the-way", least["trace"] / least["none"])

    def _final(self, features: Tensor, targets: Tensor, test: Tensor, scale: float) -> float:
        try:
            return min(float(self._errors(features, targets, test, "fixed", scale)[-1]), DIVERGED)
        except NumericsError:
            return DIVERGED

    def _errors(self, features: Tensor, targets: Tensor, test: Tensor, name: Normalization, scale: float) -> Tensor:
        """Mean squared error against the clean target, (steps + 1,)."""
        path = supernat_descent(
            features, targets, self.steps, lr_scale=self.lr_scale, rate_scale=scale, normalization=name
        )
        return (path.predictions(test) - test[:, 0]).square().mean(1)

    def draw(self, results: Results) -> Iterator[Picture]:
        """Test errors along the iterations; sensitivity to the rate."""
        figure, ((left, right),) = panels(2)
        for (name, title), color in zip(RUNS, (PALETTE[5], PALETTE[0], PALETTE[1]), strict=True):
            band(left, results.curves("error", "step", "error", algorithm=name), title, color=color)
        left.set_yscale("log")
        step_axis(left, self.steps)
        label(left, "step", "test error", "figure 6.5")
        band(right, results.curves("sweep", "scale", "error"), "SuperNat", color=PALETTE[0], marker="o", markersize=3)
        none = results.curves("error", "step", "error", algorithm="none").mean[-1]
        right.axhline(none, color=PALETTE[5], linestyle="--", label="gradient descent")
        right.set_xscale("log")
        right.set_yscale("log")
        ticks = [tick for tick in (0.5, 1.0, 2.0, 4.0) if min(self.sweep) <= tick <= max(self.sweep)]
        right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        right.minorticks_off()
        label(right, "rate × largest initial gradient", "final test error", "the free constant")
        for axes in (left, right):
            legend_below(axes, 1)
        yield Picture(
            "figure-6.5",
            figure,
            "Left: error against the clean target on new data, for gradient descent and SuperNat with one fixed rate and with "
            "features renormalized at every step. Right: the final error of the fixed rate, over the rate; a run that "
            "diverges counts as 10. Mean over draws and seeds, all seeds as a band.",
        )


def _ends(means: dict[Normalization, Tensor]) -> tuple[dict[Normalization, Tensor], dict[Normalization, Tensor]]:
    return {name: mean[-1] for name, mean in means.items()}, {name: mean.min() for name, mean in means.items()}
