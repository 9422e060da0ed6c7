"""What the commands share: errors as sentences, a run with its display, and the folder of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tangentlab.bench.folder import Config
    from tangentlab.bench.runner import Outcome

OUT_HELP = "Folder that run folders are made in."
DEFAULT_OUT = Path("runs")


@contextmanager
def friendly_errors() -> Iterator[None]:
    """Errors made on purpose are one red sentence and exit code 2; everything else is a bug and keeps its traceback."""
    from tangentlab.errors import TangentlabError

    try:
        yield
    except TangentlabError as error:
        from tangentlab.cli.console import show_error

        show_error(str(error))
        raise typer.Exit(2) from None


def run_one(config: Config, out: Path, resume: bool, workers: int | None) -> Outcome:
    """Run with a progress display, then show the verdicts."""
    from tangentlab.bench.display import ProgressDisplay
    from tangentlab.bench.runner import execute
    from tangentlab.cli.console import show_outcome

    with ProgressDisplay(config) as display:
        outcome = execute(config, out, resume=resume, workers=workers, report=display.event, announce=display.announce)
    show_outcome(outcome)
    return outcome
