"""One self-contained HTML page per run, made from the run's folder alone; everything in it is escaped."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tangentlab.files import write_atomically
from tangentlab.report.format import SIGNS, STATUSES, duration, number, plain_text, relation
from tangentlab.report.pictures import read_pictures
from tangentlab.report.summary import read_summary
from tangentlab.report.svg import inline

if TYPE_CHECKING:
    from tangentlab.experiments.bench.folder import RunFolder

PIXELS_PER_POINT, READABLE = 1.45, 0.92


def write_report(folder: RunFolder) -> Path:
    """Write ``report.html`` of a run and return its path."""
    path: Path = folder.report_file
    write_atomically(path, render_report(folder.path))
    return path


def render_report(folder: Path) -> str:
    """The page of the run in ``folder`` as text, made from its config, claims and figures."""
    summary = read_summary(folder)
    if summary is None:
        raise FileNotFoundError(f"{folder} has no claims.json")
    config = folder / "config.yaml"
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=summary,
            counts=count_statuses(summary),
            facts=facts(summary),
            figures=figures_of(folder, "figure"),
            parameters=parameter_rows(summary),
            config=config.read_text(encoding="utf-8") if config.exists() else "",
            commands=commands(summary),
        )
    )


def environment() -> Environment:
    """Jinja with escaping always on, and the filters of the house."""
    made = Environment(
        loader=PackageLoader("tangentlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, duration=duration, relation=relation, slug=lambda text: text.replace(" ", "-"))
    made.globals.update(signs=SIGNS, statuses=STATUSES)
    return made


def figures_of(folder: Path, prefix: str) -> list[dict[str, Any]]:
    """Captions and page-ready SVG of a run's figures.

    ``width`` in pixels gives all figures the same size of text; below ``least`` they would be unreadable, and scroll
    sideways instead.
    """
    found = []
    for position, picture in enumerate(read_pictures(folder / "figures")):
        points = _width(picture["svg"])
        found.append(
            {
                "name": picture["name"],
                "caption": picture["caption"],
                "svg": Markup(inline(picture["svg"], f"{prefix}-{position}-", picture["caption"])),
                "width": round(points * PIXELS_PER_POINT),
                "least": round(points * READABLE),
            }
        )
    return found


def facts(summary: dict[str, Any]) -> list[str]:
    """Seeds, time, memory and date of a run, one short text each."""
    seeds = len(summary["seeds"])
    found = [f"{seeds} seed{'s' if seeds != 1 else ''}"]
    if summary["seconds"]:
        longest = f" ({duration(summary['seconds_longest_seed'])} the longest seed)" if seeds > 1 else ""
        found.append(f"{duration(summary['seconds'])} of computing{longest}")
    if summary["memory_mb"]:
        found.append(f"at most {round(summary['memory_mb'])} MB")
    return [*found, str(summary["provenance"].get("started", ""))[:10]]


def count_statuses(summary: dict[str, Any]) -> list[tuple[str, int]]:
    """``(status, how many)`` of the claims, in the order held, mixed, not held, not tested, missing."""
    counts = Counter(claim["status"] for claim in summary["claims"])
    return [(status, counts[status]) for status in STATUSES if counts[status]]


def parameter_rows(summary: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """``(name, value, the scale's own value where it was changed)``."""
    changed = summary["changed"]
    return [
        (name, plain_text(value), plain_text(changed[name]) if name in changed else None)
        for name, value in summary["parameters"].items()
    ]


def commands(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """``(what it does, command)`` that bring the run back."""
    words = ["tangentlab", "run", summary["experiment"], "--scale", summary["scale"]]
    for name in summary["changed"]:
        words += ["--set", f"'{name}={plain_text(summary['parameters'][name])}'"]
    if summary["seeds"][0]:
        words += ["--seed", str(summary["seeds"][0])]
    words += ["--seeds", str(len(summary["seeds"]))]
    if summary["max_steps"] is not None:
        words += ["--max-steps", str(summary["max_steps"])]
    found = [("run it again", " ".join(words)), ("repeat it and compare every number", "tangentlab replay config.yaml")]
    commit = str(summary["provenance"].get("commit", "unknown")).removesuffix("+changes")
    return found if commit == "unknown" else [("the same version", f"git checkout {commit}"), *found]


def _width(svg: str) -> float:
    """The width of an SVG in points, that of one panel when its header does not tell."""
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) [\d.]+"', svg)
    return float(found.group(1)) if found else 400.0
