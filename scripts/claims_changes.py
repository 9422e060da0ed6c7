"""What became of the claims since a commit: `python scripts/claims_changes.py COMMIT` writes `docs/claims-changes.md`.

Compared are the committed desk results of then (`git show`) with those of the working tree: claims that were given up, added,
reworded, given another quantity, rule or place, and verdicts that are others now; and the tallies of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tangentlab.bench.claims_page import cell
from tangentlab.bench.judging import rule
from tangentlab.bench.summary import read_summary
from tangentlab.figures.format import ORIGINS, OWNERS, STATUSES, chapter_order

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = Path("results/desk"), Path("docs/claims-changes.md")
Summaries = Mapping[str, Mapping[str, Any]]

_HEAD = """# How the claims changed

Every claim of the desk results of commit `{commit}` that is another one now, and every one that came since: its words, its
place, its quantity, its rule or its verdict, with the reason. Claims that are not listed are as they were. Values that differ
because an experiment was run again are not listed; verdicts are. [Claims](claims.md) has them all as they are now. This page is
written by `python scripts/claims_changes.py {commit}`.
"""


def summaries_of(commit: str) -> dict[str, dict[str, Any]]:
    """The summaries that were committed then, by experiment."""
    names = _git("ls-tree", "-r", "--name-only", commit, str(RESULTS)).splitlines()
    files = [name for name in names if name.endswith("/claims.json")]
    return {Path(name).parent.name: json.loads(_git("show", f"{commit}:{name}")) for name in files}


def summaries_now(results: Path = ROOT / RESULTS) -> dict[str, dict[str, Any]]:
    """The summaries of the working tree, by experiment."""
    found = {folder.name: read_summary(folder) for folder in sorted(results.iterdir())}
    return {name: summary for name, summary in found.items() if summary is not None}


def render(commit: str, before: Summaries, after: Summaries) -> str:
    """The page."""
    parts = [_HEAD.format(commit=commit), tallies(before, after)]
    order = sorted(after, key=lambda name: (chapter_order(after[name]["chapter"]), name))
    for name in order:
        old = {claim["id"]: claim for claim in before.get(name, {"claims": []})["claims"]}
        lines = changed(old, after[name])
        if lines:
            parts.append(f"## {name}\n\n" + "\n".join(f"* {line}" for line in lines) + "\n")
    return "\n".join(parts)


def tallies(before: Summaries, after: Summaries) -> str:
    """How many claims had which verdict, then and now; those of then have the origin that they have now."""
    new = {claim["id"]: claim for summary in after.values() for claim in summary["claims"]}
    gone = {one["id"]: one for summary in after.values() for one in summary["retired"]}
    old = {claim["id"]: claim for summary in before.values() for claim in summary["claims"]}
    origins = {name: claim["origin"] for name, claim in {**gone, **new}.items()}
    then = Counter((origins.get(name, "ours"), claim["status"]) for name, claim in old.items())
    now = Counter((claim["origin"], claim["status"]) for name, claim in new.items() if name in old)
    whole = Counter((claim["origin"], claim["status"]) for claim in new.values())
    lines = [_row(["claims", *STATUSES[:4], "in all"]), _row(["---", *["---:"] * 5])]
    for title, counts in (("then", then), ("the same claims now", now), ("all claims now", whole)):
        for origin in ORIGINS:
            numbers = [counts[origin, status] for status in STATUSES[:4]]
            lines.append(_row([f"{title}, {OWNERS[origin]}", *map(str, numbers), str(sum(numbers))]))
    return "\n".join(lines) + "\n"


def changed(old: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]) -> list[str]:
    """One line for every claim of an experiment that is not as it was."""
    lines = [
        f"`{one['id']}` is given up: {cell(one['sentence'])} {cell(one['why'])}"
        for one in summary["retired"]
        if one["id"] in old
    ]
    for claim in summary["claims"]:
        was = old.get(claim["id"])
        if was is None:
            lines.append(f"`{claim['id']}` is new ({claim['origin']}): {cell(claim['sentence'])} {claim['status']}.")
        elif parts := _differences(was, claim):
            known = len(was.get("history", []))
            why = " ".join(dict.fromkeys(cell(one["why"]) for one in claim["history"][known:]))
            lines.append(f"`{claim['id']}` ({claim['origin']}): {'; '.join(parts)}.{f' {why}' if why else ''}")
    return lines


def _differences(was: Mapping[str, Any], claim: Mapping[str, Any]) -> list[str]:
    """What differs between a claim of then and the same one now, in words."""
    was = {"bound": "ours", "origin": claim["origin"], **was}
    found = []
    if was["origin"] != claim["origin"]:
        found.append(f"a claim {OWNERS[was['origin']]} before")
    if was["sentence"] != claim["sentence"]:
        found.append(f"reworded from “{cell(was['sentence'])}” to “{cell(claim['sentence'])}”")
    if was["place"] != claim["place"]:
        found.append(f"its place was {cell(was['place'])} and is {cell(claim['place'])}")
    if was["measured"] != claim["measured"]:
        found.append(f"another quantity, {cell(was['measured'])} before and {cell(claim['measured'])} now")
    if _inequality(was) != _inequality(claim):
        found.append(f"{cell(_inequality(was))} before, {cell(_inequality(claim))} now")
    if was["status"] != claim["status"]:
        reason = f" ({cell(claim['reason'])})" if claim["reason"] else ""
        found.append(f"{was['status']} before, {claim['status']} now{reason}")
    return found


def _inequality(claim: Mapping[str, Any]) -> str:
    return rule(claim).removesuffix(f" ({claim['measured']})")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    (start,) = sys.argv[1:]
    (ROOT / PAGE).write_text(render(start, summaries_of(start), summaries_now()), encoding="utf-8")
    print(PAGE)
