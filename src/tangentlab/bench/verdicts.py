"""Verdicts: what follows for a claim from the numbers that the seeds measured.

A claim with a number (the paper's or ours) is *held* when its inequality is true in every seed, *not held* when it is true
in none, and *mixed* between the two. A claim of a sign is *held* when the 95 % confidence interval of the mean over seeds
(Student's; of the logarithms where the neutral value is 1, a ratio) lies on the claimed side, *not held* when it lies on the
other, and *mixed* when the neutral value is inside. It is *not tested* where the scale is too small for it, the run was cut
short, a precondition was not met or one seed leaves no interval, and *missing* when the experiment never measured it: that
is a fault of the experiment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.special import stdtrit

from tangentlab.bench.claims import Claim, Status
from tangentlab.figures.format import number, relation

CONFIDENCE = 0.95


@dataclass
class Measured:
    """What the seeds measured: by claim or precondition and by seed, numbers and reasons why there is none."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    reasons: dict[str, dict[int, str]] = field(default_factory=dict)

    def add(self, name: str, seed: int, value: float | str) -> None:
        """A number, or the reason why there is none, in place of what stood there."""
        new, old = (self.reasons, self.values) if isinstance(value, str) else (self.values, self.reasons)
        new.setdefault(name, {})[seed] = value  # type: ignore[assignment]
        old.get(name, {}).pop(seed, None)

    def verdict(self, claim: Claim, scale: str, seeds: Sequence[int], **options: Any) -> Verdict:
        """The verdict on `claim`, without the seeds that were not tested or do not meet its preconditions.

        A precondition that a seed never measured is a fault of the experiment, as a claim that it never measured is.
        """
        left_out = dict(self.reasons.get(claim.id, {}))
        values = self.values.get(claim.id, {})
        for condition in claim.requires:
            for seed, value in self.values.get(condition.id, {}).items():
                if not condition.true_for(value):
                    needed = f"{relation(condition.relation)} {number(condition.threshold)}"
                    left_out[seed] = f"{condition.measured}: {number(value)}, needed {needed}"
            for seed, reason in self.reasons.get(condition.id, {}).items():
                left_out[seed] = reason
            known = self.values.get(condition.id, {}).keys() | left_out.keys()
            values = {seed: value for seed, value in values.items() if seed in known}
        return judge(claim, scale, values, seeds, left_out=left_out, **options)


@dataclass(frozen=True)
class Verdict:
    """A claim together with what was measured, one number per seed, and why it was not tested (if so).

    `left_out` says for which seeds it could not be tested, and why; `values` are those of the others.
    """

    claim: Claim
    status: Status
    values: Mapping[int, float]
    reason: str = ""
    left_out: Mapping[int, str] = field(default_factory=dict)
    interval: tuple[float, float] | None = None

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
        """Plain data for `claims.json`."""
        claim = self.claim
        return {
            "id": claim.id,
            "origin": claim.origin,
            "sentence": claim.sentence,
            "quote": claim.quote,
            "place": claim.place,
            "measured": claim.measured,
            "relation": claim.relation,
            "threshold": claim.threshold,
            "bound": claim.bound,
            "status": self.status.value,
            "mean": self.mean,
            "spread": self.spread,
            "interval": list(self.interval) if self.interval else None,
            "values": {str(seed): value for seed, value in sorted(self.values.items())},
            "reason": self.reason,
            "left_out": {str(seed): why for seed, why in sorted(self.left_out.items())},
            "requires": [one.__dict__ for one in claim.requires],
            "history": [change.__dict__ for change in claim.history],
        }


def interval(values: Sequence[float], ratio: bool = False) -> tuple[float, float] | None:
    """The confidence interval of the mean, of the geometric mean for a `ratio`; None where the values have no spread.

    That is with fewer than two of them, or where one is infinite, not a number, or a ratio that is not positive.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    if ratio and min(values) <= 0:
        return None
    terms = [math.log(value) for value in values] if ratio else list(values)
    mean = sum(terms) / len(terms)
    deviation = math.sqrt(sum((term - mean) ** 2 for term in terms) / (len(terms) - 1))
    half = float(stdtrit(len(terms) - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(len(terms))
    low, high = mean - half, mean + half
    return (math.exp(low), math.exp(high)) if ratio else (low, high)


def judge(
    claim: Claim,
    scale: str,
    values: Mapping[int, float],
    seeds: Sequence[int],
    *,
    reason: str = "",
    ended: bool = True,
    left_out: Mapping[int, str] | None = None,
    random: bool = True,
) -> Verdict:
    """The verdict on `claim`, given the values that the seeds measured.

    `reason` says why it cannot be tested in this run at all, `left_out` why single seeds cannot tell; `ended` is false
    while seeds are still missing, when a value that is not there yet is not a fault. Where nothing is `random`, one seed is
    all there is, and signs are judged like numbers.
    """
    left_out = dict(left_out or {})
    counted = {seed: value for seed, value in values.items() if seed not in left_out}
    if not reason and scale not in claim.scales:
        reason = f"needs the scale {' or '.join(claim.scales)}"
    if reason:
        return Verdict(claim, Status.NOT_TESTED, counted, reason, left_out)
    absent = [seed for seed in seeds if seed not in counted and seed not in left_out]
    if absent and not ended:
        return Verdict(claim, Status.NOT_TESTED, counted, "the run has not come to its end", left_out)
    if absent:
        which = "any seed" if len(absent) == len(seeds) else f"seed {', '.join(map(str, absent))}"
        return Verdict(claim, Status.MISSING, counted, f"never measured by {which}", left_out)
    why = "; ".join(dict.fromkeys(left_out.values()))
    if not counted:
        return Verdict(claim, Status.NOT_TESTED, counted, why, left_out)
    if claim.bound == "sign" and random:
        return _by_sign(claim, counted, left_out)
    return Verdict(claim, _by_seeds(claim, counted), counted, "", left_out)


def _by_seeds(claim: Claim, values: Mapping[int, float]) -> Status:
    # true in every seed means true in the mean, and false in every seed false in it: a half-line is convex
    answers = [claim.true_for(value) for value in values.values()]
    return Status.HELD if all(answers) else Status.MIXED if any(answers) else Status.NOT_HELD


def _by_sign(claim: Claim, values: Mapping[int, float], left_out: Mapping[int, str]) -> Verdict:
    if len(values) == 1:
        (value,) = values.values()
        side = "on the claimed side" if claim.true_for(value) else "not on the claimed side"
        reason = f"one seed leaves no interval; its value is {side}"
        return Verdict(claim, Status.NOT_TESTED, values, reason, left_out)
    found = interval(list(values.values()), ratio=claim.threshold == 1)
    if found is None:  # infinite or not a number: beyond any interval
        return Verdict(claim, _by_seeds(claim, values), values, "", left_out)
    ends = [claim.true_for(end) for end in found]
    status = Status.HELD if all(ends) else Status.MIXED if any(ends) else Status.NOT_HELD
    return Verdict(claim, status, values, "", left_out, found)
