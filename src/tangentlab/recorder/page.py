"""The page of a recording: one HTML file, no network, everything escaped."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.figures.format import duration
from tangentlab.figures.pages import environment, figures_of
from tangentlab.files import make_folder, write_atomically
from tangentlab.recorder.changes import change_table, problems

if TYPE_CHECKING:
    from tangentlab.recorder.recording import Recording


def write_page(recording: Recording, path: Path) -> Path:
    """Write the page and return its path."""
    make_folder(path.parent)
    with tempfile.TemporaryDirectory() as folder:
        recording.plot(Path(folder) / "figures")
        figures = figures_of(Path(folder), "figure")
    write_atomically(path, render(recording, figures))
    return path


def render(recording: Recording, figures: list[dict[str, Any]]) -> str:
    """The page as text."""
    about, rows, table = recording.about, recording.snapshots, change_table(recording)
    return (
        environment()
        .get_template("recorder.html.j2")
        .render(
            about=about,
            rows=rows,
            first=rows[0],
            last=rows[-1],
            figures=figures,
            table=table,
            incomplete=any(cell is not None and cell.remark for _, cells in table for cell in cells),
            events=[event for event in recording.events if event["kind"] in ("resized", "skipped", "joined", "off")],
            resumed=[event["step"] for event in recording.events if event["kind"] == "resumed"],
            problems=problems(recording),
            finished=any(row["kind"] == "finished" for row in recording.rows),
            spent=duration(sum(row["seconds"] for row in rows)),
        )
    )
