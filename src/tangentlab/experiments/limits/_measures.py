"""What the measures of these experiments share: runs that were cut short, means and slopes over tables, right answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tangentlab.experiments import Claim, Table
from tangentlab.lines import Row


def cut_short(claims: Sequence[Claim]) -> dict[str, float | str]:
    """The reason why a run that did not come to its end measures nothing, for every claim and precondition."""
    names = [name for claim in claims for name in (claim.id, *(condition.id for condition in claim.requires))]
    return dict.fromkeys(names, "the run was cut short")


def mean_of(table: Table, column: str) -> float:
    """The mean of a column, NaN where a run that was cut short has no rows."""
    return float(table[column].mean()) if len(table) else math.nan


def log_slope(rows: Sequence[Row], x: str, y: str) -> float:
    """The slope of log y over log x by least squares: the exponent of a power law."""
    logs = [torch.tensor([row[name] for row in rows], dtype=torch.float64).log() for name in (x, y)]
    places, heights = (values - values.mean() for values in logs)
    return float((places * heights).sum() / places.square().sum())


def share_right(outputs: Tensor, labels: Tensor) -> float:
    """The share of examples whose largest output is their label's; of a single output, whose sign is that of label 1 or 0."""
    found = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((found == labels).double().mean())
