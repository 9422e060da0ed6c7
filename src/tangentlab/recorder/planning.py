"""The snapshots still to come: how many there are, and at which size the next one can be afforded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tangentlab.figures.format import duration
from tangentlab.recorder.budget import Budget, Size, horizon, ladder
from tangentlab.schedule import Schedule


@dataclass(frozen=True)
class Course:
    """A training after `step` updates, of `total` where that is known, with snapshots at the steps of a schedule."""

    schedule: Schedule
    step: int
    total: int | None

    @property
    def end(self) -> int:
        """Its last step, known or assumed."""
        return horizon(self.step, self.total)

    @property
    def snapshots(self) -> int:
        """Those from here on, with one here and one at the end."""
        later = self.schedule.between(self.step, self.end)
        return 1 + len(later) + (not later or later[-1] != self.end)


@dataclass(frozen=True)
class Choice:
    """A size for the next snapshot, None to leave it out; what it would cost at the present size, and why not at that one."""

    size: Size | None
    cost: float
    why: str = ""


def choose_size(course: Course, budget: Budget, size: Size, planned: Callable[[Size], float], *, last: bool) -> Choice:
    """The present size, a smaller one, or None where even the smallest costs too much; the last one is always taken."""
    cost = budget.predicted(size, planned)
    free = course.total is None and budget.spent + cost <= budget.free_seconds
    if budget.share == inf or free:
        return Choice(size, cost)
    count = 1 if last else course.snapshots
    sizes = ladder(size)
    found = budget.choose(sizes, budget.allowance(course.step, course.total, count), planned)
    if found == size:
        return Choice(size, cost)
    why = f"{count} more of {duration(cost)} would pass {budget.share:.0%} of the training time"
    if found is None and not last and not budget.earned(budget.predicted(sizes[-1], planned)):
        return Choice(None, cost, why)
    return Choice(found or sizes[-1], cost, why)
