"""Results as JSON and as tables."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arena import Settings

RESULTS = Path(__file__).resolve().parent / "results"


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory, operating system and interpreter."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1) if memory else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def start(name: str, settings: Settings, tiny: bool) -> dict[str, Any]:
    """The results' head, before the first job."""
    return {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "tiny": tiny,
        "machine": machine_facts(),
        "settings": vars(settings) | {},
        "absent": {},
        "jobs": {},
    }


def continued(results: dict[str, Any], *parts: str) -> None:
    """Take over these parts of `results/<name>.json`, if there is such a file, measured under the same conditions.

    Raises:
        ValueError: the machine, the sizes or the settings were others, so that the figures cannot stand side by side.
    """
    path = RESULTS / f"{results['name']}.json"
    if not path.exists():
        return
    old = json.loads(path.read_text())
    for condition in ("machine", "tiny", "net", "period"):
        if old.get(condition) != results.get(condition):
            raise ValueError(f"{path.name} has another {condition}: {old.get(condition)}, now {results.get(condition)}")
    threads = [one.get("settings", {}).get("threads") for one in (old, results)]
    if threads[0] != threads[1]:
        raise ValueError(f"{path.name} was measured with {threads[0]} threads, now there are {threads[1]}")
    results.update({part: old[part] for part in parts if part in old})


def write(results: dict[str, Any]) -> Path:
    """Write `results/<name>.json` (also after each job, so that nothing measured is lost)."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{results['name']}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def seconds(value: float) -> str:
    """A time with three digits and a fitting unit."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _agreement(record: dict[str, Any]) -> str:
    if record.get("reference"):
        return "reference"
    if "deviations" not in record:
        return ""
    worst = max(record["deviations"].values())
    return f"[green]{worst:.0e}[/]" if record["agrees"] else f"[bold red]differs: {worst:.1e}[/]"


def job_table(record: dict[str, Any]) -> Table:
    """Times, memory and agreement of one job."""
    table = Table(title=record["title"], title_justify="left", title_style="bold")
    table.add_column("system")
    for column in ("best", "calls", "x tangentlab", "peak MiB", "deviation"):
        table.add_column(column, justify="right")
    for system in record["systems"].values():
        if "best" not in system:
            table.add_row(system["label"], f"[red]{system.get('error', '')}[/]")
            continue
        ratio = system.get("ratio_to_tangentlab")
        table.add_row(
            system["label"],
            seconds(system["best"]),
            str(len(system["times"]) or 1),
            f"{ratio:.2f}" if ratio else "",
            f"{system['peak_bytes'] / 2**20:.0f}",
            _agreement(system),
        )
    return table


def target_table(rows: list[dict[str, Any]], gemm_gflops: float | None) -> Table:
    """The required ratios and what was reached."""
    rate = f" (GEMM rate {gemm_gflops:.0f} GFLOP/s)" if gemm_gflops else ""
    table = Table(title=f"What tangentlab must reach{rate}", title_justify="left", title_style="bold")
    for column in ("job", "against", "measure"):
        table.add_column(column)
    for column in ("required", "reached", "met"):
        table.add_column(column, justify="right")
    words = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "[dim]not measured[/]"}
    for row in rows:
        reached = "" if row["reached"] is None else f"{row['reached']:.3g}"
        bound = f"{row['bound']} {row['required']:g}"
        table.add_row(row["job"], row["against"], row["measure"], bound, reached, words[row["met"]])
    return table


def print_disagreements(results: dict[str, Any], console: Console) -> bool:
    """Say which values differ; True if none does."""
    wrong = [
        f"{name}: {system['label']} differs from {system['compared_with']} ({system['deviations']})"
        for name, record in results["jobs"].items()
        for system in record["systems"].values()
        if system.get("agrees") is False
    ]
    wrong += [
        f"{name}, {axis}: {system} differs"
        for name, record in results.get("scaling", {}).items()
        for axis, lines in record["axes"].items()
        for system, line in lines.items()
        if not line["agrees"]
    ]
    for line in wrong:
        console.print(f"[bold red]{line}[/]", highlight=False)
    return not wrong
