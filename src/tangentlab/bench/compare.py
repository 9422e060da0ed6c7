"""Comparing two runs number by number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tangentlab.bench.folder import RunFolder
from tangentlab.bench.lab import END_TABLE
from tangentlab.bench.row_files import Row, read_rows

# the clock and the memory of a process are facts about a moment, not results
MOMENTARY = frozenset({"seconds", "memory_mb"})


@dataclass(frozen=True)
class Comparison:
    """How many rows were compared, which of them differ, and the largest relative difference of a number."""

    rows: int
    different: tuple[str, ...]
    largest: float

    @property
    def identical(self) -> bool:
        """Whether every number of one run is the number of the other."""
        return not self.different


def compare_runs(first: RunFolder, second: RunFolder) -> Comparison:
    """Compare the metrics of two runs row by row and seed by seed; columns called `seconds` are left out."""
    mine, theirs = _rows(first), _rows(second)
    different: list[str] = []
    largest = 0.0
    for key in sorted(mine.keys() | theirs.keys()):
        a, b = mine.get(key), theirs.get(key)
        gap = math.inf if a is None or b is None else _difference(a, b)
        if gap > 0:
            different.append(f"seed {key[0]}, row {key[1]} ({(a or b or {}).get('table')})")
            largest = max(largest, gap)
    return Comparison(len(mine.keys() | theirs.keys()), tuple(different), largest)


def _rows(folder: RunFolder) -> dict[tuple[int, int], Row]:
    rows = (row for row in read_rows(folder.metrics_file) if row["table"] != END_TABLE)
    return {(row["seed"], row["row"]): {k: v for k, v in row.items() if k not in MOMENTARY} for row in rows}


def _difference(a: Any, b: Any) -> float:
    """0 when equal (NaN equals NaN), the relative difference of two numbers, infinity for anything else."""
    if isinstance(a, dict) and isinstance(b, dict):
        return max((_difference(a.get(key), b.get(key)) for key in a.keys() | b.keys()), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max((_difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        if a == b or (math.isnan(a) and math.isnan(b)):
            return 0.0
        return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf
    return 0.0 if a == b else math.inf
