"""What the recorder costs: its share of a training of ResNet18, and an alignment snapshot of VGG19 in training steps."""

from __future__ import annotations

import datetime
import json
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tangentlab.alignment.recorder import Geometric, TangentRecorder
from tangentlab.models import VGG19, ResNet18

HELP = """
What the recorder costs, in units of training.

[bold]ResNet18[/] (16 channels at first, 32 x 32 pixels, batch 128): the share of the training time over 1,000 steps with the
12 snapshots of the default schedule, all default measures and sizes. With [bold]--steps[/] below 1,000 the same 12
snapshots are taken in fewer steps and the training time is scaled up to 1,000.

[bold]VGG19[/] (32 x 32 pixels, batch 100): an alignment snapshot of 100 training and 100 test images, all 10 outputs,
all layers, over a training step.

With one thread the clock is that of the process, which does not count what other programs take.

[bold]Result[/]: benchmarks/results/recorder_overhead.json and a table. Exit code 1 when a target is missed.
"""
TARGETS = {"resnet18 overhead": 0.10, "vgg19 base-64 alignment": 30.0, "vgg19 base-16 alignment": 30.0}
STEPS, FULL = 1000, 100


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


def overhead(steps: int) -> dict[str, Any]:
    """The recorder's share of 1,000 steps of ResNet18, from 12 snapshots in so many steps."""
    training = Training(ResNet18(base=16), 128)
    training.step()
    due = Geometric().between(0, STEPS - 1)
    schedule = due if steps >= STEPS else [round(steps * (place + 1) / (len(due) + 1)) for place in range(len(due))]
    recorder = TangentRecorder(
        training.model,
        training.probes(),
        schedule,
        total_steps=steps,
        max_overhead=float("inf"),
        verbose=False,
        clock=clock,
    )
    with recorder:
        for _ in range(steps):
            recorder.step(loss=training.step())
    trained, taken = recorder._budget.training, [row["seconds"] for row in recorder.snapshots]
    counting = counting_seconds(recorder)
    once = recorder._budget.spent - sum(taken) - steps * counting
    scaled = (sum(taken) + once + STEPS * counting) / (trained / steps * STEPS)
    return {
        "steps": steps,
        "snapshots": len(taken),
        "size": str(recorder.size),
        "seconds per step": trained / steps,
        "seconds per snapshot": sum(taken) / len(taken),
        "seconds of counting per step": counting,
        "seconds of planning": once,
        "measured share": recorder.overhead,
        "overhead": scaled,
        "parts": recorder.snapshots[-1]["parts"],
    }


def counting_seconds(recorder: TangentRecorder, repetitions: int = 50) -> float:
    """What a step without a snapshot costs: the length of the update."""
    assert recorder._flow is not None
    started = clock()
    for _ in range(repetitions):
        recorder._flow.step(recorder.model)
    return (clock() - started) / repetitions


def snapshot(base: int, repetitions: int) -> dict[str, Any]:
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
        steps.append((middle - started) / 3)
        looks.append(clock() - middle)
    return {
        "size": str(size),
        "seconds per step": min(steps),
        "seconds per snapshot": min(looks),
        "steps": min(looks) / min(steps),
    }


def main(
    steps: Annotated[int, typer.Option(help="Steps of ResNet18; 1,000 is the real thing, 24 a quick look.")] = STEPS,
    repetitions: Annotated[int, typer.Option(help="Snapshots of each VGG19.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    bases: Annotated[str, typer.Option(help="Channels of the first stage of VGG19.")] = "16,64",
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path(__file__).parent
    / "results"
    / "recorder_overhead.json",
) -> None:
    """Measure, print, write, judge."""
    torch.set_num_threads(threads)
    results: dict[str, Any] = {"resnet18": overhead(steps)} if steps else {}
    for base in [int(part) for part in bases.split(",") if part]:
        results[f"vgg19 base-{base}"] = snapshot(base, repetitions)
    reached = {
        f"{name} {'overhead' if 'overhead' in found else 'alignment'}": found.get("overhead", found["steps"])
        for name, found in results.items()
    }
    machine = {"threads": threads, "torch": torch.__version__, "python": platform.python_version()}
    written = {"date": datetime.date.today().isoformat(), **machine, "reached": reached, "results": results}
    out.write_text(json.dumps(written, indent=1) + "\n")
    table = Table("what", "reached", "target", "")
    for name, value in reached.items():
        table.add_row(name, f"{value:.3g}", f"at most {TARGETS[name]:g}", "✓" if value <= TARGETS[name] else "✕")
    Console().print(table)
    sys.exit(any(value > TARGETS[name] for name, value in reached.items()))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()
