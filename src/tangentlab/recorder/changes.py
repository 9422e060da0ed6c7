"""What a recording says changed from its first snapshot to its last, and what is missing there, since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from tangentlab.figures.format import number

if TYPE_CHECKING:
    from tangentlab.recorder.recording import Recording

TABLE = (
    ("loss", "mean loss"),
    ("accuracy", "accuracy"),
    ("cka", "CKA of kernel and labels"),
    ("effective_rank", "effective rank"),
    ("max", "largest eigenvalue"),
    ("ntk_similarity", "similarity with the first kernel"),
    ("sign_similarity", "ReLU patterns as at the start"),
    ("representation_similarity", "similarity with the first representation"),
    ("fisher_trace", "trace of the Fisher matrix"),
    ("hessian_trace", "trace of the Hessian"),
)
STEPS_LISTED = 8


@dataclass(frozen=True)
class MeasureChange:
    """A quantity at the first and at the last snapshot, None where it is missing; the remark says since when."""

    first: float | None
    last: float | None
    remark: str = ""


def change_table(recording: Recording) -> list[tuple[str, list[MeasureChange | None]]]:
    """(quantity, change per probe) of what was recorded; None where a probe never had it."""
    table = []
    for key, text in TABLE:
        cells = [change_of(recording, f"{probe}/{key}") for probe in recording.probes]
        if any(cell is not None for cell in cells):
            table.append((text, cells))
    return table


def change_of(recording: Recording, name: str) -> MeasureChange | None:
    """From the first snapshot to the last and to no other: a value that one of them lacks is not replaced by another's."""
    steps, values = [row["step"] for row in recording.snapshots], recording.track(name)
    if all(value is None for value in values):
        return None
    known = [place for place, value in enumerate(values) if value is not None and not isnan(value)]
    remarks = []
    if known and known[0] > 0:
        remarks.append(f"{number(values[known[0]], 3)} at step {steps[known[0]]:,}, where it begins")
    if known and known[-1] < len(values) - 1:
        what = "missing" if values[-1] is None else "not a number"
        last = f"{number(values[known[-1]], 3)} at step {steps[known[-1]]:,}"
        remarks.append(f"{what} since step {steps[known[-1] + 1]:,}; {last}")
    return MeasureChange(values[0], values[-1], "; ".join(remarks))


def problems(recording: Recording) -> list[tuple[str, str, str]]:
    """(measures, when, message) of what failed; measures that failed at the same steps in the same way are told together."""
    failed: dict[tuple[str, str], list[int]] = {}
    for row in recording.snapshots:
        for what, text in row["problems"].items():
            failed.setdefault((what, text), []).append(row["step"])
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (what, text), steps in failed.items():
        together.setdefault((text, tuple(steps)), []).append(what)
    taken = [row["step"] for row in recording.snapshots]
    return [(", ".join(names), _when(steps, taken), text) for (text, steps), names in together.items()]


def _when(steps: Sequence[int], taken: Sequence[int]) -> str:
    """Where among the steps of all snapshots: since one of them, at a few, or at many."""
    if len(steps) == 1:
        return f"at step {steps[0]:,}"
    if list(steps) == list(taken[-len(steps) :]):
        return f"since step {steps[0]:,}"
    if len(steps) <= STEPS_LISTED:
        return f"at steps {', '.join(f'{step:,}' for step in steps)}"
    return f"at {len(steps)} snapshots from step {steps[0]:,} to {steps[-1]:,}"
