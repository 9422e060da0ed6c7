"""How much a recorder may cost: the largest probes whose remaining snapshots fit into a share of the training time.

Sizes only ever shrink: statistics of a kernel depend on its number of rows, so a curve whose size goes up and down with the
load of the machine would show the load. A smaller probe is a part of the larger one (its first examples and outputs).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from statistics import median
from typing import Any

from tangentlab.errors import InputError

LEAST_EXAMPLES = 16
ASSUMED_STEPS = 1000
"""A training of unknown length is taken to be at least this long, and at least twice as long as it was so far."""


@dataclass(frozen=True)
class Size:
    """Examples per probe and outputs per example."""

    examples: int
    outputs: int

    def __post_init__(self) -> None:
        if self.examples < 1 or self.outputs < 1:
            raise InputError(f"A probe has at least one example and one output, not {self.examples} x {self.outputs}.")

    @classmethod
    def of(cls, value: Any) -> Size:
        """From (examples, outputs) as a user gives it; None stands for all outputs."""
        try:
            examples, outputs = value
            return cls(index(examples), sys.maxsize if outputs is None else index(outputs))
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The argument size= takes (examples, outputs), such as (100, 10), or (100, None) for all outputs, "
                f"not {value!r}."
            ) from None

    def __str__(self) -> str:
        return f"{self.examples} example{'s' * (self.examples != 1)} x {self.outputs} output{'s' * (self.outputs != 1)}"


def ladder(largest: Size) -> list[Size]:
    """Smaller and smaller sizes, about half the rows each: outputs go first, since every output is one more backward."""
    sizes = [largest]
    while sizes[-1].outputs > 1:
        sizes.append(Size(largest.examples, (sizes[-1].outputs + 1) // 2))
    while sizes[-1].examples >= 2 * LEAST_EXAMPLES:
        sizes.append(Size(sizes[-1].examples // 2, 1))
    return sizes


@dataclass(frozen=True)
class SnapshotCost:
    """Measured seconds of a snapshot: of its kernels, and of the rest, which grows with the examples."""

    size: Size
    kernels: float
    rest: float


class Budget:
    """Keeps the times, and answers which size the next snapshot may have.

    share: of the training time that all snapshots together may take, e.g. 0.1; infinite for no limit.
    free_seconds: what they may take in any case: a training of seconds is not worth saving on.
    """

    def __init__(self, share: float, free_seconds: float) -> None:
        if share <= 0 or free_seconds < 0:
            raise InputError(
                f"The argument max_overhead must be above 0 and free_seconds not below, not {share}, {free_seconds}."
            )
        self.share, self.free_seconds = share, free_seconds
        self.training = self.spent = 0.0
        self.cost: SnapshotCost | None = None
        self._laps: deque[float] = deque(maxlen=50)
        self._since = 0.0

    def begin(self, moment: float) -> None:
        """What comes from here on is counted."""
        self._since = moment

    def training_until(self, moment: float) -> None:
        """The training made one update since the last call."""
        self.lap(moment - self._since)
        self._since = moment

    def recorder_until(self, moment: float) -> None:
        """The recorder worked since the last call."""
        self.spent += moment - self._since
        self._since = moment

    def lap(self, seconds: float) -> None:
        """One update of the training took so long."""
        self.training += seconds
        self._laps.append(seconds)

    @property
    def overhead(self) -> float:
        """Seconds of the recorder over seconds of training, so far; 0 before the first update."""
        return self.spent / self.training if self.training > 0 else 0.0

    def allowance(self, step: int, last: int | None, snapshots: int) -> float:
        """Seconds that each of the `snapshots` still to come may take, in a training of `last` steps."""
        if not self._laps:
            return float("inf")
        left = horizon(step, last) - step
        expected = self.training + left * median(self._laps)
        return (max(self.share * expected, self.free_seconds) - self.spent) / max(snapshots, 1)

    def earned(self, seconds: float) -> bool:
        """Whether so many seconds more are paid for by the training so far, or are still free."""
        return self.spent + seconds <= max(self.share * self.training, self.free_seconds)

    def predicted(self, size: Size, seconds_of: Callable[[Size], float]) -> float:
        """Seconds of a snapshot of this size, scaled from the last one that was measured.

        seconds_of: planned seconds of the kernels at a size; only their ratios are used.
        """
        if self.cost is None:
            return seconds_of(size)
        if size == self.cost.size:
            return self.cost.kernels + self.cost.rest
        ratio = seconds_of(size) / seconds_of(self.cost.size)
        return self.cost.kernels * ratio + self.cost.rest * size.examples / self.cost.size.examples

    def choose(self, sizes: list[Size], allowed: float, seconds_of: Callable[[Size], float]) -> Size | None:
        """The largest of the sizes that costs no more than allowed, None if there is none."""
        return next((size for size in sizes if self.predicted(size, seconds_of) <= allowed), None)

    def state_dict(self) -> dict[str, Any]:
        """The times."""
        cost = None if self.cost is None else (self.cost.size.examples, self.cost.size.outputs, *self._cost())
        return {"training": self.training, "spent": self.spent, "laps": list(self._laps), "cost": cost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from these times."""
        self.training, self.spent = state["training"], state["spent"]
        self._laps = deque(state["laps"], maxlen=50)
        found = state["cost"]
        self.cost = None if found is None else SnapshotCost(Size(*found[:2]), *found[2:])

    def _cost(self) -> tuple[float, float]:
        assert self.cost is not None
        return self.cost.kernels, self.cost.rest


def horizon(step: int, last: int | None) -> int:
    """Steps of the training: what is known, else an assumption."""
    return max(last, step) if last is not None else max(ASSUMED_STEPS, 2 * step)
