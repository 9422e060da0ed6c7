"""``docs/claims.md``: every claim that was put to the test at desk scale, made from ``results/desk`` alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tangentlab.bench.summary import read_summary
from tangentlab.figures.format import SIGNS, STATUSES, chapter_order, duration, number, relation
from tangentlab.files import write_atomically

RESULTS, PAGE = Path("results/desk"), Path("docs/claims.md")

_HEAD = """# Claims

What the papers say, and what was measured. A claim is a sentence turned into an inequality whose threshold was fixed
before the first run. *Held* means true in the mean and in every seed, *not held* true in neither, *mixed* between the
two. A claim that does not hold stays here, with what was measured.

Everything below was run at the desk scale (minutes of one core; an hour or two for the races of optimizers); under each
experiment stands what is smaller than in the paper. Figures and full configurations lie in `results/desk/`:
`tangentlab gallery results/desk --open` shows them, with a page for every experiment. This page is written by
`python -m tangentlab.bench.publish`.
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
    header = ["experiment", *STATUSES[:4], "computing"]
    lines = [_row(header), _row(["---", *["---:"] * 5])]
    for summary in summaries:
        counts = [sum(claim["status"] == status for claim in summary["claims"]) for status in STATUSES[:4]]
        link = f"[{summary['experiment']}](#{summary['experiment']})"
        lines.append(_row([link, *(str(count or "") for count in counts), duration(summary["seconds"])]))
    return "\n".join(lines) + "\n"


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
    lines += [_claim_row(claim) for claim in summary["claims"]]
    return "\n".join(lines) + "\n"


def _claim_row(claim: dict[str, Any]) -> str:
    measured = number(claim["mean"])
    if claim["spread"] is not None:
        measured += f" ± {number(claim['spread'], 2)}"
    measured += f": {cell(claim['measured'])}"
    if claim["reason"]:
        measured += f" ({cell(claim['reason'])})"
    bound = f"{relation(claim['relation'])} {number(claim['threshold'])}"
    verdict = f"{SIGNS[claim['status']]} {claim['status']}"
    return _row([verdict, f"{cell(claim['sentence'])} `{claim['id']}`", cell(claim["place"]), measured, cell(bound)])


def cell(text: str) -> str:
    """Text that cannot break out of a table cell or be read as markup."""
    return re.sub(r"([\\|<>*_`\[\]])", r"\\\1", " ".join(text.split()))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
