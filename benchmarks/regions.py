"""Regions of networks: enumeration against relucent, growth with the number of regions, the transform, and a ResNet18."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import environments, report
from tangentlab.spectral import NetworkTransform, Partition, cut_triangle, enumerate_regions

HELP = """
Regions of piecewise-linear networks, on one thread.

[bold]peer[/]: all regions of random and trained 2-32x4-1, 2-100x2-1 and 3-16x3-1 networks in a cube, by tangentlab and by
relucent (cells that meet the cube, one worker, verification off); counts have to be equal. [bold]growth[/]: seconds against
regions over sizes of the cube. [bold]transform[/]: a network of at least 10,000 regions at 1,000 frequencies.
[bold]resnet[/]: the plane through three images in a ResNet18 of base 16.

[bold]Result[/]: benchmarks/results/regions.json, .svg and .png. Exit code 1 when a target is missed.
"""
ARCHITECTURES = {"2-32x4-1": (2, 32, 4), "2-100x2-1": (2, 100, 2), "3-16x3-1": (3, 16, 3)}
PEER_RADIUS = {"2-32x4-1": 0.4, "2-100x2-1": 0.2, "3-16x3-1": 0.55}
WORKER = Path(__file__).resolve().parent / "workers" / "relucent_regions.py"
TARGETS = {"times faster than relucent": 200.0, "slope of growth": 1.15, "seconds of the transform": 5.0}
Results = dict[str, Any]


def network(shape: tuple[int, int, int], trained: bool) -> nn.Sequential:
    """A ReLU network as torch initializes it, or after 300 steps of Adam on a wave of its inputs."""
    inputs, width, depth = shape
    torch.manual_seed(0)
    sizes = [inputs, *[width] * depth]
    hidden = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 1))
    if trained:
        x = 2 * torch.rand(512, inputs) - 1
        y = torch.sin(4 * x.sum(1, keepdim=True)) * torch.cos(3 * x[:, :1])
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(300):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    return model.eval()


def best(function: Callable[[], Any], reps: int) -> tuple[float, Any]:
    """Shortest of some calls, and what the last one gave."""
    shortest, found = float("inf"), None
    for _ in range(reps):
        started = time.perf_counter()
        found = function()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest, found


def cube(shape: tuple[int, int, int], radius: float) -> list[list[float]]:
    return [[-radius, radius]] * shape[0]


def relucent(python: str, model: nn.Sequential, radius: float, cap: float) -> dict[str, Any]:
    """Regions and seconds of the peer, in its own environment."""
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    arrays = {f"weight{i}": layer.weight.detach().double().numpy() for i, layer in enumerate(layers)}
    arrays |= {f"bias{i}": layer.bias.detach().double().numpy() for i, layer in enumerate(layers)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.npz"
        np.savez(path, **arrays)
        call = [python, str(WORKER), str(path), str(radius), str(cap)]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def peer(results: Results, reps: int, console: Console, python: str | None, cap: float) -> None:
    """Both on the same networks in one run."""
    interpreter = python or environments.python_of("relucent", console)
    rows = results["peer"] = {}
    for name, shape in ARCHITECTURES.items():
        for trained in (False, True):
            model, radius = network(shape, trained), PEER_RADIUS[name]
            theirs = relucent(interpreter, model, radius, cap)
            seconds, ours = best(lambda: enumerate_regions(model, cube(shape, radius)), reps)  # noqa: B023
            whole_seconds, whole = best(lambda: enumerate_regions(model, cube(shape, 1.0)), reps)  # noqa: B023
            if theirs["complete"] and theirs["regions"] != len(ours):
                raise SystemExit(f"{name}: {len(ours)} regions here, {theirs['regions']} by relucent")
            each = theirs["seconds"] / theirs["regions"]
            rows[f"{name}, {'trained' if trained else 'random'}"] = {
                "radius": radius, "regions": len(ours), "seconds": seconds, "relucent": theirs,
                "counts equal": theirs["complete"], "relucent, ms per region": 1e3 * each,
                "times faster, same cube": each * len(ours) / seconds,
                "radius 1": {"regions": len(whole), "seconds": whole_seconds},
                "us per region, radius 1": 1e6 * whole_seconds / len(whole),
                "times faster per region, radius 1": each * len(whole) / whole_seconds,
            }  # fmt: skip
            console.print(name, trained, rows[f"{name}, {'trained' if trained else 'random'}"])


def growth(results: Results, reps: int, console: Console) -> None:
    """Seconds and regions over sizes of the cube, for a trained network of every architecture."""
    rows = results["growth"] = {}
    for name, shape in ARCHITECTURES.items():
        model = network(shape, True)
        points = []
        for radius in np.geomspace(0.25, 2.5 if shape[0] == 3 else 4.0, 7):
            seconds, found = best(lambda: enumerate_regions(model, cube(shape, float(radius))), reps)  # noqa: B023
            points.append({"radius": float(radius), "regions": len(found), "seconds": seconds})
        logs = np.log([[point["regions"], point["seconds"]] for point in points])
        slopes = [float(np.polyfit(some[:, 0], some[:, 1], 1)[0]) for some in (logs, logs[-4:])]
        rows[name] = {"points": points, "slope": slopes[0], "slope of the four largest": slopes[1]}
        rows[name]["us per region"] = 1e6 * points[-1]["seconds"] / points[-1]["regions"]
        console.print(name, rows[name])


def transform(results: Results, reps: int, console: Console) -> None:
    """A network with at least 10,000 regions at 1,000 frequencies of sizes 0 to 100."""
    model = network(ARCHITECTURES["2-100x2-1"], False)
    seconds, partition = best(lambda: enumerate_regions(model, cube((2, 100, 2), 2.0)), 1)
    assert isinstance(partition, Partition) and len(partition) >= 10_000
    generator = np.random.default_rng(0)
    k = generator.normal(size=(1000, 2))
    k *= generator.uniform(0, 100, size=(1000, 1)) / np.linalg.norm(k, axis=1, keepdims=True)
    taken, found = best(lambda: NetworkTransform(partition)(k), reps)
    check = NetworkTransform(partition).by_regions(k[::100])
    results["transform"] = {
        "regions": len(partition), "frequencies": len(k), "seconds": taken, "seconds of the enumeration": seconds,
        "largest difference from the sum over regions": float(np.abs(found[::100] - check).max()),
    }  # fmt: skip
    console.print(results["transform"])


def resnet(results: Results, console: Console, pixels: int, size: float) -> None:
    """A small triangle at an image of noise, since a large one passes millions of regions."""
    from tangentlab.models import ResNet18

    torch.manual_seed(0)
    model = ResNet18(10, base=16).eval()
    images = torch.randn(3, 3, pixels, pixels)
    near = [images[0], images[0] + size * images[1], images[0] + size * images[2]]
    seconds, partition = best(lambda: cut_triangle(model, *near), 1)
    results["resnet"] = {
        "net": f"ResNet18 base 16, {pixels} px", "sides": size, "units": sum(units for _, units in partition.bends),
        "regions": len(partition), "parts": partition.parts, "seconds": seconds,
    }  # fmt: skip
    console.print(results["resnet"])


def verdicts(results: Results) -> dict[str, tuple[float, bool]]:
    """Every target with what was reached."""
    found: dict[str, tuple[float, bool]] = {}
    if "peer" in results:
        least = min(row["times faster, same cube"] for row in results["peer"].values())
        found["times faster than relucent"] = least, least >= TARGETS["times faster than relucent"]
    if "growth" in results:
        slope = max(max(row["slope"], row["slope of the four largest"]) for row in results["growth"].values())
        found["slope of growth"] = slope, slope <= TARGETS["slope of growth"]
    if "transform" in results:
        seconds = results["transform"]["seconds"]
        found["seconds of the transform"] = seconds, seconds <= TARGETS["seconds of the transform"]
    return found


def draw(results: Results) -> None:
    """Growth on the left, both enumerations per region on the right."""
    from tangentlab.figures.style import house_style, label, legend_below, panels
    from tangentlab.figures.svg import to_png, to_svg

    figure, axes = panels(2, height=3.6)
    with house_style():
        for name, row in results.get("growth", {}).items():
            points = row["points"]
            x, y = [p["regions"] for p in points], [p["seconds"] for p in points]
            axes[0, 0].loglog(x, y, "o-", label=f"{name}, slope {row['slope of the four largest']:.2f}")
        label(axes[0, 0], "regions", "time [s]", "Growth with the cube")
        legend_below(axes[0, 0], 1)
        rows = results.get("peer", {})
        places = np.arange(len(rows))
        ours = [1e3 * row["seconds"] / row["regions"] for row in rows.values()]
        theirs = [row["relucent, ms per region"] for row in rows.values()]
        axes[0, 1].barh(places - 0.2, theirs, 0.4, label="relucent 1.0.0")
        axes[0, 1].barh(places + 0.2, ours, 0.4, label="tangentlab")
        axes[0, 1].set_xscale("log")
        axes[0, 1].set_xlim(left=0.005)
        axes[0, 1].set_yticks(places, list(rows))
        label(axes[0, 1], "time per region [ms]", "", "All regions of a cube")
        legend_below(axes[0, 1], 2)
        (report.RESULTS / "regions.svg").write_text(to_svg(figure))
        (report.RESULTS / "regions.png").write_bytes(to_png(figure))


def main(
    parts: Annotated[str, typer.Option(help="Any of peer, growth, transform, resnet; the others are kept.")] = "all",
    reps: Annotated[int, typer.Option(help="Calls of each; the shortest counts.")] = 3,
    python: Annotated[str, typer.Option(help="An interpreter that has relucent; default: an own environment.")] = "",
    cap: Annotated[float, typer.Option(help="Regions after which relucent stops.")] = float("inf"),
    pixels: int = 16,
    size: Annotated[float, typer.Option(help="Sides of the ResNet's triangle, as a part of an image of noise.")] = 0.01,
) -> None:
    """Run the comparison (see HELP)."""
    torch.set_num_threads(1)
    console = Console()
    path = report.RESULTS / "regions.json"
    results: Results = json.loads(path.read_text()) if path.exists() else {}
    results |= {
        "name": "regions",
        "date": datetime.date.today().isoformat(),
        "machine": report.machine_facts(),
        "targets": TARGETS,
    }
    chosen = ["peer", "growth", "transform", "resnet"] if parts == "all" else parts.split(",")
    jobs: dict[str, Callable[[], None]] = {
        "peer": lambda: peer(results, reps, console, python or None, cap),
        "growth": lambda: growth(results, reps, console),
        "transform": lambda: transform(results, reps, console),
        "resnet": lambda: resnet(results, console, pixels, size),
    }
    for name in chosen:
        jobs[name]()
        path.write_text(json.dumps(results, indent=1) + "\n")
    draw(results)
    reached = verdicts(results)
    for name, (value, met) in reached.items():
        console.print(
            f"{'[green]reached' if met else '[red]missed '}[/]  {name}: {value:.3g} (target {TARGETS[name]:g})"
        )
    raise typer.Exit(0 if all(met for _, met in reached.values()) else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()
