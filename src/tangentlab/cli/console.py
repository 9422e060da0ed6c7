"""What the command prints: tables of experiments, plans, verdicts and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tangentlab.bench.experiment import SCALES
from tangentlab.bench.summary import count_by_origin
from tangentlab.figures.format import ORIGINS, OWNERS, SIGNS, about, bound, bound_owner, measured, plain_text
from tangentlab.plain import plain

if TYPE_CHECKING:
    from tangentlab.bench.compare import Comparison
    from tangentlab.bench.experiment import Experiment
    from tangentlab.bench.folder import Config, RunFolder
    from tangentlab.bench.judging import Judged
    from tangentlab.bench.registry import Entry
    from tangentlab.bench.runner import Outcome

COLORS = {"held": "green", "mixed": "yellow", "not held": "red", "not tested": "bright_black", "missing": "magenta"}


def say(text: str) -> None:
    """One plain line."""
    Console().print(escape(text), soft_wrap=True)


def show_error(text: str) -> None:
    """What is wrong, in red, on standard error."""
    Console(stderr=True).print(f"[red]✕[/] {escape(text)}", soft_wrap=True)


def show_experiments(entries: Sequence[Entry]) -> None:
    """The experiments by chapter, with their claims and the run time at each scale."""
    console = Console()
    width = max((len(entry.name) for entry in entries), default=0) + 2
    for chapter in dict.fromkeys(entry.chapter for entry in entries):
        console.print(f"\n[bold]{escape(chapter)}[/]")
        table = Table(box=None, pad_edge=False, header_style="bright_black", expand=True)
        table.add_column("  experiment", min_width=width, no_wrap=True)
        table.add_column("what it shows", ratio=1)
        for header in ("paper's", "ours", *SCALES):
            table.add_column(header, justify="right", min_width=6, no_wrap=True)
        for entry in entries:
            if entry.chapter == chapter:
                times = [about(60 * entry.minutes[scale]) if scale in entry.minutes else "–" for scale in SCALES]
                what = f"{escape(entry.title)} [bright_black]({escape(entry.place)})[/]"
                claims = [str(entry.claims[origin] or "–") for origin in ORIGINS]
                table.add_row(f"  {entry.name}", what, *claims, *times)
        console.print(table)
    console.print(
        "\n[bold]tangentlab run NAME[/] runs one, [bold]tangentlab list NAME[/] shows its question, claims and settings; "
        "claims are counted by who makes them, the paper or we; times are for two cores, all seeds"
    )


def show_experiment(kind: type[Experiment]) -> None:
    """The question, the claims and the settings of one experiment."""
    console = Console()
    console.print(f"[bold]{escape(kind.name)}[/]: {escape(kind.title)} [bright_black]({escape(kind.place)})[/]\n")
    console.print(escape(kind.question) + "\n")
    claims = Table(box=None, pad_edge=False, header_style="bright_black")
    for header in ("claim", "by", "measured", "holds if", "tested at"):
        claims.add_column(header, no_wrap=header in ("by", "tested at"))
    for claim in kind.claims:
        if not claim.retired:
            rule = f"{bound(claim.__dict__)} [bright_black]({bound_owner(claim.__dict__)})[/]"
            who = {"paper": "paper", "ours": "us"}[claim.origin]
            claims.add_row(escape(claim.sentence), who, escape(claim.measured), rule, ", ".join(claim.scales))
    console.print(claims)
    settings = Table(box=None, pad_edge=False, header_style="bright_black")
    for header in ("setting", *SCALES):
        settings.add_column(header)
    values = {scale: kind.at(scale).parameters() for scale in SCALES}
    for name in values["desk"]:
        settings.add_row(name, *(escape(plain_text(plain(values[scale][name]))) for scale in SCALES))
    seeds = (str(kind.seeds.get(scale, 1)) for scale in SCALES)
    times = (about(60 * kind.minutes[scale]) if scale in kind.minutes else "–" for scale in SCALES)
    settings.add_row("[bright_black]seeds[/]", *seeds)
    settings.add_row("[bright_black]time[/]", *times)
    console.print()
    console.print(settings)


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
    table.add_row("memory", _memory(cost.memory_mb, config.scale))
    table.add_row("time", _estimate(experiment, config))
    tested = [claim.id for claim in experiment.claims if config.scale in claim.scales and config.max_steps is None]
    table.add_row("claims", f"{len(tested)} of {len(experiment.claims)} would be tested")
    for key, value in experiment.parameters().items():
        table.add_row(f"  {key}", escape(str(value)))
    Console().print(table)


def _memory(megabytes: float | None, scale: str) -> str:
    if megabytes is None:
        return "not stated"
    text = f"about {megabytes:,.0f} MB per seed running at a time"
    return text if scale != "paper" else f"not measured at this scale; {text} at the desk scale"


def _estimate(experiment: Experiment, config: Config) -> str:
    """The time that the experiment states for the scale, in proportion to steps and seeds; else by its time per step."""
    cost, seeds, scale = experiment.cost(), len(config.seeds), config.scale
    if scale in experiment.minutes:
        standard = type(experiment).at(scale).cost().steps
        share = seeds / experiment.seeds.get(scale, 1) * (cost.steps / standard if standard else 1)
        seconds = 60 * experiment.minutes[scale] * share
    elif cost.seconds_per_step is not None and cost.steps:
        seconds = -(-seeds // 2) * (cost.steps * cost.seconds_per_step + 3)
    else:
        return "not stated"
    return f"{'about' if config.max_steps is None else 'below'} {about(seconds)} on two cores"


def show_outcome(outcome: Outcome) -> None:
    """The verdicts of a run that just ended, what failed, and the page to open."""
    for why in dict.fromkeys(outcome.failures.values()):
        seeds = [str(seed) for seed, reason in outcome.failures.items() if reason == why]
        show_error(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)} failed:\n{why}")
    if outcome.interrupted:
        Console().print("[yellow]interrupted[/]: what is there is valid; the same command with --resume goes on")
    show_run(outcome.folder)


def show_run(folder: RunFolder) -> None:
    """Verdicts, figures and the page of a run's folder."""
    from tangentlab.bench.summary import read_summary

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
    for origin in ORIGINS:
        for claim in (claim for claim in summary["claims"] if claim["origin"] == origin):
            table.add_row(*_claim_row(claim))
    if any(claim["values"] for claim in summary["claims"]) or summary["status"] == "complete":
        console.print(table)
    _show_tally([summary])
    reasons = Counter((claim["status"], claim["reason"]) for claim in summary["claims"] if claim["reason"])
    for (status, reason), count in reasons.items():
        console.print(f"{count} {status}: {escape(reason)}", style="bright_black", soft_wrap=True)
    figures = sorted(folder.figures.glob("*.svg")) if folder.figures.exists() else []
    if figures:
        console.print(f"figures  {', '.join(escape(path.name) for path in figures)}", soft_wrap=True)
    page = folder.report_file
    where = f"[bold]{escape(str(page))}[/]" if page.exists() else "not written yet; `tangentlab show RUN --open` does"
    console.print(f"page     {where}", soft_wrap=True)


