"""One self-contained HTML page per run, made from the run's folder alone; everything in it is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangentlab.bench.summary import count_by_origin, read_summary
from tangentlab.figures.format import duration, plain_text
from tangentlab.figures.pages import environment, figures_of
from tangentlab.files import write_atomically

if TYPE_CHECKING:
    from tangentlab.bench.folder import RunFolder


def write_report(folder: RunFolder) -> Path:
    """Write `report.html` of a run and return its path."""
    path: Path = folder.report_file
    write_atomically(path, render_report(folder.path))
    return path


def render_report(folder: Path) -> str:
    """The page of the run in `folder` as text, made from its config, claims and figures."""
    summary = read_summary(folder)
    if summary is None:
        raise FileNotFoundError(f"{folder} has no claims.json.")
    config = folder / "config.yaml"
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=summary,
            counts=count_by_origin([summary]),
            facts=facts(summary),
            figures=figures_of(folder, "figure"),
            parameters=parameter_rows(summary),
            config=config.read_text(encoding="utf-8") if config.exists() else "",
            commands=commands(summary),
        )
    )


def facts(summary: dict[str, Any]) -> list[str]:
    """Seeds, time, memory and date of a run, and that its metrics are gone; one short text each."""
    seeds = len(summary["seeds"])
    found = [f"{seeds} seed{'s' if seeds != 1 else ''}"]
    if summary["seconds"]:
        longest = f" ({duration(summary['seconds_longest_seed'])} the longest seed)" if seeds > 1 else ""
        found.append(f"{duration(summary['seconds'])} of computing{longest}")
    if summary["memory_mb"]:
        found.append(f"at most {round(summary['memory_mb'])} MB")
    if summary["metrics"] != "kept":
        found.append("metrics not kept")
    return [*found, str(summary["provenance"].get("started", ""))[:10]]


def parameter_rows(summary: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """`(name, value, the scale's own value where it was changed)`."""
    changed = summary["changed"]
    return [
        (name, plain_text(value), plain_text(changed[name]) if name in changed else None)
        for name, value in summary["parameters"].items()
    ]


def commands(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """`(what it does, command)` that bring the run back."""
    words = ["tangentlab", "run", summary["experiment"], "--scale", summary["scale"]]
    for name in summary["changed"]:
        words += ["--set", f"'{name}={plain_text(summary['parameters'][name])}'"]
    if summary["seeds"][0]:
        words += ["--seed", str(summary["seeds"][0])]
    words += ["--seeds", str(len(summary["seeds"]))]
    if summary["max_steps"] is not None:
        words += ["--max-steps", str(summary["max_steps"])]
    found = [("run it again", " ".join(words)), ("repeat it and compare every number", "tangentlab replay config.yaml")]
    if summary["metrics"] == "kept":
        found.append(("judge and draw it again from its metrics", "tangentlab judge ."))
    commit = str(summary["provenance"].get("commit", "unknown")).removesuffix("+changes")
    return found if commit == "unknown" else [("the same version", f"git checkout {commit}"), *found]
