"""Seconds per training step of natural-gradient optimizers over SGD, on ResNet18, next to the peers that install."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import environments, report
from benchmarks.contender import _worker_environment
from benchmarks.optim_worker import CONTENDERS

HELP = """
Seconds per training step over SGD on ResNet18, next to the peers that install.

Every contender runs in a process of its own and alternates with plain SGD, so that both see the same machine; the best of
[bold]--reps[/] steps counts. A step that renews the curvature is timed apart, and the cost per step is amortized:
((period - 1) ordinary + refresh) / period, over SGD. The parts of tangentlab's own steps (rotation, statistics, eigh) are
clocked from inside. Close other programs first.

[bold]Result[/]: benchmarks/results/optim_overhead.json and a table. Exit code 1 when a target is missed.
"""
TARGETS = {"ekfac-ra-sua": 1.25, "ekfac-ra": 1.5, "ekfac-ra-thin": 1.5}
PEERS = tuple(name for name in CONTENDERS if name.startswith("peer-")) + ("soap",)


def run(name: str, python: str, threads: int, options: list[str], timeout: float) -> dict[str, Any]:
    """The measurement of one contender, or {'error': ...}."""
    command = [python, "-m", "benchmarks.optim_worker", name, "--threads", str(threads), *options]
    settings = {"cwd": environments.ROOT, "env": _worker_environment(threads)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **settings)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def amortize(found: dict[str, Any], period: int) -> None:
    """Add the ratio to SGD, and the share of each part in units of an SGD step."""
    times = found["seconds"]
    mean = ((period - 1) * times["ordinary"] + times["refresh"]) / period
    found["ratio"] = mean / times["sgd"]
    if found["parts"]:
        parts = {key for kind in found["parts"].values() for key in kind}
        found["split"] = {
            part: ((period - 1) * found["parts"]["ordinary"].get(part, 0) + found["parts"]["refresh"].get(part, 0))
            / period
            / times["sgd"]
            for part in sorted(parts)
        }


def table(results: dict[str, Any]) -> Table:
    """One line per contender, cheapest first."""
    drawn = Table(title=f"step time over SGD, {results['net']}, curvature every {results['period']} steps")
    for column in ("contender", "amortized", "ordinary", "refresh", "rotation", "statistics", "eigh", "target"):
        drawn.add_column(column, justify="left" if column == "contender" else "right", no_wrap=column == "contender")
    found = results["contenders"]
    for name in sorted(found, key=lambda key: found[key].get("ratio", float("inf"))):
        one = found[name]
        if "error" in one:
            drawn.add_row(name, f"[yellow]{one['error']}[/]")
            continue
        base = one["seconds"]["sgd"]
        shares = one.get("split")  # the peers' steps are not taken apart
        split = [f"{shares.get(part, 0):.3f}" if shares else "" for part in ("rotation", "statistics", "eigh")]
        cells = [f"{one['ratio']:.3f}", *(f"{one['seconds'][kind] / base:.2f}" for kind in ("ordinary", "refresh"))]
        goal = f"<= {TARGETS[name]}" if name in TARGETS else ""
        drawn.add_row(name, *cells, *split, goal)
    return drawn


def judge(found: dict[str, Any]) -> dict[str, bool]:
    """Which targets are met: the ratios, and less than every peer that ran."""
    ratios = {name: one["ratio"] for name, one in found.items() if "ratio" in one}
    met = {f"{name} <= {goal}": ratios[name] <= goal for name, goal in TARGETS.items() if name in ratios}
    for name in TARGETS:
        met |= {f"{name} < {peer}": ratios[name] < ratios[peer] for peer in PEERS if {name, peer} <= set(ratios)}
    return met


def main(
    names: Annotated[str, typer.Option("--contenders", help="Comma-separated; all by default.")] = "",
    batch: int = 128,
    pixels: int = 32,
    width: Annotated[int, typer.Option(help="Channels of the first stage.")] = 64,
    period: Annotated[int, typer.Option(help="Steps between renewals of the curvature.")] = 100,
    reps: Annotated[int, typer.Option(help="Ordinary steps; the best counts.")] = 4,
    threads: int = 2,
    timeout: float = 3600.0,
    name: Annotated[str, typer.Option(help="Name of the result file.")] = "optim_overhead",
    update: Annotated[bool, typer.Option("--update", help="Keep the other contenders of that file.")] = False,
) -> None:
    """Run the comparison (see HELP)."""
    console = Console()
    chosen = names.split(",") if names else list(CONTENDERS)
    unknown = set(chosen) - set(CONTENDERS)
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(CONTENDERS)}")
    results: dict[str, Any] = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "machine": report.machine_facts(),
        "net": f"ResNet18 width {width}, {pixels} px, batch {batch}, {threads} threads",
        "period": period,
        "contenders": {},
    }
    if update:
        try:
            report.continued(results, "contenders")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--update") from None
    options = [
        f"--{key}={value}" for key, value in (("batch", batch), ("pixels", pixels), ("width", width), ("reps", reps))
    ]
    for one in chosen:
        peer = one.startswith("peer-")
        try:
            python = environments.python_of("optim_peers" if peer else None, console)
            found = run(one, python, threads, options, timeout)
        except environments.EnvironmentFailed as error:
            found = {"error": str(error)}
        if "error" not in found:
            amortize(found, period)
        results["contenders"][one] = found
        results["targets"] = judge(results["contenders"])
        report.write(results)
        console.print(table(results))
    for target, met in results["targets"].items():
        console.print(f"{'[green]reached' if met else '[red]missed '}[/]  {target}", highlight=False)
    console.print(f"written: benchmarks/results/{name}.json", highlight=False)
    raise typer.Exit(0 if all(results["targets"].values()) else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=HELP)(main)
    app()
