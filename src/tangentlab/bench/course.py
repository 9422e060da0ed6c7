"""The course of a training or a game: the loop that all of them share, its clock and its checkpoints.

What was interrupted at any moment and continued from its last checkpoint goes on bit for bit as if nothing had happened:
weights, optimizers, random state, callbacks, clock and log are all part of the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from tangentlab.bench.callbacks import Callback
from tangentlab.bench.lab import Lab
from tangentlab.bench.minibatches import Minibatches
from tangentlab.bench.seeds import derive

CHECKPOINT_SECONDS = 20.0


class Stateful(Protocol):
    """Anything whose state can be kept: models, optimizers, schedulers, preconditioners, recorders, players."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take the state up."""


@dataclass(kw_only=True)
class UpdateCourse:
    """Where a training or a game is: `step` updates are done out of `steps`.

    `loss` is that of the last update (NaN before the first one), `seconds` the time spent in updates alone (callbacks and
    checkpoints are not on this `clock`), `diverged` whether a loss was not finite.
    """

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
        """End after this step; callbacks may call it (loss small enough)."""
        self.stopped = True


AnyCourse = TypeVar("AnyCourse", bound=UpdateCourse)


def clock() -> float:
    """Seconds for measuring updates: processor time of this thread where torch has one thread, else wall-clock time.

    On an idle machine both are the same; the first does not count what other programs take, nor a pause of the run.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def repeat(
    course: AnyCourse,
    update: Callable[[AnyCourse], None],
    stateful: Mapping[str, Stateful],
    *,
    lab: Lab | None,
    name: str,
    kind: str,
    callbacks: Sequence[Callback],
    live: Callable[[AnyCourse], dict[str, float]],
    checkpoint_seconds: float,
) -> AnyCourse:
    """Repeat `update` for `course.steps` steps, or until a callback stops it or it sets `diverged`.

    An update draws from the global random generator, which is seeded from the batches' seed, so that it does not depend on
    what ran before. `kind` and `name` name the checkpoint; `live` gives the numbers next to the progress bar.
    """
    kept = {**stateful, **{f"callback {number}": callback for number, callback in enumerate(callbacks)}}
    keeper = _Keeper(course, kept, lab, f"{kind} {name}", checkpoint_seconds)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(course.batches.seed, kind))
        if keeper.restore():
            return course
        while True:
            if lab is not None:
                keeper.save_if_due()
                if course.step:
                    lab.live(**live(course))
                lab.progress(name, course.step, course.steps)
            for callback in callbacks:
                callback(course)
            if course.step >= course.steps or course.stopped:
                break
            _timed(course, update)
            if course.diverged:
                break
            if lab is not None:
                lab.steps += 1
        keeper.save(finished=True)
    return course


def _timed(course: AnyCourse, update: Callable[[AnyCourse], None]) -> None:
    started = clock()
    update(course)
    if not course.diverged:
        course.step += 1
    course.seconds += clock() - started


class _Keeper:
    """Writes and reads the checkpoints of one course."""

    def __init__(
        self, course: UpdateCourse, stateful: Mapping[str, Stateful], lab: Lab | None, name: str, period: float
    ) -> None:
        self._course, self._stateful, self._lab, self._name, self._period = course, stateful, lab, name, period
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
        counters = {key: getattr(self._course, key) for key in ("step", "loss", "seconds", "diverged", "stopped")}
        states = {key: item.state_dict() for key, item in self._stateful.items()}
        random = torch.get_rng_state()
        self._lab.keep(self._name, {"counters": counters, "states": states, "random": random, "finished": finished})
        self._last = time.monotonic()

    def restore(self) -> bool:
        """Take up the last checkpoint, if there is one; true when the course had come to its end."""
        state = self._lab.restore(self._name) if self._lab is not None else None
        if state is None:
            return False
        for key, value in state["counters"].items():
            setattr(self._course, key, value)
        for key, item in self._stateful.items():
            item.load_state_dict(state["states"][key])
        torch.set_rng_state(state["random"])
        return bool(state["finished"])
