"""What the recorder says: what it will cost, why it cannot count a step, and what went wrong in a snapshot."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from math import inf

from tangentlab.errors import DiskError
from tangentlab.figures.format import duration
from tangentlab.recorder.budget import Size
from tangentlab.recorder.planning import Course
from tangentlab.recorder.storage import Row


def announcement(
    course: Course, share: float, size: Size, probes: Sequence[str], seconds: float, left_out: Sequence[str]
) -> str:
    """What will be recorded, what it will cost by the plan, and which numbers are left out for want of a loss."""
    limit = "no limit of time" if share == inf else f"at most {share:.0%} of the training time"
    without = f"; no loss is known for this likelihood, so no {' and no '.join(left_out)}" if left_out else ""
    return (
        f"{', '.join(probes)}: {size} each, all layers, about {duration(seconds)} for the kernels of a snapshot by the plan, "
        f"{course.snapshots} snapshots in {course.end:,} steps; {limit}{without}"
    )


def why_not_running(rows: Sequence[Row], step: int) -> str:
    """Why a step cannot be counted, and what to do, with the rows of a recorder that is not running."""
    if not rows:
        return (
            "The recorder has not seen the network before its first update: use it as a context, `with recorder:`, or call "
            "recorder.start() before training."
        )
    state = "finished" if rows[-1]["kind"] == "finished" else "not running"
    return (
        f"The recorder is {state} at step {step}: call recorder.start() to go on with this training, or make a new "
        "TangentRecorder for another one."
    )


def warn_of_disk(error: DiskError, step: int) -> None:
    """Warn that nothing more is recorded."""
    _warn(f"step {step}: {error} The recorder is switched off; training goes on without it.")


def warn_of(problems: dict[str, str], rows: Sequence[Row], step: int) -> None:
    """Warn of what failed in a snapshot and has not failed in the same way before."""
    seen = {text for row in rows if row["kind"] == "snapshot" for text in row["problems"].values()}
    for what, text in problems.items():
        if text not in seen:
            _warn(f"step {step}, {what}: {text}")


def _warn(text: str) -> None:
    """A warning that names the line of the training that called the recorder."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("tangentlab.", "contextlib")):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"tangentlab recorder, {text}", RuntimeWarning, stacklevel=level)
