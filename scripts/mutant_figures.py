"""What the mutation tester found, in figures, and the faults that are left out because they change no result."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from scripts.mutants import Mutant

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.yaml")
PLACE = Path(__file__).parent.parent / "results" / "trial" / "mutants.json"


def equivalents() -> dict[str, list[dict[str, str]]]:
    """The faults listed by hand as changing no result, by kind: {path, function, statement, change, reason}."""
    return yaml.safe_load(EQUIVALENT.read_text()) or {}


def kind_of(mutant: Mutant, listed: dict[str, list[dict[str, str]]]) -> str | None:
    """The kind under which a fault is listed as changing no result, if it is."""
    for kind, entries in listed.items():
        for entry in entries:
            if all(_fits(getattr(mutant, name), pattern) for name, pattern in entry.items() if name != "reason"):
                return kind
    return None


def _fits(text: str, pattern: str) -> bool:
    return text == pattern or fnmatchcase(text, pattern.replace("[", "[[]"))


def figures(
    seed: int, judged: list[Mutant], verdicts: dict[str, dict[str, Any]], left_out: list[tuple[Mutant, str]]
) -> dict[str, Any]:
    """Counts by package, the survivors, and what was left out in the same random order."""
    counts: dict[str, Counter[str]] = {}
    for mutant in judged:
        verdict = "survived" if verdicts[mutant.key]["verdict"] == "survived" else "killed"
        counts.setdefault(_package(mutant), Counter())[verdict] += 1
    for mutant, kind in left_out:
        counts.setdefault(_package(mutant), Counter())[kind] += 1
    total = sum(counts.values(), Counter[str]())
    return {
        "seed": seed,
        "killed": f"{total['killed'] / len(judged):.1%}",
        "all": dict(total),
        "packages": {name: dict(counts[name]) for name in sorted(counts)},
        "survivors": [one.key for one in judged if verdicts[one.key]["verdict"] == "survived"],
        "left out": [one.key for one, _ in left_out],
    }


def _package(mutant: Mutant) -> str:
    return mutant.path.split("/")[0]


def table(found: dict[str, Any]) -> str:
    """The counts in Markdown."""
    kinds = sorted(set(found["all"]) - {"killed", "survived"})
    rows = [f"| package | mutants | killed | survived | {' | '.join(f'left out: {kind}' for kind in kinds)} |"]
    rows.append("|---" * (4 + len(kinds)) + "|")
    for name, one in [*found["packages"].items(), ("all", found["all"])]:
        killed, survived = one.get("killed", 0), one.get("survived", 0)
        cells = [name, killed + survived, killed, survived, *(one.get(kind, 0) for kind in kinds)]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)
