"""`train`: one model, one loss, one optimizer; deterministic, checkpointed, with callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tangentlab.bench.callbacks import Callback
from tangentlab.bench.course import CHECKPOINT_SECONDS, Stateful, UpdateCourse, repeat
from tangentlab.bench.lab import Lab
from tangentlab.bench.minibatches import Batch, Minibatches

Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(kw_only=True)
class Training(UpdateCourse):
    """Where a training is; `loss` is that of the last minibatch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


def train(
    model: nn.Module,
    batches: Minibatches,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    lab: Lab | None = None,
    name: str = "train",
    callbacks: Sequence[Callback] = (),
    parts: Mapping[str, Stateful] | None = None,
    after_update: Callable[[Training], None] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Training:
    """Minimize `loss(model, batch)` for `steps` updates, or until a callback stops it or it diverges.

    `name` tells the trainings of one experiment apart. `parts` are further objects with a state (a learning-rate
    scheduler, a preconditioner); `after_update` runs after every update (schedulers). The global random generator (dropout)
    is seeded from the batches' seed, so that it does not depend on what ran before.
    """
    training = Training(model=model, optimizer=optimizer, batches=batches, steps=lab.capped(steps) if lab else steps)

    def update(state: Training) -> None:
        """One step of the optimizer; a loss that is not finite leaves the weights as they were."""
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batches.at(state.step))
        state.loss = value.item()
        state.diverged = not math.isfinite(state.loss)
        if state.diverged:
            return
        value.backward()
        optimizer.step()
        if after_update is not None:
            after_update(state)

    return repeat(
        training,
        update,
        {"model": model, "optimizer": optimizer, **{f"part {key}": part for key, part in (parts or {}).items()}},
        lab=lab,
        name=name,
        kind="train",
        callbacks=callbacks,
        live=lambda state: {"loss": state.loss},
        checkpoint_seconds=checkpoint_seconds,
    )
