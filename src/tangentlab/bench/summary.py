"""``claims.json``: what a run asked, what it found and where the numbers come from, as plain data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.files import write_atomically
from tangentlab.plain import plain

if TYPE_CHECKING:
    from tangentlab.bench.claims import Verdict
    from tangentlab.bench.results import Results


def write_summary(results: Results, verdicts: Sequence[Verdict], failed: Sequence[int], problem: str) -> None:
    """Write the summary of a run: reports, the gallery and the page of claims are made from it and the figures."""
    experiment, config = results.experiment, results.config
    seconds = results.seconds()
    content = {
        "experiment": experiment.name,
        "title": experiment.title,
        "chapter": experiment.chapter.value,
        "place": experiment.place,
        "question": experiment.question,
        "scale": config.scale,
        "note": experiment.notes.get(config.scale, ""),
        "status": "failed" if failed else ("complete" if results.complete else "partial"),
        "problem": problem,
        "seeds": list(config.seeds),
        "failed_seeds": list(failed),
        "stand_ins": results.stand_ins(),
        "data": results.data(),
        "max_steps": config.max_steps,
        "seconds": round(sum(seconds), 1),
        "seconds_longest_seed": round(max(seconds, default=0.0), 1),
        "memory_mb": results.memory_mb(),
        "parameters": experiment.parameters(),
        "changed": experiment.changed_from(config.scale),
        "provenance": config.provenance,
        "claims": [verdict.to_json() for verdict in verdicts],
    }
    write_atomically(results.folder.claims_file, json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n")


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary in a run's folder, None when it has none (or half of one)."""
    try:
        content = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return None
    return content if isinstance(content, dict) and "experiment" in content else None
