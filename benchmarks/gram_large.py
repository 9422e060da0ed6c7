"""A large Gram matrix: the LeNet kernel of thousands of CIFAR-10 images and its leading eigenpairs."""

from __future__ import annotations

import datetime
import os
import resource
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report

HELP = """
Seconds for the tangent kernel of LeNet5 (one output, 136,121 parameters) on CIFAR-10 images, and for its leading
eigenpairs, at growing numbers of images; the growth, and what it says about 60,000.

The published run took 20 minutes on GPUs for the kernel of 60,000 images. Close other programs first.

[bold]Result[/]: benchmarks/results/gram_large.json and a table. Exit code 1 when the target at 12,000 images is missed.
"""
CLOCKS = tuple(f"{part}_{kind}" for part in ("kernel", "pairs", "total") for kind in ("seconds", "cpu_seconds"))
TARGET_IMAGES, TARGET_SECONDS, PUBLISHED_IMAGES = 12_000, 180.0, 60_000


def measure(images: Any, count: int, pairs: int) -> dict[str, float]:
    """Wall and processor seconds of the kernel and of its eigenpairs, worst residual over its eigenvalue, memory."""
    import torch

    from tangentlab import NTK
    from tangentlab.kernels.eigenpairs import gram_eigenpairs
    from tangentlab.models import LeNet5

    torch.manual_seed(0)
    model = LeNet5(3, 32, 1).eval()
    clocks = [(time.perf_counter(), time.process_time())]
    kernel = NTK(model, [(part,) for part in images[:count].split(500)], progress=False).matrix()
    clocks.append((time.perf_counter(), time.process_time()))
    found = gram_eigenpairs(kernel, min(pairs, count))
    clocks.append((time.perf_counter(), time.process_time()))
    (wall, cpu), (wall2, cpu2) = ((b[0] - a[0], b[1] - a[1]) for a, b in zip(clocks, clocks[1:]))
    return {
        "images": count,
        "kernel_seconds": wall,
        "kernel_cpu_seconds": cpu,
        "pairs_seconds": wall2,
        "pairs_cpu_seconds": cpu2,
        "total_seconds": wall + wall2,
        "total_cpu_seconds": cpu + cpu2,
        "converged": found.converged,
        "residual_over_eigenvalue": float((found.residual_norms / found.values).max()),
        "last_over_first_eigenvalue": float(found.values[-1] / found.values[0]),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def law(rows: list[dict[str, float]], clock: str) -> dict[str, float] | None:
    """Exponent of the growth between the two largest sizes; seconds at the published size if it goes on so, or squared."""
    if len(rows) < 2:
        return None
    (n1, t1), (n2, t2) = ((row["images"], row[clock]) for row in rows[-2:])
    exponent = float(np.log(t2 / t1) / np.log(n2 / n1))
    factor = PUBLISHED_IMAGES / n2
    return {
        "exponent": exponent,
        "seconds_at_60000": t2 * factor**exponent,
        "seconds_at_60000_if_square": t2 * factor**2,
    }


def table(rows: list[dict[str, float]], pairs: int) -> Table:
    """One line per size."""
    drawn = Table(title=f"LeNet5 kernel of CIFAR-10 images and its {pairs:,} leading eigenpairs, seconds")
    for column in ("images", "kernel", "eigenpairs", "together", "peak memory", "worst residual / eigenvalue"):
        drawn.add_column(column, justify="right")
    for row in rows:
        times = [f"{row[f'{part}_seconds']:.1f}" for part in ("kernel", "pairs", "total")]
        extra = f"{row['peak_memory_gb']:.1f} GB", f"{row['residual_over_eigenvalue']:.2g}"
        drawn.add_row(f"{row['images']:,}", *times, *extra)
    return drawn


def main(
    sizes: Annotated[str, typer.Option(help="Numbers of images, ascending, comma-separated.")] = "4000,8000,12000",
    pairs: Annotated[int, typer.Option(help="Eigenpairs.")] = 1000,
    threads: int = 2,
    name: Annotated[str, typer.Option(help="Name of the result file; empty to write none.")] = "gram_large",
) -> None:
    """Run the measurement (see HELP)."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    from tangentlab.data import load, standardize

    torch.set_num_threads(threads)
    console = Console()
    (data,) = standardize(load("cifar10"))
    rows: list[dict[str, float]] = []
    for count in sorted(int(size) for size in sizes.split(",")):
        rows.append(measure(data.inputs, count, pairs))
        console.print(table(rows, pairs))
    results: dict[str, Any] = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": report.machine_facts(),
        "threads": threads,
        "pairs": pairs,
        "sizes": rows,
        "growth": {clock: law(rows, clock) for clock in CLOCKS},
        "published": {"images": PUBLISHED_IMAGES, "kernel_seconds": 1200, "machine": "GPUs"},
    }
    for clock, found in results["growth"].items():
        if found:
            minutes = [found[key] / 60 for key in ("seconds_at_60000", "seconds_at_60000_if_square")]
            facts = f"N^{found['exponent']:.2f}; at 60,000 {minutes[0]:.0f} min, {minutes[1]:.0f} if it grows like N^2"
            console.print(f"{clock.replace('_', ' ')}: {facts}", highlight=False)
    at_target = [row for row in rows if row["images"] == TARGET_IMAGES]
    met = all(row["total_seconds"] <= TARGET_SECONDS and row["converged"] for row in at_target)
    results["target"] = {"images": TARGET_IMAGES, "seconds": TARGET_SECONDS, "met": met if at_target else None}
    if name:
        console.print(f"written: {report.write(results)}", highlight=False)
    raise typer.Exit(0 if met else 1)


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="rich", add_completion=False)
    app.command(help=HELP)(main)
    app()
