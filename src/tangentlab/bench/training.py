"""The training loop that all experiments share: deterministic, checkpointed, with callbacks.

A training that was interrupted at any moment and continued from its last checkpoint goes on bit for bit as if nothing
had happened: weights, optimizer, random state, callbacks, clock and log are all part of the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tangentlab.bench.callbacks import Callback
from tangentlab.bench.lab import Lab
from tangentlab.bench.minibatches import Batch, Minibatches
from tangentlab.bench.seeds import derive

CHECKPOINT_SECONDS = 20.0
Loss = Callable[[nn.Module, Batch], Tensor]


class Stateful(Protocol):
    """Anything whose state can be kept: schedulers, preconditioners, recorders."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take the state up."""


@dataclass
class Training:
    """Where a training is: `step` updates are done out of `steps`.

    `loss` is that of the last minibatch (NaN before the first one), `seconds` the time spent in updates alone
    (callbacks and checkpoints are not on this `clock`), `diverged` whether a loss was not finite.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Minibatches
    steps: int
    step: int = 0
    loss: float = math.nan
    seconds: float = 0.0
    diverged: bool = False
    stopped: bool = False

    @property
    def epoch(self) -> float:
        """Epochs done, as a fraction."""
        return self.step / self.batches.per_epoch

    def stop(self) -> None:
        """End the training after this step; callbacks may call it (loss small enough)."""
        self.stopped = True


def clock() -> float:
    """Seconds for measuring updates: processor time of this thread where torch has one thread, else wall-clock time.

    On an idle machine both are the same; the first does not count what other programs take, nor a pause of the run.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


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
    training = Training(model, optimizer, batches, lab.capped(steps) if lab else steps)
    keeper = _Keeper(training, list(callbacks), dict(parts or {}), lab, f"train {name}", checkpoint_seconds)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(batches.seed, "train"))
        if keeper.restore():
            return training
        while True:
            if lab is not None:
                keeper.save_if_due()
                if training.step:
                    lab.live(loss=training.loss)
                lab.progress(name, training.step, training.steps)
            for callback in callbacks:
                callback(training)
            if training.step >= training.steps or training.stopped:
                break
            _update(training, loss, after_update)
            if training.diverged:
                break
            if lab is not None:
                lab.steps += 1
        keeper.save(finished=True)
    return training


def _update(training: Training, loss: Loss, after: Callable[[Training], None] | None) -> None:
    """One step of the optimizer; a loss that is not finite leaves the weights as they were."""
    started = clock()
    training.optimizer.zero_grad(set_to_none=True)
    value = loss(training.model, training.batches.at(training.step))
    training.loss = value.item()
    if math.isfinite(training.loss):
        value.backward()
        training.optimizer.step()
        if after is not None:
            after(training)
        training.step += 1
    else:
        training.diverged = True
    training.seconds += clock() - started


class _Keeper:
    """Writes and reads the checkpoints of one training."""

    def __init__(
        self,
        training: Training,
        callbacks: list[Callback],
        parts: dict[str, Stateful],
        lab: Lab | None,
        name: str,
        period: float,
    ) -> None:
        self._training, self._lab, self._name, self._period = training, lab, name, period
        self._stateful: dict[str, Any] = {
            "model": training.model,
            "optimizer": training.optimizer,
            **{f"callback {number}": callback for number, callback in enumerate(callbacks)},
            **{f"part {key}": part for key, part in parts.items()},
        }
        self._last = time.monotonic()

    def save_if_due(self) -> None:
        """Checkpoint when the last one is old enough, or when the run was asked to stop."""
        assert self._lab is not None
        if time.monotonic() - self._last >= self._period or self._lab.stop_requested:
            self.save()

    def save(self, finished: bool = False) -> None:
        """Checkpoint the state before the callbacks of the current step (or after all of them when finished)."""
        if self._lab is None:
            return
        training = self._training
        counters = {key: getattr(training, key) for key in ("step", "loss", "seconds", "diverged", "stopped")}
        states = {key: item.state_dict() for key, item in self._stateful.items()}
        random = torch.get_rng_state()
        self._lab.keep(self._name, {"counters": counters, "states": states, "random": random, "finished": finished})
        self._last = time.monotonic()

    def restore(self) -> bool:
        """Take up the last checkpoint, if there is one; true when the training had come to its end."""
        state = self._lab.restore(self._name) if self._lab is not None else None
        if state is None:
            return False
        for key, value in state["counters"].items():
            setattr(self._training, key, value)
        for key, item in self._stateful.items():
            item.load_state_dict(state["states"][key])
        torch.set_rng_state(state["random"])
        return bool(state["finished"])
