"""What may not change in silence: claims that have a committed result keep their rule, or say what it was and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tangentlab.bench.claims import Claim, rule_of
from tangentlab.bench.summary import read_summary

COMMITTED = Path(__file__).resolve().parents[3] / "results" / "desk"
"""The results of the source tree; an installed package has none beside it."""


def unexplained(claims: Sequence[Claim], committed: Mapping[str, Any]) -> list[str]:
    """What differs from a committed result without a line of history, one sentence each."""
    found = []
    today = {claim.id: claim for claim in claims}
    for was in committed["claims"]:
        claim = today.get(was["id"])
        if claim is None:
            found.append(f"{was['id']} is gone: keep its row, with the reason as `retired`")
            continue
        lines = [(line["date"], line["was"], line["why"]) for line in was["history"]]
        known = [(line.date, line.was, line.why) for line in claim.history]
        if known[: len(lines)] != lines:
            found.append(f"{claim.id}: lines of its history are gone or were changed")
        elif claim.rule() != rule_of(was) and len(known) == len(lines) and not claim.retired:
            found.append(
                f"{claim.id}: its origin, quantity, threshold, rule or precondition is another one, and its history does "
                "not say why"
            )
    found += [
        f"{one['id']}: it was given up, and its row is gone" for one in committed["retired"] if one["id"] not in today
    ]
    return found


def refuse_silent_changes(name: str, claims: Sequence[Claim], results: Path = COMMITTED) -> None:
    """Raise when claims of the experiment differ from its committed result and do not say why."""
    committed = read_summary(results / name)
    if committed is not None and (faults := unexplained(claims, committed)):
        raise TypeError(f"{name}: claims were changed after their result. {'; '.join(faults)}.")
