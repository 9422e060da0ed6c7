"""What the recorder costs: its share of a training of ResNet18, and an alignment snapshot of VGG19 in training steps."""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

from tangentlab.models import VGG19, ResNet18
from tangentlab.recorder import Geometric, TangentRecorder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report

HELP = """
What the recorder costs, in units of training. Close other programs first.

[bold]ResNet18[/] (16 channels at first, 32 x 32 pixels, batch 128): 1,000 steps with a recorder over 1,000 steps without
one, minus 1. The two trainings take turns of 10 steps. The recorder takes the 12 snapshots of its default schedule, the
first and the last included, with all default measures at the default probe sizes, and writes its files. With
[bold]--steps[/] below 1,000 the same 12 snapshots are taken in fewer steps, and all that comes with every step is scaled
up to 1,000.

[bold]VGG19[/] (32 x 32 pixels, batch 100, without batch norm): an alignment snapshot of 100 training and 100 test images,
all 10 outputs, all layers, over a training step. The two take turns; the best of each counts.

With one thread the clock is that of the process, which does not count what other programs take, else that of the wall.

[bold]Result[/]: benchmarks/results/recorder.json and a table. Exit code 1 when a target is missed.
"""
TARGETS = {"resnet18": 0.10, "vgg19 base-16": 30.0, "vgg19 base-64": 30.0}
"""Share of the training time; steps per alignment snapshot."""
STEPS, SNAPSHOTS, TURN, FULL = 1000, 12, 10, 100
Advance = Callable[[], None]


class Training:
    """A network, random images, and SGD with momentum."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        torch.manual_seed(0)
        self.model, self.batch = model, batch
        self.images, self.labels = torch.randn(600, 3, 32, 32), torch.randint(0, 10, (600,))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(self) -> Tensor:
        """One update."""
        chosen = torch.randint(0, 400, (self.batch,))
        loss = nn.functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def probes(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Images of the training and others."""
        parts = {"train": slice(0, 100), "test": slice(400, 500)}
        return {name: (self.images[part], self.labels[part]) for name, part in parts.items()}


