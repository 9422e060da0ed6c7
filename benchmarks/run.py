"""Speed and memory of tangentlab and its peers, on the same networks and data, in one run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import arena, chart, environments, jobs, report, scaling, systems, targets

HELP = f"""
Speed and memory of tangentlab and its peers, on the same networks and data, in one run.

Each peer lives in an environment of its own below [bold].bench/[/] (made on the first run, then reused); one that
cannot be installed is left out, and the run says so. Every job starts one fresh process per system. The systems take
turns, the best call counts, and what they computed is compared. Ratios within one run are meaningful; times of
different runs are not. Close other programs first.

[bold]Results[/]: benchmarks/results/<name>.json, .svg and .png, and a table of the ratios that tangentlab must reach.

[bold]Jobs[/]: {", ".join(jobs.JOBS)}. A prefix selects several: ntk, kfac, ekfac, diag, grads.

[bold]Systems[/]: {", ".join(systems.SYSTEMS)}. Groups: {", ".join(systems.GROUPS)}. A minus removes: all,-nt_products.

[bold]Examples[/]

python benchmarks/run.py --tiny  (a few minutes: do the values of all systems agree?)

python benchmarks/run.py --jobs ntk_mlp,ntk_lenet --systems tangentlab,nngeometry,torch_func --reps 9

python benchmarks/run.py --scaling  (growth with examples, outputs and width, as log-log slopes)
"""


def _pythons(chosen: list[str], results: dict, console: Console) -> dict[str, str]:
    """Interpreter per system; systems whose environment cannot be made are recorded as absent."""
    pythons: dict[str, str] = {}
    for name in chosen:
        environment = systems.SYSTEMS[name].environment
        if environment in results["absent"]:
            continue
        try:
            pythons[name] = environments.python_of(environment, console)
        except environments.EnvironmentFailed as error:
            results["absent"][str(environment)] = str(error)
            console.print(f"[yellow]going on without {environment}: {error}[/]", highlight=False)
    return pythons


def _run_jobs(chosen: list[jobs.Job], pythons: dict, settings: arena.Settings, results: dict, console: Console) -> None:
    for job in chosen:
        names = systems.contenders(job, list(pythons))
        if not names:
            continue
        console.print(f"[bold]{job.title}[/]", highlight=False)
        results["jobs"][job.name] = arena.run_job(job, names, pythons, settings, console)
        console.print(report.job_table(results["jobs"][job.name]))
        if not results["tiny"]:
            results["targets"] = targets.evaluate(results["jobs"])
            results["gemm_gflops"] = targets.gemm_gflops(results["jobs"])
        report.write(results)


def main(
    job_names: Annotated[str, typer.Option("--jobs", help="Comma-separated jobs or prefixes.")] = "all",
    system_names: Annotated[str, typer.Option("--systems", help="Comma-separated systems or groups.")] = "all",
    reps: Annotated[int, typer.Option(help="Turns of each system; the best call counts.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of every system.")] = 2,
    budget: Annotated[float, typer.Option(help="Seconds of work in a job after which a system rests.")] = 40.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a single call is given up.")] = 600.0,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small sizes: checks values, says nothing about speed.")] = False,
    scale: Annotated[bool, typer.Option("--scaling", help="Measure growth instead of the jobs.")] = False,
    name: Annotated[str, typer.Option(help="Name of the result files; chosen by what is run if not given.")] = "",
    update: Annotated[
        bool, typer.Option("--update", help="Keep what else that file holds, and replace these.")
    ] = False,
) -> None:
    """Run the benchmark (see HELP)."""
    console = Console()
    try:
        chosen = scaling.studies(job_names, tiny) if scale else jobs.select(job_names, tiny)
        names = systems.select(system_names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    parts = ["scaling" if scale else "bench", "tiny" if tiny else ""]
    parts.append("" if job_names == "all" and system_names == "all" else "part")
    name = name or "-".join(filter(None, parts))
    settings = arena.Settings(threads, reps, budget, timeout)
    results = report.start(name, settings, tiny)
    if update:
        try:
            report.continued(results, "jobs", "scaling")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--update") from None
    pythons = _pythons(names, results, console)
    if scale:
        scaling.run(chosen, pythons, settings, results, console)
        scaling.draw(results)
    else:
        _run_jobs(chosen, pythons, settings, results, console)
        chart.draw(results)
        if "targets" in results:
            console.print(report.target_table(results["targets"], results["gemm_gflops"]))
    agreed = report.print_disagreements(results, console)
    console.print(f"written: benchmarks/results/{name}.json, .svg, .png", highlight=False)
    raise typer.Exit(0 if agreed else 1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help="\n\n".join(" ".join(part.split()) for part in HELP.split("\n\n")))(main)
    app()
