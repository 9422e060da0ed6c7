"""The information space of ResNet-20 on 10,000 images: the 50 leading singular vectors of a 30,000 x 272,019 Jacobian."""

from __future__ import annotations

import datetime
import os
import resource
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report

HELP = """
Seconds, memory and residuals of the information space of ResNet-20 (He-normal start, batch norms with the statistics of the
data) on CIFAR-10's automobiles, airplanes and birds, by streamed rows; first on few images, next to the Gram matrix.

It goes on where it was stopped; delete .bench/information_large to start over. The times of a run that went on are those of its
last part, and are marked so.

[bold]Result[/]: benchmarks/results/information_large.json. Exit code 1 when the target is missed.
"""
CLASSES = (1, 0, 2)
TARGET_SECONDS, TARGET_RESIDUAL = 3600.0, 1e-2
FOLDER = Path(__file__).resolve().parent.parent / ".bench" / "information_large"


def network(images: Any) -> Any:
    """ResNet-20 in evaluation mode, its batch norms with the averages over the first 1,000 images."""
    import torch

    from tangentlab.models import ResNet20

    torch.manual_seed(0)
    model = ResNet20(len(CLASSES))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        for batch in images[:1000].split(100):
            model(batch)
    return model.eval()


def streamed(model: Any, images: Any, pairs: int, folder: Path | None) -> tuple[Any, dict[str, Any]]:
    """Eigenpairs, and what they cost."""
    from tangentlab.linearized import streamed_eigenpairs

    before = len(list(folder.glob("pass-*.pt"))) if folder is not None and folder.exists() else 0
    wall, cpu = time.perf_counter(), time.process_time()
    batches = [(part,) for part in images.split(100)]
    found = streamed_eigenpairs(model, batches, pairs, tolerance=TARGET_RESIDUAL, folder=folder, progress=True)
    return found, {
        "images": len(images),
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "passes_from_an_earlier_run": before,
        "how": found.message,
        "largest_residual_over_eigenvalue": float((found.residual_norms / found.values).max()),
        "last_over_first_eigenvalue": float(found.values[-1] / found.values[0]),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def compared(model: Any, images: Any, found: Any) -> dict[str, float]:
    """The Gram route on the same images: largest relative distance of eigenvalues, largest sine of the angle of the spans."""
    import torch

    from tangentlab import NTK
    from tangentlab.kernels import gram_eigenpairs

    cpu = time.process_time()
    kernel = NTK(model, [(part,) for part in images.split(100)], progress=True).matrix().double()
    truth = gram_eigenpairs(kernel, len(found.values))
    seconds = time.process_time() - cpu
    cosines = torch.linalg.svdvals(truth.vectors.double() @ found.vectors.double().T)
    residuals = (found.vectors @ kernel - found.values[:, None] * found.vectors).norm(dim=1)
    return {
        "gram_cpu_seconds": seconds,
        "eigenvalues_relative": float(((found.values - truth.values) / truth.values).abs().max()),
        "span_sine": float((1 - cosines.min().clamp_max(1).square()).sqrt()),
        "largest_residual_by_gram": float((residuals / found.values).max()),
    }


def main(
    images: Annotated[int, typer.Option(help="Images of the large run.")] = 10_000,
    few: Annotated[int, typer.Option(help="Images of the comparison with the Gram matrix.")] = 1000,
    pairs: Annotated[int, typer.Option(help="Singular vectors.")] = 50,
    threads: int = 2,
    name: Annotated[str, typer.Option(help="Name of the result file; empty to write none.")] = "information_large",
) -> None:
    """Run the measurement (see HELP)."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    from tangentlab.data import load, only_classes, standardize

    torch.set_num_threads(threads)
    console = Console()
    (data,) = standardize(only_classes(load("cifar10"), *CLASSES).first(max(images, few)))
    model = network(data.inputs)
    found, small = streamed(model, data.inputs[:few], pairs, None)
    small |= compared(model, data.inputs[:few], found)
    console.print(small, highlight=False)
    found, large = streamed(model, data.inputs[:images], pairs, FOLDER / str(images))
    large["singular_values"] = found.values.sqrt().tolist()
    console.print({key: value for key, value in large.items() if key != "singular_values"}, highlight=False)
    met = large["seconds"] <= TARGET_SECONDS and large["largest_residual_over_eigenvalue"] <= TARGET_RESIDUAL
    whole = large["passes_from_an_earlier_run"] == 0
    results = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": report.machine_facts(),
        "threads": threads,
        "pairs": pairs,
        "against_gram": small,
        "large": large,
        "target": {"seconds": TARGET_SECONDS, "residual": TARGET_RESIDUAL, "met": met if whole else None},
    }
    if name:
        console.print(f"written: {report.write(results)}", highlight=False)
    raise typer.Exit(0 if met or not whole else 1)


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode="rich", add_completion=False)
    app.command(help=HELP)(main)
    app()
