"""Claims: sentences of a paper turned into measured inequalities, and how they are judged.

A claim is *held* when its inequality is true for the mean over seeds and for every single seed, *not held* when it is
true for neither the mean nor any seed, and *mixed* between the two. It is *not tested* where the scale is too small for
it or the run was cut short, and *missing* when the experiment never measured it: that is a fault of the experiment.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Relation = Literal["<=", ">=", "<", ">"]
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


class Status(StrEnum):
    """The five verdicts, in the words that reports use."""

    HELD = "held"
    MIXED = "mixed"
    NOT_HELD = "not held"
    NOT_TESTED = "not tested"
    MISSING = "missing"


@dataclass(frozen=True)
class Claim:
    """``measured`` (a number, one per seed) stands in ``relation`` to ``threshold``, or the ``sentence`` does not hold.

    ``place`` says where the paper states it. ``scales`` are those at which the claim can be expected to show.
    """

    id: str
    sentence: str
    measured: str
    relation: Relation
    threshold: float
    place: str
    scales: tuple[str, ...] = ("desk", "paper")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.\-]*", self.id):
            raise ValueError(f"claim id {self.id!r}: letters, digits, dots and dashes only")
        if self.relation not in _COMPARE:
            raise ValueError(f"claim {self.id}: relation {self.relation!r} is not one of {', '.join(_COMPARE)}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"claim {self.id}: the threshold must be a finite number")

    def true_for(self, value: float) -> bool:
        """Whether ``value`` satisfies the inequality; NaN never does."""
        return bool(_COMPARE[self.relation](value, self.threshold))


@dataclass(frozen=True)
class Verdict:
    """A claim together with what was measured, one number per seed, and why it was not tested (if so)."""

    claim: Claim
    status: Status
    values: Mapping[int, float]
    reason: str = ""

    @property
    def mean(self) -> float | None:
        """Mean over the seeds, None when nothing was measured."""
        return sum(self.values.values()) / len(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (n - 1 in the denominator), None with fewer than two."""
        mean = self.mean
        if mean is None or len(self.values) < 2:
            return None
        return math.sqrt(sum((v - mean) ** 2 for v in self.values.values()) / (len(self.values) - 1))

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``claims.json``."""
        return {
            "id": self.claim.id,
            "sentence": self.claim.sentence,
            "place": self.claim.place,
            "measured": self.claim.measured,
            "relation": self.claim.relation,
            "threshold": self.claim.threshold,
            "status": self.status.value,
            "mean": self.mean,
            "spread": self.spread,
            "values": {str(seed): value for seed, value in sorted(self.values.items())},
            "reason": self.reason,
        }


def judge(
    claim: Claim, scale: str, values: Mapping[int, float], seeds: Sequence[int], *, reason: str = "", ended: bool = True
) -> Verdict:
    """The verdict on ``claim``, given the values that the seeds measured.

    ``reason`` says why it cannot be tested in this run at all; ``ended`` is false while seeds are still missing, when a
    value that is not there yet is no fault.
    """
    if not reason and scale not in claim.scales:
        reason = f"needs the scale {' or '.join(claim.scales)}"
    if reason:
        return Verdict(claim, Status.NOT_TESTED, values, reason)
    absent = [seed for seed in seeds if seed not in values]
    if absent and not ended:
        return Verdict(claim, Status.NOT_TESTED, values, "the run has not come to its end")
    if absent:
        which = "any seed" if len(absent) == len(seeds) else f"seed {', '.join(map(str, absent))}"
        return Verdict(claim, Status.MISSING, values, f"never measured by {which}")
    # true in every seed means true in the mean, and false in every seed false in it: a half-line is convex
    answers = [claim.true_for(value) for value in values.values()]
    status = Status.HELD if all(answers) else Status.MIXED if any(answers) else Status.NOT_HELD
    return Verdict(claim, status, values)
