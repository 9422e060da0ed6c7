"""How each kind of work grows with examples, outputs and width: slopes in log-log coordinates."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.arena import Settings, measure
from benchmarks.contender import Contender
from benchmarks.jobs import KIND_TITLES, NET_TITLES, TINY_NETS, Job, pick
from benchmarks.systems import SYSTEMS, contenders

# A system whose call takes longer than this gets no larger size of the same axis.
PATIENCE = 15.0


@dataclass(frozen=True)
class Study:
    """A job varied along three axes around its base point."""

    base: Job
    n: tuple[int, ...]
    outputs: tuple[int, ...]
    width: tuple[int, ...]

    def points(self, axis: str) -> list[tuple[int, Job]]:
        """The sizes of an axis, ascending, with their jobs."""
        if axis == "n":
            return [(value, replace(self.base, n=value)) for value in self.n]
        options = self.base.options
        return [(value, replace(self.base, options={**options, axis: value})) for value in getattr(self, axis)]


def studies(names: str = "all", tiny: bool = False) -> list[Study]:
    """Every kind of work on the MLP, the kernel and the factors also on a ResNet18; `names` picks as for jobs."""
    mlp_axes = {"n": (32, 64, 128, 256), "outputs": (2, 4, 8, 16), "width": (256, 512, 1024, 2048)}
    resnet_axes = {"n": (4, 8, 16, 32), "outputs": (1, 2, 4, 8), "width": (8, 16, 32, 64)}
    found = []
    for kind in ("ntk", "kfac", "ekfac", "diag", "grads", "fvp"):
        base = Job(f"{kind}_mlp", kind, "mlp", 64, {"width": 512, "outputs": 8})
        found.append(Study(base, **mlp_axes))
    for kind in ("ntk", "kfac", "ekfac"):
        found.append(Study(Job(f"{kind}_resnet18", kind, "resnet18", 8, {"width": 16, "outputs": 4}), **resnet_axes))
    chosen = pick(names, {study.base.name: study for study in found})
    return [_tiny(study) for study in chosen] if tiny else chosen


def _tiny(study: Study) -> Study:
    options = {**TINY_NETS[study.base.net], "outputs": 2}
    return Study(replace(study.base, n=3, options=options), (2, 4), (2, 3), (4, 8))


def slope(sizes: list[int], times: list[float]) -> float | None:
    """Least-squares slope of log time over log size."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _axis(study: Study, axis: str, contestants: dict[str, Contender], settings: Settings, console: Console) -> dict:
    """Measure one axis; per system the sizes, best times and the slope."""
    lines: dict[str, dict[str, Any]] = {name: {"sizes": [], "times": [], "agrees": True} for name in contestants}
    active = dict(contestants)
    for size, job in study.points(axis):
        console.print(f"[bold]{job.title}[/] {axis}={size}", highlight=False)
        record = measure(job, active, settings, console)
        for name, system in record["systems"].items():
            if "best" not in system:
                contestants.pop(name, None)
                continue
            lines[name]["sizes"].append(size)
            lines[name]["times"].append(system["best"])
            lines[name]["agrees"] &= system.get("agrees", True)
            if system["best"] > PATIENCE:
                active.pop(name, None)
    measured = {name: line for name, line in lines.items() if line["sizes"]}
    return {name: {**line, "slope": slope(line["sizes"], line["times"])} for name, line in measured.items()}


def run(chosen: list[Study], pythons: dict[str, str], settings: Settings, results: dict, console: Console) -> None:
    """Measure the chosen studies into `results['scaling']`; one process per system and study, alternating at every size."""
    settings = replace(settings, budget=min(settings.budget, PATIENCE))
    results.setdefault("scaling", {})
    for study in chosen:
        names = contenders(study.base, list(pythons))
        with ExitStack() as stack:
            contestants = {
                name: stack.enter_context(Contender(name, pythons[name], settings.threads)) for name in names
            }
            record: dict[str, Any] = {**study.base.message(), "axes": {}}
            for axis in ("n", "outputs", "width"):
                record["axes"][axis] = _axis(study, axis, contestants, settings, console)
        results["scaling"][study.base.name] = record
        report.write(results)
    console.print(table(results))


def table(results: dict[str, Any]) -> Table:
    """Slopes of every system along every axis."""
    shown = Table(title="Growth: slope of log time over log size", title_justify="left", title_style="bold")
    for column in ("work", "system"):
        shown.add_column(column)
    for column in ("examples", "outputs", "width"):
        shown.add_column(column, justify="right")
    for name, record in results["scaling"].items():
        for system in {key: None for axis in record["axes"].values() for key in axis}:
            slopes = [record["axes"][axis].get(system, {}).get("slope") for axis in ("n", "outputs", "width")]
            shown.add_row(name, SYSTEMS[system].label, *("" if s is None else f"{s:.2f}" for s in slopes))
    return shown


def draw(results: dict[str, Any]) -> list[Path]:
    """One panel per work and axis, one line per system, slopes in the legend."""
    from benchmarks import chart

    plt = chart.plt
    axes_names = ("n", "outputs", "width")
    records = results["scaling"]
    figure, grid = plt.subplots(len(records), 3, figsize=(15, 2.5 * len(records)), squeeze=False)
    figure.suptitle("Time over size, and the slope of its logarithm", x=0.01, ha="left", fontsize=10)
    palette = [f"C{index}" for index in range(10) if index != 3]
    colors = {**dict(zip((name for name in SYSTEMS if name != "tangentlab"), cycle(palette))), "tangentlab": chart.OWN}
    for row, record in zip(grid, records.values()):
        for panel, axis in zip(row, axes_names):
            for system, line in record["axes"][axis].items():
                label = SYSTEMS[system].label + ("" if line["slope"] is None else f" ({line['slope']:.2f})")
                width = 2.2 if system == "tangentlab" else 1.1
                panel.loglog(
                    line["sizes"], line["times"], "o-", markersize=3, color=colors[system], label=label, linewidth=width
                )
            sizes = sorted({size for line in record["axes"][axis].values() for size in line["sizes"]})
            panel.set_xticks(sizes, [str(size) for size in sizes])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: report.seconds(value))
            panel.minorticks_off()
            panel.tick_params(labelsize=7)
            work = f"{KIND_TITLES[record['kind']]}, {NET_TITLES[record['net']]}"
            title = f"{work}: {'examples' if axis == 'n' else axis}"
            panel.set_title(title, fontsize=8.5, loc="left", fontweight="bold")
            panel.legend(fontsize=6.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
            panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    return chart.save(figure, results["name"])
