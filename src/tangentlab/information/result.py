"""What an estimate comes with: its interval, its pointwise values, what speaks against it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(frozen=True)
class Diagnostics:
    """Why an estimate may be wrong. NaN where a quantity does not exist for the estimator.

    Attributes:
        pairs: how many pairs of strangers were scored on test data.
        effective_size: how many of them the average of e^T rests on, `(sum e^T)^2 / sum e^(2T)`.
        pareto_k: shape of the tail of e^T; from .7 on, an average of it has no error that could be trusted.
        log_partition: `log E_Q e^T` on test data; 0 for a critic that is a log-density ratio.
        partition_error: its standard error.
        train_minus_test: the value on the training part minus that on the test part.
        log_batch: ceiling of InfoNCE in training, the logarithm of the batch.
        log_examples: the logarithm of the number of test examples: no lower bound that holds with high probability for every
            distribution is much larger (McAllester and Stratos 2020).
        spread: standard deviation of the value over the two refits on halves of the training part.
        step_from_half: the value of the fit minus the mean of those on halves: what twice the data brought.
    """

    pairs: int = 0
    effective_size: float = math.nan
    pareto_k: float = math.nan
    log_partition: float = math.nan
    partition_error: float = math.nan
    train_minus_test: float = math.nan
    log_batch: float = math.nan
    log_examples: float = math.nan
    spread: float = math.nan
    step_from_half: float = math.nan


@dataclass(frozen=True)
class Curve:
    """The fit: steps, the value on a training batch and on validation data, and the step whose critic was kept."""

    steps: list[int]
    batches: list[float]
    validation: list[float]
    best: int


@dataclass(frozen=True)
class MutualInformation:
    """An estimate of mutual information in nats.

    Attributes:
        value: the estimate, on test examples.
        interval: (low, high), where the truth is expected; high is infinite where only a lower bound is known.
        level: of the interval.
        error: standard error of the value that comes from the test examples alone.
        pointwise: (n,) estimated log-density ratios of the test examples, with the value as their mean.
        influence: (n,) influence of every test example, of mean 0.
        extrapolated: the value continued to infinitely much data, from refits on halves; NaN without them.
        p_value: of independence, by permutation of the test examples; NaN when none were made.
        estimator: its name.
        diagnostics: see there.
        warnings: in words; empty when nothing was found that speaks against the estimate.
        critic: the fitted critic, on mapped margins; None for other estimators.
        curve: of the fit; None for other estimators.
        examples: how many examples there were altogether.
    """

    value: float
    interval: tuple[float, float]
    level: float
    error: float
    pointwise: Tensor
    influence: Tensor
    estimator: str
    extrapolated: float = math.nan
    p_value: float = math.nan
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    warnings: tuple[str, ...] = ()
    critic: nn.Module | None = None
    curve: Curve | None = None
    examples: int = 0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        low, high = self.interval
        text = f"{self.estimator}: {self.value:.3f} nats, {self.level:.0%} interval [{low:.3f}, {high:.3f}]"
        text += "" if math.isnan(self.p_value) else f", p = {self.p_value:.3g} of independence"
        return "\n".join([text, *(f"  ! {warning}" for warning in self.warnings)])
