"""What noisy gradient descent cannot learn: bounds from the gradients that junk labels give.

Descent on the labels of a random function F and descent on fair coins, from the same start and with the same Gaussian noise,
end in distributions over weights that are close when the gradients are; and weights that have seen coins know nothing of
F. So

    P(sign f(X) = F(X)) <= baseline + E_F TV(weights after F, weights after junk)

with `baseline = 1/2 + E_X |E_F F(X)| / 2` the accuracy without data. Four bounds of the second term, with gamma the rate
and sigma the noise, gradients along the junk trajectory and their mean over trajectories:

* slide: `(1 / sigma) sum_t gamma sqrt(E |grad_t|^2) CP^(1/4)` (Abbe and Sandon 2019, the junk flow times CP^(1/4));
* halved: with `1 / (2 sigma)`, which is what their proof gives;
* sharp: `(1 / (2 sigma)) sum_t gamma sqrt(lambda_max E |g_t|^2)`, lambda_max of the label kernel and g the part of the
  gradient that changes sign with the label;
* chained: `(1 / (2 sigma)) sqrt(sum_t gamma^2 lambda_max E |g_t|^2)`: the divergences of the steps are added before the
  root is taken (the chain rule of KL, then Pinsker once), not after it. About sqrt(T) below the sharp one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from tangentlab.errors import InputError
from tangentlab.limits.cube import Inputs
from tangentlab.limits.functions import Family
from tangentlab.limits.population import (
    Loss,
    Population,
    gradient_norms,
    noisy_step,
    population_gradient,
    scalar_outputs,
    squared_loss,
)
from tangentlab.limits.predictability import CrossPredictability, cross_predictability, data_free_accuracy

FORMS = ("slide", "halved", "sharp", "chained")


@dataclass(frozen=True)
class JunkFlow:
    """Gradients along trajectories on junk labels.

    Attributes:
        gradients: `gamma_t sqrt(E |grad_t|^2)` for every trajectory and step, `(trajectories, T)`.
        signals: `gamma_t sqrt(E |g_t|^2)`, `(trajectories, T)`.
        noise: sigma.
        exact: whether the means are over P_X itself.
    """

    gradients: Tensor
    signals: Tensor
    noise: float
    exact: bool

    @property
    def total(self) -> float:
        """JF, the mean over trajectories of the sum over steps."""
        return float(self.gradients.sum(1).mean())

    def terms(self, predictability: CrossPredictability) -> dict[str, Tensor]:
        """The bounds of the distance, of every trajectory by itself, `(trajectories,)` each."""
        fourth, root = max(predictability.upper, 0.0) ** 0.25, math.sqrt(predictability.largest)
        flow = self.gradients.sum(1) / self.noise
        return {
            "slide": flow * fourth,
            "halved": flow * fourth / 2,
            "sharp": self.signals.sum(1) * root / (2 * self.noise),
            "chained": self.signals.square().sum(1).sqrt() * root / (2 * self.noise),
        }


@dataclass(frozen=True)
class GradientBound:
    """The largest accuracy that noisy gradient descent can have on a random function of a family.

    Attributes:
        baseline: accuracy of the best guess without data.
        terms: what each form of the bound adds, by name; means over trajectories.
        errors: standard errors of these means.
        flow: the junk flow behind them.
        predictability: of the family.
    """

    baseline: float
    terms: dict[str, float]
    errors: dict[str, float]
    flow: JunkFlow
    predictability: CrossPredictability

    def accuracy(self, form: str = "chained") -> float:
        """The predicted largest accuracy, at most 1."""
        return min(1.0, self.baseline + self.terms[_known(form)])

    def vacuous(self, form: str = "chained") -> bool:
        """Whether the bound says nothing."""
        return self.baseline + self.terms[_known(form)] >= 1

    def __str__(self) -> str:
        forms = (f"{form} {self.baseline + self.terms[form]:.4g}{' (vacuous)' * self.vacuous(form)}" for form in FORMS)
        return f"accuracy at most {', '.join(forms)}; without data {self.baseline:.4g}"


def junk_flow(
    model: nn.Module,
    population: Population,
    *,
    steps: int,
    rate: float | Sequence[float],
    noise: float,
    trajectories: int = 3,
    loss: Loss = squared_loss,
    generator: Generator | None = None,
) -> JunkFlow:
    """Noisy gradient descent on junk labels, from the model as it is, which is left so.

    Args:
        model: any network with one output.
        population: `Population.of` the inputs.
        steps: T.
        rate: gamma, one for all steps or one for each.
        noise: sigma, positive.
        trajectories: repetitions with noise of their own; the bound is a mean over them.
        loss: elementwise.
        generator: source of the noise.

    Cost: two passes over the population for every step.
    """
    rates = [float(rate)] * steps if isinstance(rate, int | float) else [float(r) for r in rate]
    if steps < 1 or len(rates) != steps or not noise > 0 or trajectories < 1:
        raise InputError(
            "A junk flow has at least one step and one trajectory, a rate for each step and positive noise."
        )
    scalar_outputs(model, population.inputs[:2])
    gradients = torch.zeros(trajectories, steps, dtype=torch.float64)
    signals = torch.zeros_like(gradients)
    for k in range(trajectories):
        own = deepcopy(model)
        for t, gamma in enumerate(rates):
            norm, signal = gradient_norms(own, population, loss)
            gradients[k, t], signals[k, t] = gamma * norm, gamma * signal
            noisy_step(own, population_gradient(own, population, None, loss), gamma, noise, generator)
    return JunkFlow(gradients, signals, noise, population.exact)


def gradient_bound(
    model: nn.Module,
    family: Family,
    *,
    steps: int,
    rate: float | Sequence[float],
    noise: float,
    inputs: Inputs | None = None,
    draws: int | None = None,
    trajectories: int = 3,
    loss: Loss = squared_loss,
    predictability: CrossPredictability | None = None,
    generator: Generator | None = None,
) -> GradientBound:
    """Bounds of the accuracy of noisy population gradient descent on a random function of `family`, in four forms.

    Args:
        model: the network at its start, any; it is left as it is.
        family: P_F.
        inputs: P_X, uniform by default.
        draws: means over so many samples instead of all 2^n inputs.
        predictability: CP where it is known already, or estimated: its upper end enters.
        steps, rate, noise, trajectories, loss, generator: as in `junk_flow`.
    """
    population = Population.of(family.n, inputs, draws=draws, generator=generator)
    options = {"steps": steps, "rate": rate, "noise": noise, "trajectories": trajectories, "loss": loss}
    flow = junk_flow(model, population, generator=generator, **options)  # type: ignore[arg-type]
    known = cross_predictability(family, inputs) if predictability is None else predictability
    terms = flow.terms(known)
    return GradientBound(
        data_free_accuracy(family, inputs, generator=generator),
        {form: _averaged(form, values) for form, values in terms.items()},
        {form: float(v.std() / len(v) ** 0.5) if len(v) > 1 else math.nan for form, v in terms.items()},
        flow,
        known,
    )


def _averaged(form: str, values: Tensor) -> float:
    """Over trajectories: distances are averaged, divergences before their root."""
    return float(values.square().mean().sqrt() if form == "chained" else values.mean())


def _known(form: str) -> str:
    if form not in FORMS:
        raise InputError(f"The forms of the bound are {', '.join(FORMS)}, not {form!r}.")
    return form
