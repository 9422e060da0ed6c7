"""The gallery: every experiment with its first figure, its verdicts, its page, and a filter by chapter."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tangentlab.bench.page import render_report
from tangentlab.bench.summary import count_by_origin, read_summary
from tangentlab.figures.format import chapter_order
from tangentlab.figures.pages import environment, figures_of
from tangentlab.files import write_atomically


def write_gallery(folders: Iterable[Path], target: Path) -> int:
    """Write the gallery of the newest run of every experiment into `target`; returns how many it shows.

    A run without a page of its own (committed results are claims and figures only) gets one beside the gallery.
    `folders` are ordered from old to new; of one experiment the last complete run counts, or the last one at all.
    """
    cards = [_card(folder, summary, target) for folder, summary in newest(folders)]
    chapters = sorted({card["chapter"] for card in cards}, key=chapter_order)
    cards.sort(key=lambda card: (chapter_order(card["chapter"]), card["run"]["title"]))
    for position, card in enumerate(cards):
        figures = figures_of(card["folder"], f"card-{position}")
        card["thumbnail"] = figures[0]["svg"] if figures else None
    totals = count_by_origin(card["run"] for card in cards)
    page = environment().get_template("gallery.html.j2").render(cards=cards, chapters=chapters, totals=totals)
    write_atomically(target, page)
    return len(cards)


def newest(folders: Iterable[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """The run of each experiment that represents it, with its summary."""
    chosen: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        summary = read_summary(folder)
        if summary is None:
            continue
        before = chosen.get(summary["experiment"])
        if before is None or summary["status"] == "complete" or before[1]["status"] != "complete":
            chosen[summary["experiment"]] = (folder, summary)
    return list(chosen.values())


def _card(folder: Path, summary: dict[str, Any], target: Path) -> dict[str, Any]:
    report = folder / "report.html"
    if not report.exists():
        report = target.parent / f"{Path(summary['experiment']).name}.html"
        write_atomically(report, render_report(folder))
    return {
        "folder": folder,
        "run": summary,
        "chapter": summary["chapter"],
        "link": Path(os.path.relpath(report, target.parent)).as_posix(),
        "question": asked(summary["question"]),
        "counts": count_by_origin([summary]),
    }


def asked(question: str) -> str:
    """The sentence that asks, or the first one when none does."""
    sentences = re.split(r"(?<=[.?!])\s+", " ".join(question.split()))
    return next((sentence for sentence in sentences if sentence.endswith("?")), sentences[0])
