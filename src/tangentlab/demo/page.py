"""The page of the tour, in the style of the reports: one file, no network, everything escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tangentlab
from tangentlab.engine.memory import human_bytes
from tangentlab.figures.format import duration
from tangentlab.figures.pages import environment, figures_of
from tangentlab.files import write_atomically

if TYPE_CHECKING:
    from tangentlab.demo.tour import Tour

ROUNDING = 1e-5


def memory(stored: int) -> str:
    """Bytes for people."""
    return human_bytes(stored) if stored else "nothing"


def short(value: float) -> str:
    """Two decimals of an error or a cosine; what is only rounding is 0."""
    return f"{value:.2f}".replace("-", "−") if abs(value) > ROUNDING else "0"


def write_page(tour: Tour, out: Path) -> Path:
    """Write `report.html` to `out`, where the figures are, and return its path."""
    path = out / "report.html"
    write_atomically(path, render(tour, out))
    return path


def render(tour: Tour, out: Path) -> str:
    """The page as text."""
    first, *others = tour.runs
    reached = [_epochs_to_reach(first.losses[-1], run.losses) for run in others]
    slower = [run.seconds[-1] / first.seconds[-1] for run in others]
    parameters = sum(parameter.numel() for parameter in tour.trained.after.parameters())
    return (
        environment()
        .get_template("demo.html.j2")
        .render(
            tour=tour,
            figures={figure["name"]: figure for figure in figures_of(out, "figure")},
            fisher=list(zip(tour.fisher_before, tour.fisher, strict=True)),
            memory=memory,
            short=short,
            parameters=parameters,
            reached=list(zip([run.name for run in others], slower, reached, strict=True)),
            took=duration(tour.seconds),
            version=tangentlab.__version__,
        )
    )


def _epochs_to_reach(loss: float, losses: list[float]) -> int | None:
    """The first epoch at which a curve is at or below `loss`, None when it never is."""
    return next((epoch for epoch, value in enumerate(losses) if value <= loss), None)
