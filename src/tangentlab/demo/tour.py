"""From nothing to a page in a minute: train, look at the Fisher matrix and at the kernel, and race."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tangentlab.bench.seeds import single_thread
from tangentlab.data import load, standardize
from tangentlab.demo import figures, stations
from tangentlab.demo.page import memory, short, write_page
from tangentlab.figures.format import number
from tangentlab.figures.pictures import save_pictures


@dataclass(frozen=True)
class Settings:
    """The size of the tour; the default takes about a minute on two cores."""

    width: int = 8
    images: int = 1437
    updates: int = 280
    batch: int = 100
    fisher_images: int = 200
    per_class: int = 10
    epochs: int = 10


@dataclass(frozen=True)
class Tour:
    """All that was found."""

    settings: Settings
    trained: stations.Trained
    fisher_before: list[stations.FisherRow]
    fisher: list[stations.FisherRow]
    kernels: stations.Kernels
    runs: list[stations.Run]
    seconds: float


def run_tour(settings: Settings, out: Path, console: Console | None = None) -> Path:
    """Run all stations, print what they find, and write `report.html` and the figures to `out`."""
    console = console or Console()
    started = time.perf_counter()
    data, test = standardize(load("digits"), load("digits", "test"))
    data = data.first(settings.images)
    console.print("[bold]tangentlab[/]: a network seen to first order in its parameters\n")
    with single_thread(), _bars(console) as bar:
        with bar("training a small CNN on 8 x 8 digits", settings.updates + 1) as tick:
            trained = stations.train_network(data, test, settings.width, settings.updates, settings.batch, tick)
        with bar("its Fisher matrix, eight ways", 2 * len(stations.REPRESENTATIONS)) as tick:
            images = data.first(settings.fisher_images)
            fisher_before = stations.compare_fisher(trained.before, images, tick)
            fisher = stations.compare_fisher(trained.after, images, tick)
        with bar("its tangent kernel, before and after", 2) as tick:
            kernels = stations.tangent_kernels(trained, test, settings.per_class, tick)
        with bar("natural gradient against SGD", sum(map(len, stations.RATES.values()))) as tick:
            runs = stations.race(data, settings.width, settings.epochs, settings.batch, tick)
    tour = Tour(settings, trained, fisher_before, fisher, kernels, runs, time.perf_counter() - started)
    _print_findings(tour, console)
    page = _write(tour, out)
    console.print(f"\nopen [bold]{escape(str(page.resolve()))}[/]", soft_wrap=True)
    return page


def _write(tour: Tour, out: Path) -> Path:
    save_pictures(
        out / "figures",
        lambda: (
            figures.overview(tour.fisher_before, tour.fisher, tour.kernels, tour.runs),
            figures.fisher_picture(tour.fisher_before, tour.fisher),
            figures.kernel_picture(tour.kernels),
            figures.race_picture(tour.runs),
        ),
    )
    return write_page(tour, out)


@contextmanager
def _bars(console: Console) -> Iterator[Any]:
    """Gives `bar(what, steps)`, a context whose value is called after every step."""
    columns = (TextColumn("{task.description:<38}"), BarColumn(bar_width=28), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        @contextmanager
        def bar(what: str, steps: int) -> Iterator[stations.Tick]:
            task = progress.add_task(what, total=steps)
            if not console.is_terminal:
                console.print(f"{what} ...")
            yield lambda: progress.advance(task)
            progress.update(task, completed=steps)

        yield bar


def _print_findings(tour: Tour, console: Console) -> None:
    trained, kernels = tour.trained, tour.kernels
    console.print(
        f"\naccuracy on unseen digits    {trained.accuracy_before:.1%} -> [bold]{trained.accuracy:.1%}[/]\n"
        f"kernel's alignment to labels {kernels.alignment_before:.2f} -> [bold]{kernels.alignment:.2f}[/]\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bright_black", title_justify="left")
    table.add_column("Fisher matrix")
    for header in ("memory", "distance", "trace error", "cos Fv", "cos step"):
        table.add_column(header, justify="right", no_wrap=True)
    for before, row in zip(tour.fisher_before, tour.fisher, strict=True):
        pairs = [(getattr(before, key), getattr(row, key)) for key in ("frobenius", "trace", "product", "natural")]
        table.add_row(
            row.name, memory(row.stored), *(f"{short(first):>5} → {short(second):<5}" for first, second in pairs)
        )
    console.print(table)
    console.print(
        "[bright_black]before → after training. distance: |F̂ − F| / |F|; trace: relative error; cos: cosine with the exact "
        "product Fv,\nwith the exact natural gradient step. An error of 0 is below 1e−5[/]"
    )
    console.print("\n[bright_black]training loss after the last epoch, best of three learning rates[/]")
    for run in tour.runs:
        console.print(f"{run.name:<9} {number(run.losses[-1], 2):>8} nats in {run.seconds[-1]:.1f} s")
