"""`claims.json`: what a run asked, what it found and where the numbers come from, as plain data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.figures.format import ORIGINS, STATUSES
from tangentlab.files import write_atomically
from tangentlab.plain import plain

if TYPE_CHECKING:
    from tangentlab.bench.experiment import Experiment
    from tangentlab.bench.results import Results
    from tangentlab.bench.verdicts import Verdict

_CLAIM_OF_EARLIER_VERSIONS: dict[str, Any] = {
    "origin": "ours",
    "quote": "",
    "bound": "ours",
    "interval": None,
    "left_out": {},
    "requires": [],
    "history": [],
}


def description(experiment: Experiment, scale: str) -> dict[str, Any]:
    """What the experiment says of itself."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "chapter": experiment.chapter.value,
        "place": experiment.place,
        "question": experiment.question,
        "scale": scale,
        "note": experiment.notes.get(scale, ""),
    }


def outcome(experiment: Experiment, verdicts: Sequence[Verdict], conditions: dict[str, Any]) -> dict[str, Any]:
    """What was found: verdicts, what was measured of the preconditions, and the claims that were given up."""
    return {
        "claims": [verdict.to_json() for verdict in verdicts],
        "conditions": conditions,
        "retired": [
            {"id": claim.id, "origin": claim.origin, "sentence": claim.sentence, "why": claim.retired}
            for claim in experiment.claims
            if claim.retired
        ],
    }


def write_summary(results: Results, verdicts: Sequence[Verdict], failed: Sequence[int], problem: str) -> None:
    """Write the summary of a run: reports, the gallery and the page of claims are made from it and the figures."""
    experiment, config = results.experiment, results.config
    seconds = results.seconds()
    content = {
        **description(experiment, config.scale),
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
        "metrics": "kept",
        **outcome(experiment, verdicts, results.conditions()),
    }
    dump_summary(results.folder.path, content)


def dump_summary(folder: Path, content: dict[str, Any]) -> None:
    """Write `claims.json`."""
    write_atomically(folder / "claims.json", json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n")


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary in a run's folder, None when it has none (or half of one)."""
    try:
        content = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return None
    if not isinstance(content, dict) or "experiment" not in content:
        return None
    content = {"metrics": "not kept", "conditions": {}, "retired": [], **content}
    content["claims"] = [{**_CLAIM_OF_EARLIER_VERSIONS, **claim} for claim in content.get("claims", [])]
    return content


def count_by_origin(summaries: Iterable[dict[str, Any]]) -> list[tuple[str, list[tuple[str, int]]]]:
    """`(origin, [(status, how many)])`: the claims of the paper and those of ours, each in the order of the statuses."""
    claims = [claim for summary in summaries for claim in summary["claims"]]
    counts = Counter((claim["origin"], claim["status"]) for claim in claims)
    found = [
        (origin, [(status, counts[origin, status]) for status in STATUSES if counts[origin, status]])
        for origin in ORIGINS
    ]
    return [(origin, numbers) for origin, numbers in found if numbers]
