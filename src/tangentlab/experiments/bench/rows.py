"""``metrics.jsonl``: one JSON object per line, appended in one write each and never changed.

Row number ``row`` of seed ``seed`` is written once. A resumed seed repeats its computation from the last checkpoint
and produces some rows again; those are on disk already and are passed over, so the file of a run that was killed and
resumed holds the same rows as that of a run that was left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tangentlab.files import write_atomically
from tangentlab.plain import plain, restored

RESERVED = frozenset({"seed", "row", "table"})

Row = dict[str, Any]


class RowWriter:
    """Appends the rows of one seed; the first ``on_disk`` of them are known to be there and are passed over."""

    def __init__(self, path: Path, seed: int, on_disk: int) -> None:
        self._seed, self._on_disk = seed, on_disk
        self.count = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    @property
    def on_disk(self) -> int:
        """How many rows of this seed the file holds."""
        return max(self._on_disk, self.count)

    def append(self, table: str, values: Mapping[str, Any]) -> None:
        """Write one row (unless it is on disk already) and hand it to the operating system at once."""
        if clash := RESERVED & values.keys():
            raise ValueError(f"the columns {sorted(clash)} belong to the bench")
        row = {"seed": self._seed, "row": self.count, "table": table, **{k: plain(v) for k, v in values.items()}}
        if self.count >= self._on_disk:
            line = (json.dumps(row, allow_nan=False) + "\n").encode()
            # one write per line: the seeds of a run append to the same file from several processes
            if os.write(self._file, line) != len(line):
                raise OSError("the disk took only a part of a metrics row; is it full?")
        self.count += 1

    def sync(self) -> None:
        """Wait until the rows are on the disk itself."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_rows(path: Path) -> list[Row]:
    """The valid rows of a metrics file: for each seed the longest run 0, 1, 2, ... of intact lines.

    An unfinished last line (of a process that was killed) or a damaged one is left out, and so is what follows it in
    the same seed.
    """
    if not path.exists():
        return []
    kept: list[Row] = []
    counts: dict[int, int] = {}
    for line in path.read_bytes().split(b"\n"):
        row = _parsed(line)
        if row is not None and row["row"] == counts.get(row["seed"], 0):
            counts[row["seed"]] = row["row"] + 1
            kept.append(row)
    return [{key: restored(value) for key, value in row.items()} for row in kept]


def repair(path: Path) -> None:
    """Make the file hold exactly its valid rows; only done while nobody else writes."""
    rows = read_rows(path)
    content = dump_rows(rows)
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != content:
        write_atomically(path, content)


def dump_rows(rows: Iterable[Row]) -> str:
    """Rows as the text of a metrics file."""
    return "".join(json.dumps(plain(row), allow_nan=False) + "\n" for row in rows)


def count_rows(rows: Iterable[Row], seed: int) -> int:
    """How many of ``rows`` belong to ``seed``."""
    return sum(row["seed"] == seed for row in rows)


def _parsed(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    valid = isinstance(row, dict) and isinstance(row.get("row"), int) and isinstance(row.get("seed"), int)
    return row if valid and isinstance(row.get("table"), str) else None
