"""What was recorded, while it is recorded or read from disk afterwards: curves, figures and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.errors import InputError
from tangentlab.recorder.storage import Row, read_rows

if TYPE_CHECKING:
    from tangentlab.figures.picture import Picture

EVENTS = ("joined", "resized", "skipped", "resumed", "off")


class Recording:
    """Rows of a recorder. `Recording.load("runs/1")` reads those of a training that is running, finished or killed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """From the recorder's folder, or from a file of rows."""
        rows = read_rows(Path(path))
        if not rows:
            raise InputError(f"{path} holds no recording.")
        return cls(rows)

    @property
    def snapshots(self) -> list[Row]:
        """The rows with measurements, by step."""
        return [row for row in self.rows if row["kind"] == "snapshot"]

    @property
    def events(self) -> list[Row]:
        """Where the recorder joined late, shrank, left a snapshot out, went on after an interruption, or was switched off."""
        return [row for row in self.rows if row["kind"] in EVENTS]

    @property
    def about(self) -> dict[str, Any]:
        """What was recorded: model, probes, sizes, schedule."""
        return next((row for row in self.rows if row["kind"] == "start"), {})

    @property
    def probes(self) -> list[str]:
        """Names of the probes, in order."""
        return list(self.about.get("probes", {}))

    @property
    def names(self) -> list[str]:
        """All that was measured, such as `train/cka`."""
        return list(dict.fromkeys(name for row in self.snapshots for name in (*row["scalars"], *row["values"])))

    def track(self, name: str) -> list[float | None]:
        """One measurement at every snapshot, None where it is missing."""
        return [{**row["scalars"], **row["values"]}.get(name) for row in self.snapshots]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one measurement where it is there, e.g. `recording.curve("train/effective_rank")`."""
        found = zip(self.snapshots, self.track(name), strict=True)
        points = [(row["step"], value) for row, value in found if value is not None]
        if not points:
            raise InputError(f"{name!r} was not recorded; there are {', '.join(self.names) or 'no measurements'}.")
        return [step for step, _ in points], [value for _, value in points]

    def layers(self, probe: str, centred: bool = True) -> dict[str, list[float]]:
        """CKA (or KA, from the measure "uncentred") of every layer with the labels, one value per snapshot."""
        mark = f"{probe}/layer/" if centred else f"{probe}/uncentred/layer/"
        names = [name for name in self.names if name.startswith(mark)]
        absent = float("nan")
        return {name.removeprefix(mark): [row["values"].get(name, absent) for row in self.snapshots] for name in names}

    def plot(self, folder: str | Path | None = None) -> list[Picture]:
        """The house figures; also written to `folder` as SVG and PNG if it is given."""
        from tangentlab.figures.pictures import save_pictures
        from tangentlab.recorder.figures import pictures

        if not self.snapshots:
            raise InputError("There is no snapshot yet: nothing to draw.")
        if folder is None:
            return pictures(self)
        return save_pictures(Path(folder), lambda: pictures(self))

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page."""
        from tangentlab.recorder.page import write_page

        return write_page(self, Path(path))
