"""A picture of a partition: every region in the colour of its value or slope, walls by depth, the decision boundary on top."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from tangentlab.errors import InputError
from tangentlab.figures.picture import Picture
from tangentlab.figures.style import DIVERGING, INK, SEQUENTIAL, house_style, label, panels
from tangentlab.spectral.boundary import decision_boundary
from tangentlab.spectral.complexes import Floats
from tangentlab.spectral.partition import Partition

Colour = Literal["value", "slope", "region"]
RASTER = 5000
"""More regions than this are drawn as pixels inside of vector files."""


def draw_partition(
    axes: Axes, partition: Partition, colour: Colour = "value", output: int | None = None, boundary: bool = True
) -> None:
    """Draw a partition in 2-D on given axes.

    Args:
        axes: of matplotlib.
        partition: two-dimensional, of a box or of a cut.
        colour: `"value"`: the output at the centre; `"slope"`: the size of the gradient; `"region"`: neighbours apart.
        output: which output colours show, where there are several.
        boundary: draw where the largest output changes, or the only one its sign.
    """
    if partition.dimension != 2:
        raise InputError(
            f"A picture shows a partition in 2-D; this one has {partition.dimension} dimensions: use a cut."
        )
    if colour not in ("value", "slope", "region"):
        raise InputError(f"The argument colour is 'value', 'slope' or 'region', got {colour!r}.")
    many = len(partition) > RASTER
    values, options, name = _shades(partition, colour, output)
    fill = PolyCollection(
        polygons(partition), array=values, edgecolors="face", linewidths=0.2, rasterized=many, **options
    )
    axes.add_collection(fill)
    _draw_walls(axes, partition, many)
    if boundary:
        axes.add_collection(LineCollection(list(decision_boundary(partition).pieces), colors=INK, linewidths=1.8))
    low, high = partition.complex.corners.min(0), partition.complex.corners.max(0)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.grid(False)
    if name is not None:
        figure = axes.figure
        assert isinstance(figure, Figure)
        figure.colorbar(fill, ax=axes, label=name, shrink=0.85)


def partition_picture(
    partition: Partition, colour: Colour = "value", output: int | None = None, boundary: bool = True
) -> Picture:
    """A figure of a partition in 2-D with its caption; arguments as for `draw_partition`."""
    figure, axes = panels(1, width=5.2, height=4.4)
    with house_style():
        draw_partition(axes[0, 0], partition, colour, output, boundary)
        label(axes[0, 0], "first coordinate", "second coordinate", f"{len(partition):,} regions")
    lines = "; the thick line is the decision boundary" if boundary else ""
    caption = (
        f"The {len(partition):,} regions on which the network is affine. Walls are thinner the deeper the layer that makes "
        f"them{lines}. The steepest region has slope {partition.lipschitz:.3g}."
    )
    return Picture("partition", figure, caption)


def polygons(partition: Partition) -> list[Floats]:
    """The corners of every region of a partition in 2-D, in order around it."""
    complex = partition.complex
    lists = complex.corners_of()
    owners = np.repeat(np.arange(len(lists)), lists.lengths())
    away = complex.corners[lists.members] - complex.centres()[owners]
    order = np.lexsort((np.arctan2(away[:, 1], away[:, 0]), owners))
    return np.split(complex.corners[lists.members[order]], lists.starts[1:-1])


def _shades(partition: Partition, colour: Colour, output: int | None) -> tuple[Floats, dict[str, Any], str | None]:
    """A number per region, how it becomes a colour, and its name for the colour bar."""
    if colour == "region":
        shuffled = np.random.default_rng(0).permutation(len(partition)).astype(np.float64)
        return shuffled, {"cmap": "Pastel1"}, None
    if colour == "slope":
        sizes = np.linalg.norm(partition.weights, 2, axis=(1, 2))
        return sizes, {"cmap": SEQUENTIAL}, "size of the gradient"
    weights, biases = partition.scalar(output if output is not None or partition.weights.shape[1] == 1 else 0)
    values = np.einsum("rd,rd->r", weights, partition.complex.centres()) + biases
    reach = float(np.quantile(np.abs(values), 0.9)) or 1.0
    return values, {"cmap": DIVERGING, "clim": (-reach, reach)}, "output"


def _draw_walls(axes: Axes, partition: Partition, many: bool) -> None:
    complex = partition.complex
    ends = complex.corners[complex.facets[0].members.reshape(-1, 2)]
    starts = np.array([first for first, _ in partition.bends])
    bend = np.searchsorted(starts, complex.walls, side="right") - 1
    for depth in range(len(starts)):
        segments = ends[(bend == depth) & (complex.walls >= 0)]
        if len(segments):
            width = (0.25 if many else 0.8) / (1 + 0.7 * depth)
            lines = LineCollection(list(segments), colors=INK, linewidths=width, alpha=0.6, rasterized=many)
            axes.add_collection(lines)
