"""Callbacks of trainings and games: at chosen iterations, and when progress passes a threshold.

Step k means: after k updates, so step 0 is the initial network. What a callback remembers goes into the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tangentlab.lines import Row
from tangentlab.moved import moved_name
from tangentlab.schedule import Geometric, schedule_of


class Callback:
    """Called at every step with the state of the training (or `Game`); the base does nothing and remembers nothing."""

    def __call__(self, training: Any) -> None:
        """React to the state after `training.step` updates."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""


class OnSteps(Callback):
    """Calls `action` at the steps of a `Schedule` (or a list of steps, or every so many); at the last one too if asked."""

    def __init__(self, steps: Any, action: Callable[[Any], None], *, last: bool = False) -> None:
        self._schedule, self._action, self._last = schedule_of(steps), action, last

    def __call__(self, training: Any) -> None:
        if self._schedule.due(training.step) or (self._last and training.step == training.steps):
            self._action(training)


class OnPeriod(OnSteps):
    """Calls `action` at steps 0, k, 2k, ... and at the last one."""

    def __init__(self, period: int, action: Callable[[Any], None]) -> None:
        super().__init__(period, action, last=True)


class Points(OnSteps):
    """Calls `measure(training)` at the steps of a schedule and at the last one, and keeps the rows that it returns.

    The rows survive a restart, so that claims which compare points of a training can be judged at its end.
    """

    def __init__(self, steps: Any, measure: Callable[[Any], list[Row]]) -> None:
        super().__init__(steps, lambda training: self.rows.extend(measure(training)), last=True)
        self.rows: list[Row] = []

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state["rows"]]


class OnProgress(Callback):
    """Calls `action(training, threshold)` the first time that `measure` reaches each threshold.

    `measure` (a loss, an accuracy) is evaluated every `period` steps, as long as a threshold is left; with
    `falling` a threshold is reached from above (a loss), else from below (an accuracy). Several thresholds passed at
    once are called in the order in which they would have been met. `reached` maps thresholds to steps.
    """

    def __init__(
        self,
        measure: Callable[[Any], float],
        thresholds: Sequence[float],
        action: Callable[[Any, float], None],
        *,
        falling: bool = True,
        period: int = 1,
    ) -> None:
        self._measure, self._action, self._falling, self._period = measure, action, falling, period
        self._thresholds = sorted(thresholds, reverse=falling)
        self.reached: dict[float, int] = {}

    def __call__(self, training: Any) -> None:
        left = [threshold for threshold in self._thresholds if threshold not in self.reached]
        if not left or (training.step % self._period and training.step != training.steps):
            return
        value = self._measure(training)
        for threshold in left:
            if value <= threshold if self._falling else value >= threshold:
                self.reached[threshold] = training.step
                self._action(training, threshold)

    def state_dict(self) -> dict[str, Any]:
        return {"reached": list(self.reached.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reached = {float(threshold): int(step) for threshold, step in state["reached"]}


def geometric_steps(last: int, first: float = 5.0, ratio: float = 1.15) -> list[int]:
    """0, then `first * ratio^k` rounded, up to and with `last`: dense early, where things move fast."""
    return sorted({0, *Geometric(first, ratio).between(0, last), last})


__getattr__ = partial(moved_name, __name__)
