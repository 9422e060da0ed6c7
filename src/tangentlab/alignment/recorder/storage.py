"""The recording on disk: one JSON object per line, appended in one write each, and scalars for TensorBoard.

A line is handed to the disk before training goes on, so a killed training loses nothing but an unfinished last line, which
readers pass over. Nothing is ever rewritten: a training that goes on from a checkpoint appends a line ``{"kind": "resumed",
"step": s}``, and snapshots of later steps above that line no longer count. A file that holds another run is put aside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tangentlab.errors import InputError
from tangentlab.plain import plain, restored

Row = dict[str, Any]
FILE = "recording.jsonl"


class ScalarWriter(Protocol):
    """What is used of `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """One point of one curve."""

    def flush(self) -> Any:
        """Hand over what was written."""


class Journal:
    """Appends rows to ``folder/recording.jsonl``.

    resume: whether to go on with what is there. A file that holds another run than ``run`` is put aside all the same, and `new`
    says that there is no file to go on with.
    """

    def __init__(self, folder: Path, *, resume: bool, run: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        if path.exists() and not (resume and run_of(read_rows(path)) == run):
            path.rename(_free_name(folder))
        self.new = not path.exists()
        torn = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if torn:
            os.write(self._file, b"\n")

    def append(self, row: Row) -> None:
        """Write one row and wait until it is on the disk."""
        line = (json.dumps(plain(row), allow_nan=False) + "\n").encode()
        if os.write(self._file, line) != len(line):
            raise OSError("the disk took only a part of a row of the recording; is it full?")
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _free_name(folder: Path) -> Path:
    """recording.1.jsonl, recording.2.jsonl, ...: an earlier recording is put aside, never overwritten."""
    number = 1
    while (path := folder / f"recording.{number}.jsonl").exists():
        number += 1
    return path


def read_rows(path: Path) -> list[Row]:
    """The rows of a recording (a folder or its file), without unfinished lines and without what was trained again."""
    file = path / FILE if path.is_dir() else path
    rows: list[Row] = []
    for line in file.read_bytes().split(b"\n"):
        row = _parsed(line)
        if row is None:
            continue
        if row["kind"] == "resumed":
            rows = until(rows, row["step"])
        rows.append(row)
    return rows


def run_of(rows: Iterable[Row]) -> str | None:
    """The run that rows belong to, as their start says; None where it does not."""
    return next((row.get("run") for row in rows if row["kind"] == "start"), None)


def until(rows: Iterable[Row], step: int) -> list[Row]:
    """The rows of a training up to a step."""
    return [row for row in rows if row["step"] <= step]


def write_scalars(writer: ScalarWriter, row: Row) -> None:
    """The values of a snapshot as scalars named like ``tangent/train/cka``."""
    for name, value in {**row["scalars"], **row["values"]}.items():
        writer.add_scalar(f"tangent/{name}", value, row["step"])
    writer.flush()


def scalar_writer(target: ScalarWriter | str | Path | None) -> ScalarWriter | None:
    """A writer as given, or a new one in a folder."""
    if not isinstance(target, str | Path):
        return target
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("tensorboard= needs the package: pip install 'tangentlab[tensorboard]'.") from error
    return SummaryWriter(str(target))  # type: ignore[no-untyped-call]


def _parsed(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    valid = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("kind"), str)
    return restored(row) if valid else None
