"""Seconds per training step of a linearized ResNet18 over those of the network itself, in one run."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report

HELP = """
Seconds per training step of a linearized ResNet18 over those of the network itself.

Both are trained by SGD with momentum on the same batch, in turns, so that both see the same machine; the best of
[bold]--reps[/] steps counts. The network is measured with batch norm in train mode, as it is trained, and in eval mode, in
which it does the same work as its linearization; without batch norm; and with alpha f, with and without stored f0.

[bold]Result[/]: benchmarks/results/linearized_step.json and a table. Exit code 1 when a ratio exceeds 2.
"""
TARGET = 2.0
Step = Callable[[], None]


def training_step(model: nn.Module, x: Tensor, y: Tensor, **options: Tensor) -> Step:
    """Forward, backward, update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, **options), y).backward()
        optimizer.step()

    return step


def contenders(width: int, norm: bool, x: Tensor, y: Tensor) -> dict[str, Step]:
    """The steps that take turns; the first is the yardstick."""
    from tangentlab.linearized import AlphaModel, linearize
    from tangentlab.models import ResNet18

    def network() -> nn.Module:
        torch.manual_seed(0)
        return ResNet18(10, base=width, norm=norm)

    found = {"network": training_step(network().train(), x, y)}
    if norm:
        found["network, norms in eval mode"] = training_step(network().eval(), x, y)
    found["linearized"] = training_step(linearize(network()), x, y)
    knob = AlphaModel(network().eval(), 100.0)
    found["alpha model"] = training_step(knob, x, y)
    found["alpha model, f0 stored"] = training_step(
        AlphaModel(network().eval(), 100.0), x, y, initial=knob.initial_outputs(x)
    )
    return found


def best_times(steps: dict[str, Step], reps: int) -> dict[str, float]:
    """Best of `reps` turns after one that warms up."""
    best = dict.fromkeys(steps, float("inf"))
    for turn in range(reps + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn:
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def main(
    batch: int = 64,
    pixels: int = 32,
    width: Annotated[int, typer.Option(help="Channels of the first stage.")] = 64,
    reps: Annotated[int, typer.Option(help="Steps of each; the best counts.")] = 5,
    threads: int = 2,
    name: Annotated[str, typer.Option(help="Name of the result file.")] = "linearized_step",
) -> None:
    """Run the comparison (see HELP)."""
    console = Console()
    torch.set_num_threads(threads)
    x, y = torch.randn(batch, 3, pixels, pixels), torch.randint(0, 10, (batch,))
    results: dict[str, Any] = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": report.machine_facts(),
        "net": f"ResNet18 width {width}, {pixels} px, batch {batch}, {threads} threads",
        "target": TARGET,
        "runs": {},
    }
    met = True
    for norm in (True, False):
        seconds = best_times(contenders(width, norm, x, y), reps)
        ratios = {key: value / seconds["network"] for key, value in seconds.items()}
        met = met and ratios["linearized"] <= TARGET
        kind = "with batch norm" if norm else "without batch norm"
        results["runs"][kind] = {"seconds": seconds, "over the network": ratios}
        table = Table(title=f"{results['net']}, {kind}")
        for column in ("step", "seconds", "over the network"):
            table.add_column(column, justify="left" if column == "step" else "right")
        for key, value in seconds.items():
            table.add_row(key, f"{value:.3f}", f"{ratios[key]:.2f}")
        console.print(table)
    path = report.RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"{'[green]reached' if met else '[red]missed '}[/]  linearized step <= {TARGET} x a normal step")
    console.print(f"written: benchmarks/results/{name}.json", highlight=False)
    raise typer.Exit(0 if met else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()
