"""What all HTML pages share: templates with escaping always on, and figures as SVG inside the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tangentlab.figures.format import (
    OWNERS,
    SIGNS,
    STATUSES,
    bound,
    bound_owner,
    duration,
    interval,
    left_out,
    measured,
    number,
    relation,
)
from tangentlab.figures.pictures import read_pictures
from tangentlab.figures.svg import inline

PIXELS_PER_POINT, READABLE = 1.45, 0.92


def environment() -> Environment:
    """Jinja with escaping always on, and the filters of the house."""
    made = Environment(
        loader=PackageLoader("tangentlab.figures"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, duration=duration, relation=relation, slug=lambda text: text.replace(" ", "-"))
    made.filters.update(bound=bound, bound_owner=bound_owner, measured=measured, interval=interval, left_out=left_out)
    made.globals.update(signs=SIGNS, statuses=STATUSES, owners=OWNERS)
    return made


def figures_of(folder: Path, prefix: str) -> list[dict[str, Any]]:
    """Captions and page-ready SVG of a run's figures, and of its trends after them.

    `width` in pixels gives all figures the same size of text; below `least` they would be unreadable, and scroll
    sideways instead.
    """
    found = []
    pictures = [*read_pictures(folder / "figures"), *read_pictures(folder / "trends")]
    for position, picture in enumerate(pictures):
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


def _width(svg: str) -> float:
    """The width of an SVG in points, that of one panel when its header does not give it."""
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) [\d.]+"', svg)
    return float(found.group(1)) if found else 400.0
