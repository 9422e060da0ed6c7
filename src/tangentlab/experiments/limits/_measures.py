"""What the measures of these experiments share: runs that were cut short, and means over the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tangentlab.experiments import Claim, Table


def cut_short(claims: Sequence[Claim]) -> dict[str, float | str]:
    """The reason why a run that did not come to its end measures nothing, for every claim and precondition."""
    names = [name for claim in claims for name in (claim.id, *(condition.id for condition in claim.requires))]
    return dict.fromkeys(names, "the run was cut short")


def mean_of(table: Table, column: str) -> float:
    """The mean of a column, NaN where a run that was cut short has no rows."""
    return float(table[column].mean()) if len(table) else math.nan
