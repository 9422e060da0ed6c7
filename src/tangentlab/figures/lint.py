"""What the house style forbids, found by looking at a figure: unnamed axes, and legends that cover data."""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from tangentlab.figures.style import house_style


def complaints(figure: Figure) -> list[str]:
    """One sentence per fault of the figure; an empty list when it may be printed."""
    with house_style():
        figure.draw_without_rendering()  # type: ignore[no-untyped-call]
        found: list[str] = []
        for number, axes in enumerate(figure.axes, start=1):
            found += [f"panel {number}: {fault}" for fault in (*_unnamed(axes), *_covered(axes))]
    return found


def _unnamed(axes: Axes) -> list[str]:
    """Axes that show something must be named, except an inner one that shares its neighbour's."""
    if not axes.axison:
        return []
    if _is_colorbar(axes):
        return [] if axes.get_xlabel() or axes.get_ylabel() else ["the colour bar has no name"]
    faults = []
    if axes.xaxis.get_visible() and not axes.get_xlabel() and _shows_ticks(axes, "x"):
        faults.append("the horizontal axis has no name")
    if axes.yaxis.get_visible() and not axes.get_ylabel() and _shows_ticks(axes, "y"):
        faults.append("the vertical axis has no name")
    return faults


def _shows_ticks(axes: Axes, which: str) -> bool:
    axis = axes.xaxis if which == "x" else axes.yaxis
    return any(tick.label1.get_visible() and tick.label1.get_text() for tick in axis.get_major_ticks())


def _is_colorbar(axes: Axes) -> bool:
    return axes.get_label() == "<colorbar>"


def _covered(axes: Axes) -> list[str]:
    """Lines, points and bands that pass under the legend."""
    legend = axes.get_legend()
    if legend is None or not legend.get_visible():
        return []
    box = legend.get_window_extent()
    return [f"the legend covers {_name(artist)}" for artist in axes.get_children() if _passes(artist, box)]


def _passes(artist: Artist, box: Bbox) -> bool:
    if not artist.get_visible():
        return False
    if isinstance(artist, Line2D):
        path = artist.get_path().transformed(artist.get_transform())
        return _within(path, box, artist)
    if isinstance(artist, Collection):
        offsets = artist.get_offset_transform().transform(artist.get_offsets())
        if len(offsets) > 1:
            return bool(box.count_contains(offsets))
        paths = [path.transformed(artist.get_transform()) for path in artist.get_paths()]
        return any(path.intersects_bbox(box, filled=True) and _within(path, box, artist) for path in paths)
    return False


def _within(path: Path, box: Bbox, artist: Artist) -> bool:
    """Whether the visible part of a path meets the box (what the panel clips away covers nothing)."""
    if artist.get_clip_on() and artist.axes is not None:
        visible = Bbox.intersection(box, artist.axes.bbox)
        if visible is None or visible.width <= 0 or visible.height <= 0:
            return False
        box = visible
    return bool(path.intersects_bbox(box, filled=False))


def _name(artist: Artist) -> str:
    text = str(artist.get_label())
    return "data" if text.startswith("_") else f"'{text}'"
