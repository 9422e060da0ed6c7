"""Saving what an experiment draws: SVG and PNG per figure, and an index with the captions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tangentlab.errors import InputError
from tangentlab.files import disk_errors, make_folder, write_atomically

if TYPE_CHECKING:
    from tangentlab.figures.picture import Picture


class StyleWarning(UserWarning):
    """A figure does not follow the house style."""


def save_pictures(folder: Path, draw: Callable[[], Iterable[Picture]], png: bool = True) -> list[Picture]:
    """Write every figure of `draw` into `folder` as SVG and `png`; faults of style are warnings.

    Pictures of an earlier drawing that are not drawn again go away; nothing else in the folder is touched.
    """
    from tangentlab.figures.lint import complaints
    from tangentlab.figures.style import house_style
    from tangentlab.figures.svg import to_png, to_svg

    earlier = _names_in(folder)
    with house_style():
        pictures = list(draw())
        contents = [(picture, to_svg(picture.figure), to_png(picture.figure) if png else None) for picture in pictures]
    for picture in pictures:
        for fault in complaints(picture.figure):
            warnings.warn(f"figure '{picture.name}', {fault}", StyleWarning, stacklevel=2)
    make_folder(folder)
    for picture, svg, pixels in contents:
        write_atomically(folder / f"{picture.name}.svg", svg)
        if pixels is not None:
            write_atomically(folder / f"{picture.name}.png", pixels)
    index = [{"name": picture.name, "caption": picture.caption} for picture in pictures]
    write_atomically(folder / "index.json", json.dumps(index, indent=2) + "\n")
    for name in earlier - {picture.name for picture in pictures}:
        for ending in ("svg", "png"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
    return pictures


def read_pictures(folder: Path) -> list[dict[str, str]]:
    """Name, caption and SVG text of the figures in `folder`, in the order in which they were drawn."""
    files = [(entry, folder / f"{Path(entry['name']).name}.svg") for entry in _index(folder)]
    return [{**entry, "svg": file.read_text(encoding="utf-8")} for entry, file in files if file.exists()]


def _names_in(folder: Path) -> set[str]:
    """Names of the pictures of an earlier drawing; an index of something else is not overwritten."""
    return {Path(entry["name"]).name for entry in _index(folder)}


def _index(folder: Path) -> list[dict[str, str]]:
    """What lies in a folder of pictures, in order; nothing where there is no index."""
    file = folder / "index.json"
    try:
        with disk_errors(file, "read"):
            text = file.read_text(encoding="utf-8") if file.exists() else "[]"
        return [{"name": str(entry["name"]), "caption": str(entry["caption"])} for entry in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{file} is not an index of pictures: draw into another folder.") from None
