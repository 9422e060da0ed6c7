"""Fitting a critic: minibatches of the training part, judged on the validation part; the best critic there is kept."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tangentlab.engine.progress_bar import track
from tangentlab.engine.snapshot import same_random_state
from tangentlab.errors import InputError, NumericsError
from tangentlab.information.all_pairs import pair_table
from tangentlab.information.objectives import Objective
from tangentlab.information.samples import PairedSample, SampleSplit
from tangentlab.information.scores import Pairs, score_pairs, shifted_scores


@dataclass(frozen=True)
class FitRecipe:
    """How a critic is fitted.

    Attributes:
        steps: updates, by Adam with a learning rate that falls along a cosine to 0.
        batch: examples per update.
        rate: the first learning rate.
        decay: decoupled weight decay, times the learning rate.
        pairs: "all" off-diagonal pairs of a batch, or "deranged", one stranger per example.
        smoothing: the critic that is judged and kept has moving averages of the weights, with this decay per update.
        looks: how often the validation part is looked at.
        patience: the fit stops after this share of its looks without a better one.
        seed: of the start, the batches and the split.
        progress: as in `track`.
    """

    steps: int = 2000
    batch: int = 256
    rate: float = 1e-3
    decay: float = 0.0
    pairs: Pairs = "all"
    smoothing: float = 0.98
    looks: int = 40
    patience: float = 0.5
    seed: int = 0
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 2 or self.rate <= 0 or self.looks < 1 or self.decay < 0:
            raise InputError("A fit needs at least one step and one look, a batch of two or more, and a positive rate.")


@dataclass
class Fit:
    """A fitted critic, the value on a batch (`batches`) and on the validation part (`validation`) at every look."""

    critic: nn.Module
    steps: list[int] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best: int = 0
    """The step whose critic was kept."""


def fit_critic(critic: nn.Module, objective: Objective, split: SampleSplit, recipe: FitRecipe) -> Fit:
    """Maximize the objective over the critic, in place, and leave it at the step that was best on the validation part.

    The validation part is judged by the value that will be reported, over all of its pairs, or by the objective where that
    value is no bound. The caller's random state is left alone.
    """
    fit, source = Fit(critic), torch.Generator().manual_seed(recipe.seed + 1)
    optimizer = torch.optim.AdamW(critic.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    smooth = AveragedModel(critic, multi_avg_fn=get_ema_multi_avg_fn(recipe.smoothing))
    every = max(1, recipe.steps // recipe.looks)
    kept, high, since = None, -torch.inf, 0
    with same_random_state():
        torch.manual_seed(recipe.seed)
        for step in track(range(recipe.steps + 1), "fitting a critic", recipe.steps + 1, recipe.progress):
            if step % every == 0 or step == recipe.steps:
                value = _validated(smooth.module, objective, split.validation)
                fit.steps.append(step)
                fit.validation.append(value)
                if value > high:
                    kept, high, fit.best, since = copy.deepcopy(smooth.module.state_dict()), value, step, 0
                since += 1
                if since > recipe.patience * recipe.looks + 1:
                    break
            if step == recipe.steps:
                break
            value = _update(critic, objective, optimizer, _batch(split.train, recipe.batch, source), recipe, source)
            schedule.step()
            smooth.update_parameters(critic)
            if step % every == 0:
                fit.batches.append(value)
    if kept is None:
        raise NumericsError("The critic gave no finite value on validation data: lower the learning rate.")
    critic.load_state_dict(kept)
    critic.eval()
    return fit


def _update(
    critic: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, Tensor],
    recipe: FitRecipe,
    source: Generator,
) -> float:
    critic.train()
    value = objective(score_pairs(critic, *batch, recipe.pairs, source))
    if not value.isfinite():
        raise NumericsError("The objective became infinite or NaN: lower the learning rate, or use 'mine' or 'fdime'.")
    optimizer.zero_grad()
    (-value).backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
    optimizer.step()
    return value.item()


def _validated(critic: nn.Module, objective: Objective, part: PairedSample) -> float:
    """The bound that will be reported, or, where that is none and could grow without end, what is maximized."""
    critic.eval()
    x, z = part.x[:1000], part.z[:1000]
    if objective.is_bound:
        value = pair_table(critic, x, z, objective, None if hasattr(critic, "factors") else 20_000).value(
            objective.reads
        )
    else:
        with torch.no_grad():
            value = objective(
                score_pairs(critic, x, z) if hasattr(critic, "factors") else shifted_scores(critic, x, z)
            ).item()
    return value if value == value else -torch.inf


def _batch(part: PairedSample, size: int, source: Generator) -> tuple[Tensor, Tensor]:
    """New examples where there is a sampler, else some of the training part, without repetition."""
    if part.sampler is not None:
        return part.sampler(size, source)
    n = len(part)
    index = (
        torch.randperm(n, generator=source)[: min(size, n)]
        if n < 20 * size
        else torch.randint(n, (size,), generator=source)
    )
    return part.x[index], part.z[index]
