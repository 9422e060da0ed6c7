"""What was found so far, one line per case: a trial that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ("src/tangentlab", "tests/trial")


def fingerprint() -> str:
    """Of the library and of the trial as they are now."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Journal:
    """Lines of JSON: a head that says which trial of which sources it is, then an outcome per case.

    `again`: the sources have changed since, and what failed is run again; the new outcome keeps what the first one was.
    """

    def __init__(self, path: Path, seed: int, again: bool = False) -> None:
        self.path, self.head = path, {"seed": seed, "sources": fingerprint()}
        self.done: dict[int, dict[str, Any]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        if again and lines:
            self.head = json.loads(lines[0])
        if lines and json.loads(lines[0]) == self.head:
            for line in lines[1:]:
                try:
                    one = json.loads(line)
                except json.JSONDecodeError:  # the line that was being written when the trial was stopped
                    continue
                self.done[one["case"]] = one
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.head) + "\n")

    def add(self, case: int, outcome: dict[str, Any]) -> None:
        """Keep an outcome; records only of failures, any case can be had again from its number."""
        kept = {key: value for key, value in outcome.items() if key != "record" or outcome["outcome"] in _KEPT}
        if case in self.done:
            kept["first"] = self.done[case].get("first") or f"{self.done[case]['outcome']}: {self.done[case]['detail']}"
        self.done[case] = {"case": case, **kept}
        with self.path.open("a") as file:
            file.write(json.dumps(self.done[case]) + "\n")


_KEPT = ("silent error", "foreign exception", "needless refusal", "model changed", "crash", "endless")