def clock() -> float:
    """Seconds of this process where it has one thread, else of the wall."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def default_recorder(training: Training, steps: int, folder: str) -> TangentRecorder:
    """A recorder with default measures and sizes that never shrink; in fewer steps its snapshots are evenly spread."""
    due = Geometric().between(0, STEPS - 1)
    schedule = due if steps >= STEPS else [round(steps * (place + 1) / (len(due) + 1)) for place in range(len(due))]
    options: dict[str, Any] = {"total_steps": steps, "max_overhead": float("inf"), "verbose": False, "clock": clock}
    return TangentRecorder(training.model, training.probes(), schedule, folder=folder, **options)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    started = clock()
    return call(), clock() - started


def overhead(steps: int, advance: Advance) -> dict[str, Any]:
    """The recorder's share of 1,000 steps of ResNet18, from 12 snapshots in so many steps."""
    plain, watched = (Training(ResNet18(base=16), 128) for _ in range(2))
    for training in (plain, watched):
        training.step()
    found = dict.fromkeys(("steps without", "steps with", "counting", "snapshots"), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        recorder = default_recorder(watched, steps, folder)
        found["snapshots"] += timed(recorder.start)[1]
        for start in range(0, steps, TURN):
            turn = range(min(TURN, steps - start))
            for _ in turn:
                found["steps without"] += timed(plain.step)[1]
                advance()
            for _ in turn:
                loss, seconds = timed(watched.step)
                found["steps with"] += seconds
                taken = len(recorder.snapshots)
                seconds = timed(partial(recorder.step, loss=loss))[1]
                found["counting" if len(recorder.snapshots) == taken else "snapshots"] += seconds
                advance()
        found["snapshots"] += timed(recorder.finish)[1]
    longer = STEPS / steps
    every_step = found["steps with"] + found["counting"] - found["steps without"]
    return {
        "steps": steps,
        "snapshots": len(recorder.snapshots),
        "size": str(recorder.size),
        "seconds": found,
        "seconds per step": found["steps without"] / steps,
        "seconds per snapshot": found["snapshots"] / len(recorder.snapshots),
        "inside the recorder": (found["snapshots"] + longer * found["counting"]) / (longer * found["steps without"]),
        "reached": (found["snapshots"] + longer * every_step) / (longer * found["steps without"]),
        "parts of the last snapshot": recorder.snapshots[-1]["parts"],
    }


def snapshot(base: int, repetitions: int, advance: Advance) -> dict[str, Any]:
    """An alignment snapshot of VGG19 over a training step; the two take turns, the best of each counts."""
    training = Training(VGG19(base=base), 100)
    options: dict[str, Any] = {"size": (FULL, None), "verbose": False, "measures": ["alignment"]}
    recorder = TangentRecorder(training.model, training.probes(), **options)
    observer, size = recorder._observer, recorder.size
    training.step()
    observer.look(0, size, trace=False, strict=True)
    steps, looks = [], []
    for _ in range(repetitions):
        started = clock()
        for _ in range(3):
            training.step()
        middle = clock()
        observer.look(0, size, trace=False, strict=True)
        looks.append(clock() - middle)
        steps.append((middle - started) / 3)
        advance()
    return {
        "size": str(size),
        "seconds per step": min(steps),
        "seconds per snapshot": min(looks),
        "reached": min(looks) / min(steps),
    }


def measured(steps: int, repetitions: int, bases: list[int], console: Console) -> dict[str, Any]:
    """All results by name, with bars for what is done and how long the rest will take."""
    results: dict[str, Any] = {}
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        if steps:
            task = progress.add_task("ResNet18 with and without a recorder", total=2 * steps)
            results["resnet18"] = overhead(steps, partial(progress.advance, task))
        for base in bases:
            task = progress.add_task(f"VGG19 base-{base}", total=repetitions)
            results[f"vgg19 base-{base}"] = snapshot(base, repetitions, partial(progress.advance, task))
    return results


def judge(results: dict[str, Any]) -> dict[str, bool]:
    """Which targets are met."""
    units = {name: "of the training time" if name == "resnet18" else "steps per snapshot" for name in results}
    met = {
        f"{name}: {found['reached']:.3g} <= {TARGETS[name]:g} {units[name]}": found["reached"] <= TARGETS[name]
        for name, found in results.items()
        if name in TARGETS
    }
    if "resnet18" in results:
        count = results["resnet18"]["snapshots"]
        met[f"resnet18: {count} >= {SNAPSHOTS} snapshots"] = count >= SNAPSHOTS
    return met


def main(
    steps: Annotated[int, typer.Option(help="Steps of ResNet18; 1,000 is the real thing, 24 a quick look.")] = STEPS,
    repetitions: Annotated[int, typer.Option(help="Snapshots of each VGG19.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    bases: Annotated[str, typer.Option(help="Channels of the first stage of VGG19.")] = "16,64",
    name: Annotated[str, typer.Option(help="Name of the result file.")] = "recorder",
) -> None:
    """Measure, print, write, judge (see HELP)."""
    console = Console()
    torch.set_num_threads(threads)
    results = measured(steps, repetitions, [int(part) for part in bases.split(",") if part], console)
    written = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": report.machine_facts(),
        "torch": torch.__version__,
        "threads": threads,
        "clock": "process" if threads == 1 else "wall",
        "results": results,
        "targets": judge(results),
    }
    path = report.RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(written, indent=1) + "\n")
    table = Table("what", "seconds per step", "per snapshot", "reached")
    for key, found in results.items():
        seconds = (f"{found[f'seconds per {kind}']:.3f}" for kind in ("step", "snapshot"))
        table.add_row(key, *seconds, f"{found['reached']:.3g}")
    console.print(table)
    for target, met in written["targets"].items():
        console.print(f"{'[green]reached' if met else '[red]missed '}[/]  {target}", highlight=False)
    console.print(f"written: benchmarks/results/{name}.json", highlight=False)
    raise typer.Exit(0 if all(written["targets"].values()) else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()
