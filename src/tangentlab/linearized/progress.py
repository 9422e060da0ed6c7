"""Comparing trainings at equal progress instead of equal time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from tangentlab.engine.feeding import call_model
from tangentlab.engine.network import evaluated, main_tensor
from tangentlab.engine.snapshot import evaluation_mode, untouched
from tangentlab.errors import InputError

Array = NDArray[np.float64]


def first_crossing(progress: ArrayLike, threshold: float, *, falling: bool = True) -> int | None:
    """Index of the first record at which the progress (a loss when falling, else an accuracy) has come to the threshold.

    None when it never does.
    """
    values = np.asarray(progress, dtype=float)
    reached = np.flatnonzero(values <= threshold if falling else values >= threshold)
    return int(reached[0]) if len(reached) else None


def at_progress(progress: ArrayLike, values: ArrayLike, thresholds: ArrayLike, *, falling: bool = True) -> Array:
    """What a recorded quantity was when the progress first came to each threshold, linear between records.

    Args:
        progress: (T,) the progress variable at every record; it need not be monotone, only first crossings count.
        values: (T, ...) the quantity at the same records.
        thresholds: (K,).
        falling: whether progress means going down.

    Returns:
        (K, ...); NaN where a threshold was never reached or lies before the first record.
    """
    along = np.asarray(progress, dtype=float)
    table = np.asarray(values, dtype=float)
    if along.ndim != 1 or len(along) != len(table):
        raise InputError(f"The progress {along.shape} and values {table.shape} must have as many records.")
    found = np.full((len(np.atleast_1d(thresholds)), *table.shape[1:]), np.nan)
    for place, threshold in enumerate(np.atleast_1d(np.asarray(thresholds, dtype=float))):
        index = first_crossing(along, threshold, falling=falling)
        if index is None or (index == 0 and along[0] != threshold):
            continue
        if index == 0:
            found[place] = table[0]
            continue
        weight = (threshold - along[index - 1]) / (along[index] - along[index - 1])
        found[place] = (1 - weight) * table[index - 1] + weight * table[index]
    return found


def common_thresholds(*progress: ArrayLike, count: int = 20, falling: bool = True) -> Array:
    """Evenly spaced thresholds, in the order of progress, between those that all trainings pass."""
    runs = [np.asarray(run, dtype=float) for run in progress]
    if not runs or not all(len(run) and np.isfinite(run).all() for run in runs):
        raise InputError("Every training needs records of its progress, all of them finite numbers.")
    start = min(run[0] for run in runs) if falling else max(run[0] for run in runs)
    end = max(run.min() for run in runs) if falling else min(run.max() for run in runs)
    if (start <= end) if falling else (start >= end):
        raise InputError(f"The trainings have no progress in common: from {start:.4g} to {end:.4g}.")
    return np.linspace(start, end, count)


@torch.no_grad()
def delta_loss(
    nonlinear: nn.Module | Callable[[Any], Tensor],
    linear: nn.Module | Callable[[Any], Tensor],
    inputs: Any,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """loss of the one network minus loss of the other, per example, (n,): positive where the linear one is better.

    On a grid of inputs (`data.grid`) this is a map. `loss(outputs, targets)` gives one value per example. Networks are looked
    at in eval mode and left as they are; inputs are a tensor or a dict batch.
    """
    pair = [loss(_outputs(model, inputs), targets) for model in (nonlinear, linear)]
    if any(part.shape[:1] != targets.shape[:1] or part.ndim != 1 for part in pair):
        raise InputError(
            "The argument loss must give one value per example: use reduction='none' and sum over outputs."
        )
    return pair[0] - pair[1]


def _outputs(model: nn.Module | Callable[[Any], Tensor], inputs: Any) -> Tensor:
    if not isinstance(model, nn.Module):
        return evaluated(lambda: model(inputs))
    with evaluation_mode(model), untouched(model):
        return evaluated(lambda: main_tensor(call_model(model, inputs)))


def running_best(values: Sequence[float] | ArrayLike, *, falling: bool = True) -> Array:
    """The best value so far at every record: a monotone progress variable."""
    best = np.minimum if falling else np.maximum
    return best.accumulate(np.asarray(values, dtype=float))