def _claim_row(claim: dict[str, Any]) -> tuple[str, str, str, str]:
    status = claim["status"]
    verdict = f"[{COLORS[status]}]{SIGNS[status]} {status}[/]"
    sentence = escape(claim["sentence"]) + ("" if claim["origin"] == "paper" else " [bright_black](ours)[/]")
    sign = " [bright_black](sign)[/]" if claim["bound"] == "sign" else ""
    return verdict, sentence, measured(claim), f"{bound(claim)}{sign}"


def _show_tally(summaries: Sequence[dict[str, Any]]) -> None:
    """How the claims fared, those of the paper and those of ours apart."""
    for origin, numbers in count_by_origin(summaries):
        counts = ", ".join(f"[{COLORS[status]}]{count} {status}[/]" for status, count in numbers)
        Console().print(f"claims {OWNERS[origin]}: {counts}", soft_wrap=True)


def show_judged(judged: Sequence[Judged]) -> None:
    """What changed when results were judged again, and how all their claims fare."""
    from tangentlab.bench.summary import read_summary

    console = Console()
    for one in judged:
        kept = "" if one.kept else " [bright_black](metrics not kept: judged by the numbers in claims.json)[/]"
        console.print(f"[bold]{escape(str(one.folder))}[/]{kept}", soft_wrap=True)
        for change in one.changes or ["nothing has changed"]:
            console.print(f"  {escape(change)}", soft_wrap=True)
    _show_tally([summary for one in judged if (summary := read_summary(one.folder)) is not None])


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
