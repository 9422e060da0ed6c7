"""Claims: sentences turned into measured inequalities, who made them, and whose number it is that they have to meet.

A claim is the *paper's*, with the few words it comes from and the place where they stand, or *ours*. Its threshold is

* the **paper**'s own number;
* a **sign**, where the paper has words only ("increases", "earlier", "worse"): the neutral value (0 of a difference, 1 of a
  ratio), which the confidence interval over the seeds has to leave on the claimed side; the size is reported, not demanded;
* or **ours**, and is then called so wherever it is shown.

A claim that was changed after its first result keeps what it was and why (`Change`). One that was given up stays in the table
with the reason (`retired`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Literal, get_args

from tangentlab.moved import moved_name

Relation = Literal["<=", ">=", "<", ">"]
Origin = Literal["paper", "ours"]
Bound = Literal["paper", "sign", "ours"]
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


class Status(StrEnum):
    """The five verdicts, in the words that reports use."""

    HELD = "held"
    MIXED = "mixed"
    NOT_HELD = "not held"
    NOT_TESTED = "not tested"
    MISSING = "missing"


@dataclass(frozen=True)
class Change:
    """What a claim was until `date` (its rule or its quantity, in words) and why it was changed."""

    date: str
    was: str
    why: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", self.date) or not self.was or not self.why:
            raise ValueError(f"A line of history needs a date (2026-01-31), what was and why, not {self!r}.")


@dataclass(frozen=True)
class Precondition:
    """What must be true of a seed before it can say anything about a claim: that a network fitted, learnt, did not diverge.

    A seed in which `measured` does not stand in `relation` to `threshold` is left out, and the page says so.
    """

    id: str
    measured: str
    relation: Relation
    threshold: float

    def __post_init__(self) -> None:
        _check_inequality(self)

    def true_for(self, value: float) -> bool:
        """Whether `value` satisfies the inequality; NaN never does."""
        return bool(_COMPARE[self.relation](value, self.threshold))


@dataclass(frozen=True)
class Claim:
    """`measured` (a number, one per seed) stands in `relation` to `threshold`, or the `sentence` does not hold.

    * `place`: where the paper states or shows it; `scales`: those at which it can be expected to show
    * `origin`: "paper" needs `quote`, a few words as the paper has them; "ours" has none
    * `bound`: whose number the threshold is: the "paper"'s, a "sign" (judged by an interval), or "ours"
    * `requires`: what a seed must satisfy to be counted
    * `history`: what it was before, oldest first; `retired`: why it is judged no longer
    """

    id: str
    sentence: str
    measured: str
    relation: Relation
    threshold: float
    place: str
    scales: tuple[str, ...] = ("desk", "paper")
    origin: Origin = "ours"
    quote: str = ""
    bound: Bound = "ours"
    requires: tuple[Precondition, ...] = ()
    history: tuple[Change, ...] = ()
    retired: str = ""

    def __post_init__(self) -> None:
        _check_inequality(self)
        if self.origin not in get_args(Origin) or self.bound not in get_args(Bound):
            raise ValueError(f"Claim {self.id}: origin is 'paper' or 'ours', bound 'paper', 'sign' or 'ours'.")
        if (self.origin == "paper") != bool(self.quote):
            raise ValueError(
                f"Claim {self.id}: a claim of the paper quotes its words, and one of ours has none to quote."
            )
        if self.bound == "paper" and self.origin == "ours":
            raise ValueError(f"Claim {self.id}: a claim of ours cannot have a number of the paper as its bound.")
        if self.bound == "sign" and self.relation not in ("<", ">"):
            raise ValueError(f"Claim {self.id}: a sign is above or below its neutral value, so the relation is < or >.")

    def true_for(self, value: float) -> bool:
        """Whether `value` satisfies the inequality; NaN never does."""
        return bool(_COMPARE[self.relation](value, self.threshold))

    def rule(self) -> tuple[Any, ...]:
        """What may not change without a line of history: who claims it, what is measured, and how it is judged."""
        return rule_of({**self.__dict__, "requires": [one.__dict__ for one in self.requires]})


def rule_of(claim: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same of a claim as `claims.json` has it: origin, quantity, inequality, sign or number, preconditions."""
    conditions = {(one["measured"], one["relation"], float(one["threshold"])) for one in claim["requires"]}
    inequality = claim["measured"], claim["relation"], float(claim["threshold"]), claim["bound"] == "sign"
    return claim["origin"], *inequality, frozenset(conditions)


def _check_inequality(one: Claim | Precondition) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.\-]*", one.id):
        raise ValueError(f"Claim id {one.id!r}: letters, digits, dots and dashes only.")
    if one.relation not in _COMPARE:
        raise ValueError(f"Claim {one.id}: relation {one.relation!r} is not one of {', '.join(_COMPARE)}.")
    if not math.isfinite(one.threshold):
        raise ValueError(f"Claim {one.id}: the threshold must be a finite number.")


def preconditions(claims: Sequence[Claim]) -> dict[str, Precondition]:
    """Every precondition of the claims, by its id; an error where two that differ have one id."""
    found: dict[str, Precondition] = {}
    for condition in (condition for claim in claims for condition in claim.requires):
        if found.setdefault(condition.id, condition) != condition:
            raise ValueError(f"Claim precondition {condition.id}: two different ones have this id.")
    if clash := found.keys() & {claim.id for claim in claims if not claim.retired}:
        raise ValueError(f"Claim ids are ids of preconditions, too: {', '.join(sorted(clash))}.")
    return found


__getattr__ = partial(moved_name, __name__)
