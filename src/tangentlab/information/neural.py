"""Estimates by critics: a fit on the training part, two refits on its halves, and everything reported from the test part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.snapshot import same_random_state
from tangentlab.errors import InputError
from tangentlab.information.all_pairs import PairTable, pair_table
from tangentlab.information.checks import about_data, about_fit, pareto_k
from tangentlab.information.critics import Convolutional, Separable
from tangentlab.information.fitting import Fit, FitRecipe, fit_critic
from tangentlab.information.intervals import TYPICAL, interval_of, room, standard_error
from tangentlab.information.objectives import Objective
from tangentlab.information.result import Curve, Diagnostics, MutualInformation
from tangentlab.information.samples import PairedSample, SampleSplit
from tangentlab.information.scores import joint_scores

MakeCritic = Callable[[], nn.Module]
LEAST_EXAMPLES = 40
SOME_PAIRS = 1_000_000
"""Pairs of test examples that a critic without `factors` is asked for."""


class Averaged(nn.Module):
    """The weighted mean of critics: nearer to the log-density ratio than they are one by one."""

    def __init__(self, critics: list[nn.Module], weights: list[float]) -> None:
        super().__init__()
        self.critics, self.weights = nn.ModuleList(critics), weights
        if all(hasattr(critic, "factors") for critic in critics):
            self.factors = self._factors

    def _factors(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all critics side by side."""
        found = [critic.factors(x, z) for critic in self.critics]  # type: ignore[operator]
        left = [weight * pair[0] for weight, pair in zip(self.weights, found, strict=True)]
        return torch.cat(left, 1), torch.cat([pair[1] for pair in found], 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Scores of pairs, `(n,)`."""
        scores = [joint_scores(critic, x, z) for critic in self.critics]
        return torch.stack([weight * one for weight, one in zip(self.weights, scores, strict=True)]).sum(0)


def default_critic(sample: PairedSample) -> nn.Module:
    """A separable critic; for square images against vectors a convolutional one with dynamic bias."""
    x, z = sample.x, sample.z
    if x.ndim == 4 and z.ndim == 2 and x.shape[2] == x.shape[3]:
        return Convolutional(x.shape[1], x.shape[2], z.shape[1])
    return Separable(x[0].numel(), z[0].numel())


def by_critic(
    sample: PairedSample,
    split: SampleSplit,
    make_objective: Callable[[], Objective],
    make_critic: MakeCritic,
    recipe: FitRecipe,
    *,
    name: str,
    halves: bool,
    permutations: int | None,
    level: float,
    most_pairs: int | None,
) -> MutualInformation:
    """Fit, refit and read; see `mutual_information`."""
    if (
        min(len(split.train), len(split.validation), len(split.test)) < LEAST_EXAMPLES // 10
        or len(sample) < LEAST_EXAMPLES
    ):
        raise InputError(
            f"A critic needs at least {LEAST_EXAMPLES} examples to be fitted, stopped and read: there are {len(sample)}."
        )
    objective = make_objective()
    fit = _fitted(make_critic, objective, split, recipe, 0)
    critics, weights = [fit.critic], [1.0]
    if halves:
        half = replace(recipe, steps=max(1, recipe.steps // 2))
        critics += [_fitted(make_critic, make_objective(), split.half(part), half, part + 1).critic for part in (0, 1)]
        weights = [0.5, 0.25, 0.25]
    test = split.test

    def read(critic: nn.Module) -> PairTable:
        most = most_pairs or (None if hasattr(critic, "factors") else SOME_PAIRS)
        return pair_table(critic, test.x, test.z, objective, most)

    tables = [read(critic) for critic in critics]
    together = Averaged(critics, weights) if halves else fit.critic
    table = read(together) if halves else tables[0]
    value, influence = table.value(objective.reads), table.influence(objective.reads)
    gain = _gain(tables, objective.reads)
    diagnostics = _diagnostics(table, tables, fit, split, objective, recipe)
    return MutualInformation(
        value=value,
        interval=interval_of(value, influence, level, is_bound=objective.is_bound, **gain),
        level=level,
        error=standard_error(influence),
        pointwise=table.pointwise(objective.reads),
        influence=influence,
        estimator=name,
        extrapolated=max(0.0, gain["full"] + room(gain["step"], TYPICAL)) if gain else math.nan,
        p_value=permutation_p(together, test, permutations, recipe.seed),
        diagnostics=diagnostics,
        warnings=(*about_data(sample), *about_fit(value, diagnostics, objective.reads)),
        critic=together,
        curve=Curve(fit.steps, fit.batches, fit.validation, fit.best),
        examples=len(sample),
    )


def _fitted(make: MakeCritic, objective: Objective, split: SampleSplit, recipe: FitRecipe, number: int) -> Fit:
    recipe = replace(recipe, seed=recipe.seed + 7919 * number)
    with same_random_state():
        torch.manual_seed(recipe.seed)
        critic = make()
    return fit_critic(critic, objective, split, recipe)


def _gain(tables: list[PairTable], reads: str) -> dict[str, float]:
    """Value of the full fit, what it gained over its halves, and the error of that from their spread and the test examples."""
    if len(tables) < 3:
        return {}
    values = [table.value(reads) for table in tables]
    full, *parts = (table.influence(reads) for table in tables)
    paired = standard_error(full - sum(parts) / 2)
    spread = abs(values[1] - values[2]) / math.sqrt(2)
    step = values[0] - (values[1] + values[2]) / 2
    return {"full": values[0], "step": step, "step_error": math.hypot(paired, math.sqrt(1.5) * spread)}


def _diagnostics(
    table: PairTable, tables: list[PairTable], fit: Fit, split: SampleSplit, objective: Objective, recipe: FitRecipe
) -> Diagnostics:
    most = None if hasattr(fit.critic, "factors") else SOME_PAIRS // 10
    train = pair_table(fit.critic, split.train.x[:5000], split.train.z[:5000], objective, most).value(objective.reads)
    values = [one.value(objective.reads) for one in tables]
    return Diagnostics(
        pairs=table.pairs,
        effective_size=table.effective_size,
        pareto_k=pareto_k(table.largest, table.pairs),
        log_partition=table.log_partition,
        partition_error=table.error_of_partition(),
        train_minus_test=math.nan if split.train.sampler is not None else train - values[0],
        log_batch=math.log(recipe.batch),
        log_examples=math.log(len(table)),
        spread=abs(values[1] - values[2]) / math.sqrt(2) if len(values) > 2 else math.nan,
        step_from_half=values[0] - (values[1] + values[2]) / 2 if len(values) > 2 else math.nan,
    )


@torch.no_grad()
def permutation_p(critic: nn.Module, test: PairedSample, permutations: int | None, seed: int) -> float:
    """`(1 + #{permuted mean scores >= the mean score}) / (1 + permutations)`, the fitted critic kept.

    The test examples took no part in the fit, so that under independence every permutation of their z is as likely as the
    given one, and the p-value is exact. The log-partition is nearly the same for all and left out.
    """
    count = (999 if hasattr(critic, "factors") else 99) if permutations is None else permutations
    if count < 1:
        return math.nan
    source = torch.Generator().manual_seed(seed + 2)
    n, above = len(test), 0
    factors: Any = getattr(critic, "factors", None)
    if factors is not None:
        left, right = (part.double() for part in factors(test.x, test.z))

        def mean_score(order: Tensor) -> float:
            return (left * right[order]).sum().item() / n
    else:

        def mean_score(order: Tensor) -> float:
            parts = zip(test.x.split(4096), test.z[order].split(4096), strict=True)
            return sum(joint_scores(critic, *part).double().sum().item() for part in parts) / n

    own = mean_score(torch.arange(n))
    slack = 1e-9 * max(1.0, abs(own))
    for _ in range(count):
        above += mean_score(torch.randperm(n, generator=source)) >= own - slack
    return (1 + above) / (1 + count)
