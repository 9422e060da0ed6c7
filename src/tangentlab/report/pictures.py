"""Saving what an experiment draws: SVG and PNG per figure, and an index with the captions."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tangentlab.files import write_atomically

if TYPE_CHECKING:
    from tangentlab.experiments.bench.experiment import Picture


class StyleWarning(UserWarning):
    """A figure does not follow the house style."""


def save_pictures(folder: Path, draw: Callable[[], Iterable[Picture]]) -> list[Picture]:
    """Write every figure of ``draw`` into ``folder``; faults of style are warnings."""
    from tangentlab.report.lint import complaints
    from tangentlab.report.style import house_style
    from tangentlab.report.svg import to_png, to_svg

    with house_style():
        pictures = list(draw())
        contents = [(picture, to_svg(picture.figure), to_png(picture.figure)) for picture in pictures]
    for picture in pictures:
        for fault in complaints(picture.figure):
            warnings.warn(f"figure '{picture.name}', {fault}", StyleWarning, stacklevel=2)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for picture, svg, png in contents:
        write_atomically(folder / f"{picture.name}.svg", svg)
        write_atomically(folder / f"{picture.name}.png", png)
    index = [{"name": picture.name, "caption": picture.caption} for picture in pictures]
    write_atomically(folder / "index.json", json.dumps(index, indent=2) + "\n")
    return pictures


def read_pictures(folder: Path) -> list[dict[str, str]]:
    """Name, caption and SVG text of the figures in ``folder``, in the order in which they were drawn."""
    index = folder / "index.json"
    if not index.exists():
        return []
    entries = json.loads(index.read_text(encoding="utf-8"))
    files = [(entry, folder / f"{Path(entry['name']).name}.svg") for entry in entries]
    return [{**entry, "svg": file.read_text(encoding="utf-8")} for entry, file in files if file.exists()]
