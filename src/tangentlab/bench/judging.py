"""Judging a result again: verdicts and figures from what was kept of it, in seconds, and what has changed.

Where the metrics were kept (`tangentlab.bench.kept`), or lie in the run's own folder, everything follows from them. Where only
`claims.json` is left, its numbers are judged by today's rules: a claim whose quantity is another one now cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tangentlab.bench.claims import Claim, Status
from tangentlab.bench.errors import RunError
from tangentlab.bench.experiment import Experiment
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.runner import redraw
from tangentlab.bench.summary import description, dump_summary, outcome, read_summary
from tangentlab.bench.trend import draw_trends
from tangentlab.bench.verdicts import Measured, Verdict
from tangentlab.plain import restored

NOT_KEPT = "metrics not kept"


@dataclass(frozen=True)
class Judged:
    """A result that was judged again: `changes` says what is not as it was, one sentence each."""

    folder: Path
    verdicts: list[Verdict]
    changes: list[str]
    kept: bool


def judge_again(folder: RunFolder) -> Judged:
    """Judge and draw again what the folder holds, and write it there."""
    before = read_summary(folder.path)
    kept = folder.metrics_file.exists() or folder.published
    if kept:
        verdicts = redraw(folder)
    elif before is not None:
        verdicts = _from_summary(folder, before)
    else:
        raise RunError(f"{folder.path} holds neither metrics nor claims.json: there is nothing to judge.")
    draw_trends(folder.path)
    after = read_summary(folder.path)
    assert after is not None
    return Judged(folder.path, verdicts, changes(before or {"claims": []}, after), kept)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is not as it was, in words: verdicts, rules, values, claims that came and went."""
    old = {claim["id"]: claim for claim in before["claims"]}
    new = {claim["id"]: claim for claim in after["claims"]}
    why = {one["id"]: one["why"] for one in after.get("retired", [])}
    found = [f"{name} is given up: {why.get(name, 'no reason is stated')}" for name in old if name not in new]
    for name, claim in new.items():
        if name not in old:
            found.append(f"{name} is new: {claim['status']}")
            continue
        was = old[name]
        if was["status"] != claim["status"]:
            found.append(f"{name}: {was['status']} before, {claim['status']} now")
        if any(was[key] != claim[key] for key in ("measured", "relation", "threshold", "bound")):
            found.append(f"{name}: its rule was {rule(was)}, and is {rule(claim)}")
        if was["values"] != claim["values"] and was["measured"] == claim["measured"]:
            found.append(f"{name}: other values")
    return found


def rule(claim: Mapping[str, Any]) -> str:
    """`> 0 by its interval`, `>= 0.9 in every seed`."""
    how = "by its interval" if claim["bound"] == "sign" else "in every seed"
    return f"{claim['relation']} {claim['threshold']:g} {how} ({claim['measured']})"


def _from_summary(folder: RunFolder, before: dict[str, Any]) -> list[Verdict]:
    experiment = folder.config().build()
    measured = _measured(before)
    claims = {claim["id"]: claim for claim in before["claims"]}
    verdicts = [
        _verdict(claim, claims.get(claim.id), measured, experiment, before)
        for claim in experiment.claims
        if not claim.retired
    ]
    ids = {condition.id for claim in experiment.claims for condition in claim.requires}
    conditions = {name: measured.values[name] for name in sorted(ids & measured.values.keys())}
    found = outcome(experiment, verdicts, conditions)
    dump_summary(folder.path, {**before, **description(experiment, before["scale"]), "metrics": "not kept", **found})
    return verdicts


def _measured(summary: Mapping[str, Any]) -> Measured:
    """The numbers in a summary, and why seeds have none."""
    found = Measured()
    for name, values in summary["conditions"].items():
        for seed, value in values.items():
            found.add(name, int(seed), float(restored(value)))
    for claim in summary["claims"]:
        for seed, value in claim["values"].items():
            found.add(claim["id"], int(seed), float(restored(value)))
        for seed, reason in claim["left_out"].items():
            found.add(claim["id"], int(seed), reason)
        if claim["status"] == Status.NOT_TESTED and not claim["left_out"]:
            for seed in summary["seeds"]:
                if str(seed) not in claim["values"]:
                    found.add(claim["id"], seed, claim["reason"])
    return found


def _verdict(
    claim: Claim, was: Mapping[str, Any] | None, measured: Measured, experiment: Experiment, summary: Mapping[str, Any]
) -> Verdict:
    if was is None or was["measured"] != claim.measured or was["reason"].startswith(NOT_KEPT):
        reason = f"{NOT_KEPT}: the run has to be made again to measure it"
        return Verdict(claim, Status.NOT_TESTED, {}, reason)
    unknown = [one.measured for one in claim.requires if one.id not in measured.values]
    if unknown:
        return Verdict(claim, Status.NOT_TESTED, measured.values.get(claim.id, {}), f"{NOT_KEPT}: {'; '.join(unknown)}")
    return measured.verdict(claim, summary["scale"], summary["seeds"], random=experiment.random)
