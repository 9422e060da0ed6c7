"""The figures of a trial: how many cases ended how, by operation and by kind of block."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import tangentlab

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "trial" / "generated.json"
PAGE = ROOT / "docs" / "models.md"
OUTCOMES = (
    "exact",
    "refused",
    "silent error",
    "foreign exception",
    "needless refusal",
    "model changed",
    "crash",
    "endless",
)


def summarized(outcomes: Iterable[dict[str, Any]], seed: int, sources: str) -> dict[str, Any]:
    """Counts, without anything about the machine but its kind."""
    found = list(outcomes)
    seconds = sum(one["seconds"] for one in found)
    return {
        "cases": len(found),
        "seed": seed,
        "sources": sources,
        "tangentlab": tangentlab.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": round(seconds, 1),
        "milliseconds per case": round(1000 * seconds / max(len(found), 1), 1),
        "outcomes": _counts(found),
        "operations": {
            name: _counts(o for o in found if o["operation"] == name) for name in _names(found, "operation")
        },
        "blocks": {kind: _counts(o for o in found if kind in o["kinds"]) for kind in _names(found, "kinds")},
        "types": {name: _counts(o for o in found if o.get("dtype") == name) for name in _names(found, "dtype")},
        "data": {name: _counts(o for o in found if o.get("form") == name) for name in _names(found, "form")},
        "refusals": dict(Counter(_reason(o) for o in found if o["outcome"] == "refused").most_common(40)),
        "failed at first, run again": [{"case": o["case"], "first": o["first"]} for o in found if "first" in o],
        "failures": [{key: o.get(key) for key in ("case", "outcome", "detail")} for o in found if _failed(o)][:100],
    }


def _failed(outcome: dict[str, Any]) -> bool:
    return outcome["outcome"] not in OUTCOMES[:2]


def _names(found: list[dict[str, Any]], key: str) -> list[str]:
    values = [o.get(key, "") for o in found]
    return sorted({name for value in values for name in (value if isinstance(value, list) else [value])})


def _counts(found: Iterable[dict[str, Any]]) -> dict[str, int]:
    counts = Counter(o["outcome"] for o in found)
    return {name: counts[name] for name in OUTCOMES if counts[name]}


def _reason(outcome: dict[str, Any]) -> str:
    """The first words of a refusal, without names and numbers."""
    words = outcome["detail"].split(":", 1)[-1].split("'")[0].split()
    return " ".join(word for word in words[:9] if not any(c.isdigit() for c in word))


def table(result: dict[str, Any]) -> str:
    """The part of docs/models.md."""
    total = result["cases"]
    bad = {name: result["outcomes"].get(name, 0) for name in OUTCOMES[2:]}
    hours = result["seconds"] / 3600
    lines = [
        f"{total:,} generated cases, seed {result['seed']}, torch {result['torch']}, {hours:.1f} hours of one core:",
        "",
        "| | cases | exact | refused in words | silently wrong | foreign exception | other |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, counts in {"all": result["outcomes"], **result["operations"]}.items():
        cells = [
            sum(counts.values()),
            *(counts.get(o, 0) for o in OUTCOMES[:4]),
            sum(counts.get(o, 0) for o in OUTCOMES[4:]),
        ]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    if mended := result["failed at first, run again"]:
        left = sum(bad.values())
        lines += [
            "",
            f"{len(mended)} of them failed at first and were run again on the mended code; {left} still fail.",
        ]
    lines += ["", f"Other: {', '.join(f'{count} {name}' for name, count in list(bad.items())[2:])}."]
    return "\n".join(lines)


def page(text: str, part: str, content: str) -> str:
    """The page with a part between its markers renewed."""
    start, end = f"<!-- {part}: start -->", f"<!-- {part}: end -->"
    before, rest = text.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n{content}\n{end}{after}"


def save(result: dict[str, Any]) -> None:
    """Result and page."""
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), "trial", table(result)))
