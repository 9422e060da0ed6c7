"""Seconds of each of the first ten steps of natural-gradient optimizers over those of SGD, on ResNet18."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.nets import ResNet18
from benchmarks.optim_worker import DAMPING, LR, plain, seconds, sgd

HELP = """
Each of the first ten steps of KFAC and EKFAC-ra, with their default options, over a step of SGD, on ResNet18.

Both take turns, step by step, so that both see the same machine; the median step of SGD is the unit.

[bold]Result[/]: benchmarks/results/first_steps.json and a table. Exit code 1 when a step takes more than 2.5 times that of SGD.
"""
NAMES = ("kfac", "ekfac-ra")
STEPS, TARGET = 10, 2.5


def measured(name: str, batch: int, pixels: int, width: int) -> dict[str, object]:
    """Seconds of the first steps of one optimizer and of SGD, and the ratios to the median of SGD's."""
    from tangentlab.optim import NaturalSGD

    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, pixels, pixels), torch.randint(10, (batch,))
    rival, model = ResNet18(width), ResNet18(width)
    reference = sgd(rival, STEPS)
    step = plain(model, NaturalSGD(model, lr=LR, preconditioner=name, damping=DAMPING))
    seconds(reference, x, y)
    times = [(seconds(reference, x, y), seconds(step, x, y)) for _ in range(STEPS)]
    unit = sorted(one for one, _ in times)[STEPS // 2]
    own = [one for _, one in times]
    return {"sgd": [one for one, _ in times], "own": own, "ratios": [one / unit for one in own]}


def main(
    batch: int = 64,
    pixels: int = 32,
    width: Annotated[int, typer.Option(help="Channels of the first stage.")] = 64,
    threads: int = 2,
    name: Annotated[str, typer.Option(help="Name of the result file.")] = "first_steps",
) -> None:
    """Run the comparison (see HELP)."""
    torch.set_num_threads(threads)
    found = {one: measured(one, batch, pixels, width) for one in NAMES}
    table = Table("optimizer", *map(str, range(STEPS)), title=f"steps over SGD, ResNet18, batch {batch}")
    for one, result in found.items():
        table.add_row(one, *(f"{ratio:.2f}" for ratio in result["ratios"]))  # type: ignore[attr-defined]
    Console().print(table)
    result = {"date": datetime.date.today().isoformat(), "threads": threads, "torch": torch.__version__, "steps": found}
    (report.RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    worst = max(max(result["ratios"]) for result in found.values())  # type: ignore[call-overload]
    raise typer.Exit(int(worst > TARGET))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()
