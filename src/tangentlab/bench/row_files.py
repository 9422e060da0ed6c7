"""`metrics.jsonl`: one JSON object per line, appended in one write each and never changed, with its checksum.

Row number `row` of seed `seed` is written once. A resumed seed repeats its computation from the last checkpoint
and produces some rows again; those are on disk already and are passed over, so the file of a run that was killed and
resumed holds the same rows as that of a run that was left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tangentlab.bench.errors import RunError
from tangentlab.files import write_atomically
from tangentlab.lines import CHECK, Line, LineWriter, Row, line_of, read_lines

RESERVED = frozenset({"seed", "row", "table", CHECK})


class RowWriter:
    """Appends the rows of one seed; the first `on_disk` of them are known to be there and are passed over."""

    def __init__(self, path: Path, seed: int, on_disk: int) -> None:
        self._seed, self._on_disk = seed, on_disk
        self.count = 0
        self._lines = LineWriter(path)

    @property
    def on_disk(self) -> int:
        """How many rows of this seed the file holds."""
        return max(self._on_disk, self.count)

    def append(self, table: str, values: Mapping[str, Any]) -> None:
        """Write one row (unless it is on disk already) and hand it to the operating system at once."""
        if clash := RESERVED & values.keys():
            raise ValueError(f"The columns {sorted(clash)} belong to the bench.")
        row = {"seed": self._seed, "row": self.count, "table": table, **values}
        if self.count >= self._on_disk:
            self._lines.append(row)
        self.count += 1

    def sync(self) -> None:
        """Wait until the rows are on the disk itself."""
        self._lines.sync()

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, an error where lines were changed or lost since they were written.

    An unfinished line (of a process that was killed) is left out, and with it the end of its seed.
    """
    rows, damage = _intact(path)
    if damage:
        raise RunError(
            f"{path} is damaged: {damage}. Take a copy that is whole, or run the same command with --resume, which "
            "keeps what is intact and computes the rest again."
        )
    return rows


def repair(path: Path) -> str:
    """Make the file hold its intact rows only, and say what was damaged; only done while nobody else writes."""
    rows, damage = _intact(path)
    content = dump_rows(rows)
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != content:
        write_atomically(path, content)
    return damage


def dump_rows(rows: Iterable[Row]) -> str:
    """Rows as the text of a metrics file."""
    return "".join(map(line_of, rows))


def count_rows(rows: Iterable[Row], seed: int) -> int:
    """How many of `rows` belong to `seed`."""
    return sum(row["seed"] == seed for row in rows)


def _intact(path: Path) -> tuple[list[Row], str]:
    """For each seed its rows 0, 1, 2, ... as far as they are intact, and what is wrong with the first that is not."""
    kept: list[Row] = []
    counts: dict[int, int] = {}
    damage = ""
    for line in read_lines(path) if path.exists() else ():
        if line.damaged:
            damage = damage or f"line {line.number} is not as it was written"
        row = _row(line)
        if row is None:
            continue
        expected = counts.get(row["seed"], 0)
        if row["row"] == expected:
            counts[row["seed"]] = expected + 1
            kept.append(row)
        elif row["row"] > expected:  # a process writes its rows in order and stops when it cannot
            damage = damage or f"row {expected} of seed {row['seed']} is missing before line {line.number}"
    return kept, damage


def _row(line: Line) -> Row | None:
    """The row in a line; None where there is none."""
    row = line.row
    valid = row is not None and isinstance(row.get("row"), int) and isinstance(row.get("seed"), int)
    return row if valid and row is not None and isinstance(row.get("table"), str) else None
