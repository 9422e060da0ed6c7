"""Claims as plain tables: one YAML file per experiment, a list of preconditions and a list of claims.

preconditions:
  - {id: 6.2-fitted, measured: training accuracy at the end, holds: ">= 0.9"}
claims:
  - id: 6.2-max
    origin: paper
    sentence: The largest eigenvalue grows by more than two orders of magnitude.
    quote: by more than 2 orders of magnitude
    place: §6.3.2, figure 6.2
    measured: largest eigenvalue of the train kernel, end over start
    holds: ">= 100"
    bound: paper
    requires: [6.2-fitted]
    history:
      - {date: 2026-01-31, was: ">= 50 in every seed", why: the paper's number was misread}
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import yaml

from tangentlab.bench.claims import Change, Claim, Precondition, Relation
from tangentlab.bench.errors import SettingError

_ROW = {"id", "origin", "sentence", "quote", "place", "measured", "holds", "bound"}
_ROW |= {"scales", "requires", "history", "retired"}


def read_claims(file: Path) -> tuple[Claim, ...]:
    """The claims of a table; an error that names the row where something is wrong."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        conditions = {row["id"]: _precondition(row) for row in content.get("preconditions", [])}
        return tuple(_claim(row, conditions) for row in content["claims"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"{file} is not a table of claims: {error!r}.") from error


def _precondition(row: dict[str, Any]) -> Precondition:
    relation, threshold = inequality(row["holds"])
    return Precondition(row["id"], row["measured"], relation, threshold)


def _claim(row: dict[str, Any], conditions: dict[str, Precondition]) -> Claim:
    if unknown := row.keys() - _ROW:
        raise ValueError(f"Claim {row.get('id')}: unknown columns {', '.join(sorted(unknown))}.")
    relation, threshold = inequality(row["holds"])
    return Claim(
        row["id"],
        row["sentence"],
        row["measured"],
        relation,
        threshold,
        row["place"],
        scales=tuple(row.get("scales", ("desk", "paper"))),
        origin=row["origin"],
        quote=row.get("quote", ""),
        bound=row["bound"],
        requires=tuple(conditions[name] for name in row.get("requires", [])),
        history=tuple(Change(str(one["date"]), one["was"], one["why"]) for one in row.get("history", [])),
        retired=row.get("retired", ""),
    )


def inequality(text: str) -> tuple[Relation, float]:
    """`>= 0.9` as its sign and its number."""
    sign, _, number = text.strip().partition(" ")
    for relation in get_args(Relation):
        if sign == relation and math.isfinite(float(number)):
            return relation, float(number)
    raise ValueError(f"{text!r} is not an inequality such as '>= 0.9'.")
