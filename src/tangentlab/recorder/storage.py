"""The recording on disk: one JSON object per line, appended in one write each, and scalars for TensorBoard.

A line is handed to the disk before training goes on, so a killed training loses nothing but an unfinished last line, which
readers pass over. Nothing is ever rewritten: a training that goes on from a checkpoint appends a line `{"kind": "resumed",
"step": s}`, and snapshots of later steps above that line no longer count. A file that holds another run is put aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tangentlab.errors import DataFileError, InputError
from tangentlab.files import disk_errors, make_folder
from tangentlab.lines import LineWriter, Row, read_lines

FILE = "recording.jsonl"


class ScalarWriter(Protocol):
    """What is used of `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """One point of one curve."""

    def flush(self) -> Any:
        """Hand over what was written."""


def opened(folder: Path, *, resume: bool, run: str | None = None) -> tuple[LineWriter, bool]:
    """`folder/recording.jsonl` to append to, and whether it is new.

    resume: whether to go on with what is there. A file that holds another run than `run`, or is damaged, is put aside all the
    same.
    """
    path = make_folder(folder) / FILE
    with disk_errors(path):
        if path.exists() and not (resume and _holds(path, run)):
            path.rename(_free_name(folder))
        new = not path.exists()
        torn = not new and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
    lines = LineWriter(path)
    if torn:
        lines.end_line()
    return lines, new


def _holds(path: Path, run: str | None) -> bool:
    """Whether the file is that of this run, and whole."""
    try:
        return run_of(read_rows(path)) == run
    except DataFileError:
        return False


def _free_name(folder: Path) -> Path:
    """recording.1.jsonl, recording.2.jsonl, ...: an earlier recording is put aside, never overwritten."""
    number = 1
    while (path := folder / f"recording.{number}.jsonl").exists():
        number += 1
    return path


def read_rows(path: Path) -> list[Row]:
    """The rows of a recording (a folder or its file), without an unfinished line and without what was trained again.

    A line can be unfinished only where a training was killed: at the end, or before it was resumed.
    """
    file = path / FILE if path.is_dir() else path
    rows: list[Row] = []
    unfinished: int | None = None
    for line in read_lines(file):
        row = line.row if line.row and _is_row(line.row) else None
        resumed = row is not None and row["kind"] == "resumed"
        if line.damaged or (unfinished is not None and not resumed):
            raise DataFileError(
                f"{file} is damaged: line {unfinished or line.number} is not as it was written. Take a copy that is whole, "
                "or delete that line to read the rest."
            )
        unfinished = line.number if row is None else None
        if row is not None:
            rows = [*(until(rows, row["step"]) if resumed else rows), row]
    return rows


def _is_row(row: Row) -> bool:
    return isinstance(row.get("step"), int) and isinstance(row.get("kind"), str)


def run_of(rows: Iterable[Row]) -> str | None:
    """The run that rows belong to, as their start says; None where it does not."""
    return next((row.get("run") for row in rows if row["kind"] == "start"), None)


def until(rows: Iterable[Row], step: int) -> list[Row]:
    """The rows of a training up to a step."""
    return [row for row in rows if row["step"] <= step]


def write_scalars(writer: ScalarWriter, row: Row) -> None:
    """The values of a snapshot as scalars named like `tangent/train/cka`."""
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
        raise InputError(
            "The argument tensorboard= needs the package: pip install 'tangentlab[tensorboard]'."
        ) from error
    return SummaryWriter(str(target))  # type: ignore[no-untyped-call]
