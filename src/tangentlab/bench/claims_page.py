"""`docs/claims.md`: every claim that was put to the test at desk scale, made from `results/desk` alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tangentlab.bench.summary import read_summary
from tangentlab.figures.format import (
    ORIGINS,
    OWNERS,
    SIGNS,
    STATUSES,
    bound,
    bound_owner,
    chapter_order,
    duration,
    interval,
    left_out,
    measured,
)
from tangentlab.files import write_atomically

RESULTS, PAGE = Path("results/desk"), Path("docs/claims.md")

_HEAD = """# Claims

What the papers say, what we say, and what was measured. A claim of the *paper* has the few words it comes from; everything
else is *ours*, and is counted apart. A claim is held to the paper's number where it has one. Where it has words
("increases", "earlier", "worse"), the claim is the *sign*: the 95 % confidence interval of the mean over seeds has to lie on
the claimed side, and the size is reported, not demanded. A number that is in no paper is called *our number*.

*Held*, *not held*, *mixed*: a number is met in all seeds, in none, or in some; an interval lies on the claimed side, on the
other, or on both. *Not tested* has its reason: one seed leaves no interval, a network that did not learn tells nothing.
A claim that does not hold stays here, and one that was changed after a first result says what it was.

Everything below was run at the desk scale (minutes of one core; an hour or two for the races of optimizers); under each
experiment stands what is smaller than in the paper. Figures and full configurations lie in `results/desk/`:
`tangentlab gallery results/desk --open` shows them, with a page for every experiment. This page is written by
`python -m tangentlab.bench.publish`; `tangentlab judge --all` judges everything again.
"""


def write_claims_page(results: Path, page: Path) -> None:
    """Write the page; the same results give the same text."""
    write_atomically(page, render_claims_page(results))


def render_claims_page(results: Path) -> str:
    """The page as Markdown."""
    found = (
        (read_summary(folder) for folder in sorted(results.iterdir()) if folder.is_dir()) if results.exists() else ()
    )
    summaries = [summary for summary in found if summary is not None]
    summaries.sort(key=lambda summary: (chapter_order(summary["chapter"]), summary["experiment"]))
    parts = [_HEAD, _overview(summaries)]
    chapter = None
    for summary in summaries:
        if summary["chapter"] != chapter:
            chapter = summary["chapter"]
            parts.append(f"## {cell(chapter)}\n")
        parts.append(_section(summary))
    return "\n".join(parts)


def _overview(summaries: list[dict[str, Any]]) -> str:
    header = ["experiment", *(f"{status}" for status in STATUSES[:4]), "ours", "computing", "metrics"]
    lines = [_row(header), _row(["---", *["---:"] * 5, "---:", "---"])]
    for summary in summaries:
        counts = [_tally(summary["claims"], "paper", status) for status in STATUSES[:4]]
        ours = [f"{_tally(summary['claims'], 'ours', status)} {status}" for status in STATUSES[:4]]
        apart = ", ".join(text for text in ours if not text.startswith("0 "))
        link = f"[{summary['experiment']}](#{summary['experiment']})"
        facts = [apart, duration(summary["seconds"]), summary["metrics"]]
        lines.append(_row([link, *(str(count or "") for count in counts), *facts]))
    return _totals(summaries) + "\n" + "\n".join(lines) + "\n"


def _totals(summaries: list[dict[str, Any]]) -> str:
    claims = [claim for summary in summaries for claim in summary["claims"]]
    lines = [_row(["claims", *STATUSES[:4], "in all"]), _row(["---", *["---:"] * 5])]
    for origin in ORIGINS:
        counts = [_tally(claims, origin, status) for status in STATUSES[:4]]
        lines.append(_row([OWNERS[origin], *map(str, counts), str(sum(counts))]))
    return "\n".join(lines) + "\n"


def _tally(claims: list[dict[str, Any]], origin: str, status: str) -> int:
    return sum((claim["origin"], claim["status"]) == (origin, status) for claim in claims)


def _section(summary: dict[str, Any]) -> str:
    seeds = len(summary["seeds"])
    facts = f"{cell(summary['title'])} ({cell(summary['place'])}). {seeds} seed{'s' if seeds != 1 else ''}, "
    facts += f"{duration(summary['seconds'])} of computing, commit `{cell(summary['provenance']['commit'])}`."
    if summary["note"]:
        note = cell(summary["note"])
        facts += f" {note[:1].upper()}{note[1:]}"
        facts += "" if note.endswith(".") else "."
    lines = [f"### {summary['experiment']}\n", f"{facts}\n"]
    lines += [_row(["verdict", "claim", "place", "measured", "holds if"]), _row(["---"] * 5)]
    lines += [_claim_row(claim) for origin in ORIGINS for claim in summary["claims"] if claim["origin"] == origin]
    if summary["retired"]:
        gone = "; ".join(f"`{one['id']}` {cell(one['sentence'])} ({cell(one['why'])})" for one in summary["retired"])
        lines.append(f"\nGiven up: {gone}.")
    return "\n".join(lines) + "\n"


def _claim_row(claim: dict[str, Any]) -> str:
    found = measured(claim)
    if claim["interval"]:
        found += f" (interval {interval(claim)})"
    found += f": {cell(claim['measured'])}"
    for reason in filter(None, (claim["reason"], left_out(claim))):
        found += f" ({cell(reason)})"
    verdict = f"{SIGNS[claim['status']]} {claim['status']}"
    quote = f" “{cell(claim['quote'])}”" if claim["quote"] else " *ours*"
    changed = "".join(
        f"<br>Changed {one['date']}: it was {cell(one['was'])}. {cell(one['why'])}" for one in claim["history"]
    )
    sentence = f"{cell(claim['sentence'])}{quote} `{claim['id']}`{changed}"
    return _row([verdict, sentence, cell(claim["place"]), found, f"{cell(bound(claim))}, {bound_owner(claim)}"])


def cell(text: str) -> str:
    """Text that cannot break out of a table cell or be read as markup."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(text.split()))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
