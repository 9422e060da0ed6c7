"""Rows of a log as they are kept with a published result, so that claims are judged alike before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tangentlab.experiments import Claim, Results, Table

DIGITS = 6
"""Significant digits of the numbers that `tangentlab.bench.kept` keeps."""


def kept_rows(results: Results, name: str, seed: int) -> Table:
    """The rows of a table of one seed, with numbers to the digits that are kept."""
    rows = ({key: _rounded(value) for key, value in row.items()} for row in results.table(name, seed=seed).rows)
    return Table(name, tuple(rows))


def _rounded(value: object) -> object:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def cut_short(claims: Sequence[Claim]) -> dict[str, float | str]:
    """The reason why a run that did not come to its end measures nothing, for every claim and precondition."""
    names = [name for claim in claims for name in (claim.id, *(condition.id for condition in claim.requires))]
    return dict.fromkeys(names, "the run was cut short")


def mean_of(table: Table, column: str) -> float:
    """The mean of a column, NaN where a run that was cut short has no rows."""
    return float(table[column].mean()) if len(table) else math.nan
