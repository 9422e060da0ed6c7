"""What the command prints: tables of experiments, plans, verdicts and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tangentlab.experiments.bench.experiment import SCALES
from tangentlab.report.format import SIGNS, duration, number, relation

if TYPE_CHECKING:
    from tangentlab.experiments.bench.compare import Comparison
    from tangentlab.experiments.bench.experiment import Experiment
    from tangentlab.experiments.bench.folder import Config, RunFolder
    from tangentlab.experiments.bench.runner import Outcome

COLORS = {"held": "green", "mixed": "yellow", "not held": "red", "not tested": "bright_black", "missing": "magenta"}


def say(text: str) -> None:
    """One plain line."""
    Console().print(escape(text), soft_wrap=True)


def show_error(text: str) -> None:
    """What is wrong, in red, on standard error."""
    Console(stderr=True).print(f"[red]✕[/] {escape(text)}", soft_wrap=True)


def show_experiments(kinds: Sequence[type[Experiment]]) -> None:
    """The experiments by chapter, with their claims and the run time at each scale."""
    console = Console()
    width = max((len(kind.name) for kind in kinds), default=0) + 2
    for chapter in dict.fromkeys(kind.chapter for kind in kinds):
        console.print(f"\n[bold]{escape(chapter.value)}[/]")
        table = Table(box=None, pad_edge=False, header_style="bright_black", expand=True)
        table.add_column("  experiment", min_width=width, no_wrap=True)
        table.add_column("what it shows", ratio=1)
        for header in ("claims", *SCALES):
            table.add_column(header, justify="right", min_width=6, no_wrap=True)
        for kind in kinds:
            if kind.chapter == chapter:
                times = [duration(60 * kind.minutes[scale]) if scale in kind.minutes else "–" for scale in SCALES]
                what = f"{escape(kind.title)} [bright_black]({escape(kind.place)})[/]"
                table.add_row(f"  {kind.name}", what, str(len(kind.claims)), *times)
        console.print(table)
    console.print("\nrun one with [bold]tangentlab run NAME[/]; times are for two cores, all seeds")


def show_plan(config: Config) -> None:
    """Steps, memory and estimated time of a run that is not started."""
    experiment = config.build()
    cost, seeds = experiment.cost(), len(config.seeds)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("experiment", f"[bold]{config.experiment}[/] at scale {config.scale}")
    table.add_row("seeds", ", ".join(map(str, config.seeds)))
    steps = f"{cost.steps:,} per seed, {cost.steps * seeds:,} in all"
    if config.max_steps is not None:
        steps += f"; every loop is cut after {config.max_steps}"
    table.add_row("steps", steps)
    memory = "not stated" if cost.memory_mb is None else f"about {cost.memory_mb:,.0f} MB per seed running at a time"
    table.add_row("memory", memory)
    table.add_row("time", _estimate(experiment, config.scale, cost.steps, cost.seconds_per_step, seeds))
    tested = [claim.id for claim in experiment.claims if config.scale in claim.scales and config.max_steps is None]
    table.add_row("claims", f"{len(tested)} of {len(experiment.claims)} would be tested")
    for key, value in experiment.parameters().items():
        table.add_row(f"  {key}", escape(str(value)))
    Console().print(table)


def _estimate(experiment: Experiment, scale: str, steps: int, per_step: float | None, seeds: int) -> str:
    import os

    if per_step is not None and steps:
        rounds = -(-seeds // max(1, min(seeds, os.cpu_count() or 1)))
        return f"about {duration(rounds * (steps * per_step + 3))} (a step takes about {per_step:.3g} s on one core)"
    if scale in experiment.minutes:
        return f"about {duration(60 * experiment.minutes[scale])} on two cores"
    return "not stated"


def show_outcome(outcome: Outcome) -> None:
    """The verdicts of a run that just ended, what failed, and the page to open."""
    for seed, why in outcome.failures.items():
        show_error(f"seed {seed} failed:\n{why}")
    if outcome.interrupted:
        Console().print("[yellow]interrupted[/]: what is there is valid; the same command with --resume goes on")
    show_run(outcome.folder)


def show_run(folder: RunFolder) -> None:
    """Verdicts, figures and the page of a run's folder."""
    from tangentlab.report.summary import read_summary

    console = Console()
    summary = read_summary(folder.path)
    if summary is None:
        console.print(
            f"{escape(str(folder.path))} has no results yet; `--resume` carries it to its end", soft_wrap=True
        )
        return
    state = "" if summary["status"] == "complete" else f" [yellow]({summary['status']})[/]"
    console.print(f"[bold]{escape(summary['title'])}[/] · {summary['scale']}{state}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("verdict", "claim", "measured", "holds if"):
        table.add_column(header, no_wrap=header in ("verdict", "holds if"))
    for claim in summary["claims"]:
        table.add_row(*_claim_row(claim))
    console.print(table)
    figures = sorted(folder.figures.glob("*.svg")) if folder.figures.exists() else []
    if figures:
        console.print(f"figures  {', '.join(escape(path.name) for path in figures)}", soft_wrap=True)
    console.print(f"page     [bold]{escape(str(folder.report_file))}[/]", soft_wrap=True)


def _claim_row(claim: dict[str, Any]) -> tuple[str, str, str, str]:
    status = claim["status"]
    verdict = f"[{COLORS[status]}]{SIGNS[status]} {status}[/]"
    measured = number(claim["mean"])
    if claim["spread"] is not None:
        measured += f" ± {number(claim['spread'], 2)}"
    if claim["reason"]:
        measured += f" [bright_black]{escape(claim['reason'])}[/]"
    return verdict, escape(claim["sentence"]), measured, f"{relation(claim['relation'])} {number(claim['threshold'])}"


def show_comparison(comparison: Comparison) -> None:
    """Whether a replay gave the same numbers."""
    console = Console()
    if comparison.identical:
        console.print(f"[green]✓[/] the same numbers: all {comparison.rows} rows are identical")
        return
    some = ", ".join(comparison.different[:5]) + (", ..." if len(comparison.different) > 5 else "")
    console.print(
        f"[red]✕[/] {len(comparison.different)} of {comparison.rows} rows differ, by up to {comparison.largest:.2g} "
        f"relative: {escape(some)}"
    )
