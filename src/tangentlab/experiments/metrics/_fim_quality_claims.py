"""From rows to the numbers that decide the claims of figures 3.3 to 3.6.

Judged are the representations that the paper compares; a block diagonal, where it fits, is drawn but does not compete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean

from tangentlab.experiments._images import Row
from tangentlab.experiments.metrics._fim_quality_measures import FACTORED

COMPETING = ("Diag", "QuasiDiag", "KFAC", FACTORED, "EKFAC")
EXACT_TRACE = ("Diag", "QuasiDiag", "EKFAC")
PRACTICAL = (1e-4, 1e-1)
ROUNDING = 1e-5


def numbers(rows: Sequence[Row]) -> dict[str, float]:
    """The measured number of every claim, by id."""
    judged = [row for row in rows if row["representation"] in COMPETING]
    forward = [row for row in judged if row["kind"] == "forward"]
    solve = [row for row in judged if row["kind"] == "solve"]
    practical = [row for row in solve if is_practical(row["damping"])]
    largest = max(row["damping"] for row in solve)
    independent = [row for row in forward if row["draws"] == "independent"]
    return {
        "3.3-kfac-cosine": share_best(without(practical, FACTORED), "KFAC", "cosine", higher=True),
        "3.3-kfac-residual": share_best(without(practical, FACTORED), "KFAC", "residual", higher=False),
        "3.3-kfac-factored-cosine": share_best(without(practical, "KFAC"), FACTORED, "cosine", higher=True),
        "3.3-kfac-factored-residual": share_best(without(practical, "KFAC"), FACTORED, "residual", higher=False),
        "3.3-large-damping": min(row["cosine"] for row in solve if row["damping"] == largest),
        "3.4-ekfac-cosine": share_best(forward, "EKFAC", "cosine", higher=True),
        "3.4-ekfac-residual": share_best(forward, "EKFAC", "residual", higher=False),
        "3.5-ekfac": share_best(forward, "EKFAC", "vTMv", higher=False),
        "3.6-shared": max(r["trace"] for r in forward if r["draws"] == "shared" and r["representation"] in EXACT_TRACE),
        "3.6-independent": fmean(row["trace"] for row in independent if row["representation"] in EXACT_TRACE),
        "3.6-kfac": min(_trace_ratio(cell) for cell in cells(independent)),
        "3-no-winner": max(wins(forward, without(practical, FACTORED)).values()) / 4,
    }


def is_practical(damping: float) -> bool:
    """Whether a damping lies in the range that chapter 4 searches, its ends included."""
    return PRACTICAL[0] * 0.999 <= damping <= PRACTICAL[1] * 1.001


def without(rows: Iterable[Row], representation: str) -> list[Row]:
    """The rows of all other representations."""
    return [row for row in rows if row["representation"] != representation]


def cells(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """The rows by representation, one dictionary per point of training, kind of draws and (for solves) damping."""

    def place(row: Row) -> tuple[int, str, float]:
        return row["step"], row["draws"], row.get("damping", 0.0)

    found = groupby(sorted(rows, key=place), key=place)
    return [{row["representation"]: row for row in cell} for _, cell in found]


def share_best(rows: Iterable[Row], representation: str, key: str, *, higher: bool) -> float:
    """The share of cells in which `representation` is better than every other one."""
    found = cells(rows)
    return fmean(_leaders(cell, key, higher, 0.0) == {representation} for cell in found)


def wins(forward: Sequence[Row], solve: Sequence[Row]) -> dict[str, int]:
    """At how many of the four operations (trace, v^T F v, F v, solve) each representation is the best.

    An operation goes to the representation with the best mean over all points, draws and dampings. Traces that are
    wrong by no more than rounding when labels are shared are equally good.
    """
    shared = [row for row in forward if row["draws"] == "shared"]
    tasks = ((shared, "trace", False, ROUNDING), (forward, "vTMv", False, 0.0))
    tasks += ((forward, "cosine", True, 0.0), (solve, "cosine", True, 0.0))  # type: ignore[assignment]
    counts = dict.fromkeys((row["representation"] for row in forward), 0)
    for rows, key, higher, tie in tasks:
        means = {name: {key: value} for name, value in mean_by_representation(rows, key).items()}
        for name in _leaders(means, key, higher, tie):
            counts[name] += 1
    return counts


def mean_by_representation(rows: Iterable[Row], key: str) -> dict[str, float]:
    """Mean of a column for every representation."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        values[row["representation"]].append(row[key])
    return {name: fmean(found) for name, found in values.items()}


def _leaders(cell: dict[str, Row], key: str, higher: bool, tie: float) -> set[str]:
    """The best representations of a cell: all that are within `tie` of the best value."""
    sign = 1.0 if higher else -1.0
    best = max(sign * row[key] for row in cell.values())
    return {name for name, row in cell.items() if sign * row[key] >= best - tie}


def _trace_ratio(cell: dict[str, Row]) -> float:
    """KFAC's error of the trace over the largest error of those that should have it right."""
    return float(cell["KFAC"]["trace"] / max(cell[name]["trace"] for name in EXACT_TRACE))
