"""The rows of a recorder while it records: in memory, on disk and in TensorBoard."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tangentlab.errors import DiskError
from tangentlab.files import disk_errors
from tangentlab.lines import LineWriter
from tangentlab.recorder.storage import Row, ScalarWriter, opened, run_of, scalar_writer, write_scalars


class Ledger:
    """Takes rows down; a `DiskError` says that the disk does not.

    Attributes:
        rows: all of them, also those that the disk did not take.
    """

    def __init__(self, tensorboard: ScalarWriter | str | Path | None) -> None:
        self.rows: list[Row] = []
        self._scalars = scalar_writer(tensorboard)
        self._lines: LineWriter | None = None

    @property
    def closed(self) -> bool:
        """Whether no file is open."""
        return self._lines is None

    def open(self, folder: Path | None, *, resume: bool) -> None:
        """Go on with the rows that are there, or without any; a file that holds another run is put aside."""
        self.rows = list(self.rows) if resume else []
        if folder is None:
            return
        self._lines, new = opened(folder, resume=resume, run=run_of(self.rows))
        for row in self.rows if new else ():  # the file did not come along with the checkpoint
            self._lines.append(row)
        self._lines.sync()

    def write(self, row: Row) -> None:
        """Take one row down, everywhere."""
        self.rows.append(row)
        if self._lines is not None:
            self._lines.append(row)
            self._lines.sync()
        if self._scalars is not None and row["kind"] == "snapshot":
            with disk_errors(Path("the log of TensorBoard")):
                write_scalars(self._scalars, row)

    def close(self) -> None:
        """Close the file; its rows are on the disk already, so nothing is lost if that fails."""
        if self._lines is not None:
            with suppress(DiskError):
                self._lines.close()
            self._lines = None
