"""What claims of games are judged by: where each of them ended."""

from __future__ import annotations

import math
from typing import Any

from tangentlab.experiments import Results
from tangentlab.lines import Row


def last_rows(
    results: Results, table: str, seed: int, by: str, until: float = math.inf, **where: Any
) -> dict[Any, Row]:
    """For every value of the column `by`, the row of the last step (up to step `until`) in a seed's log."""
    rows = sorted(results.table(table, seed=seed, **where).rows, key=lambda row: row["step"])
    return {row[by]: row for row in rows if row["step"] <= until}
