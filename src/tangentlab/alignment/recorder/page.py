"""The page of a recording: one HTML file, no network, everything escaped."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.files import write_atomically
from tangentlab.report.format import duration
from tangentlab.report.page import environment, figures_of

if TYPE_CHECKING:
    from tangentlab.alignment.recorder.recording import Recording

TABLE = (
    ("loss", "mean loss"),
    ("accuracy", "accuracy"),
    ("cka", "CKA of kernel and labels"),
    ("effective_rank", "effective rank"),
    ("max", "largest eigenvalue"),
    ("ntk_similarity", "similarity with the first kernel"),
    ("sign_similarity", "ReLU patterns as at the start"),
    ("representation_similarity", "similarity with the first representation"),
    ("fisher_trace", "trace of the Fisher matrix"),
    ("hessian_trace", "trace of the Hessian"),
)


def write_page(recording: Recording, path: Path) -> Path:
    """Write the page and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        recording.plot(Path(folder) / "figures")
        figures = figures_of(Path(folder), "figure")
    write_atomically(path, render(recording, figures))
    return path


def render(recording: Recording, figures: list[dict[str, Any]]) -> str:
    """The page as text."""
    about, rows = recording.about, recording.snapshots
    return (
        environment()
        .get_template("recorder.html.j2")
        .render(
            about=about,
            rows=rows,
            first=rows[0],
            last=rows[-1],
            figures=figures,
            table=change_table(recording),
            events=[event for event in recording.events if event["kind"] in ("resized", "skipped", "joined")],
            resumed=[event["step"] for event in recording.events if event["kind"] == "resumed"],
            problems=problems(recording),
            finished=any(row["kind"] == "finished" for row in recording.rows),
            spent=duration(sum(row["seconds"] for row in rows)),
        )
    )


def change_table(recording: Recording) -> list[tuple[str, list[tuple[float, float] | None]]]:
    """(quantity, (first, last) per probe) of what was recorded."""
    table = []
    for key, text in TABLE:
        cells: list[tuple[float, float] | None] = []
        for probe in recording.probes:
            values = recording.curve(f"{probe}/{key}")[1] if f"{probe}/{key}" in recording.names else None
            cells.append(None if values is None else (values[0], values[-1]))
        if any(cell is not None for cell in cells):
            table.append((text, cells))
    return table


def problems(recording: Recording) -> list[tuple[str, str, list[int]]]:
    """(measure, message, steps) of what failed."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in recording.snapshots:
        for what, text in row["problems"].items():
            found.setdefault((what, text), []).append(row["step"])
    return [(what, text, steps) for (what, text), steps in found.items()]
