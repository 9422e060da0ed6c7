"""The house style of figures: labelled axes, legends beside the data, a colour-blind-safe palette, seeds as bands.

Everything that is not data is drawn in `INK`; when a figure is saved as SVG this becomes `currentColor`, so that the
same file reads well on light and on dark pages. No global state of matplotlib is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from tangentlab.figures.curves import Curves

INK, GRAY = "#1f2430", "#808793"
# chosen so that the first six stay apart for every kind of colour vision, on white and on near-black alike
PALETTE = ("#1e69f0", "#e17800", "#00a569", "#a54bb4", "#d21e2d", "#787887", "#8a6a4f", "#2f9fb5")
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"
PANEL_WIDTHS, PANEL_HEIGHT = {1: 5.0, 2: 4.3, 3: 3.4}, 3.3

_RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "grid.alpha": 0.16,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "image.cmap": SEQUENTIAL,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "mathtext.fontset": "dejavusans",
    "patch.linewidth": 0.8,
    "savefig.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "tangentlab",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 9,
    "ytick.color": INK,
    "ytick.labelsize": 9,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Figures made and saved inside follow the house style."""
    with mpl.rc_context(_RC):
        yield


def panels(
    columns: int = 1,
    rows: int = 1,
    *,
    width: float | None = None,
    height: float = PANEL_HEIGHT,
    **options: Any,
) -> tuple[Figure, NDArray[Any]]:
    """A figure of `rows` x `columns` panels and its axes `(rows, columns)`; sizes in inches are per panel."""
    with house_style():
        each = PANEL_WIDTHS.get(columns, 2.8) if width is None else width
        figure = Figure(figsize=(each * columns, height * rows), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # type: ignore[union-attr, call-arg]
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def quantity(name: str, unit: str | None = None) -> str:
    """An axis label: the quantity, and its unit in brackets when it has one."""
    return f"{name} [{unit}]" if unit else name


def log_height(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers at 1, 2 and 5, for values within a decade or two."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def label(axes: Axes, x: str, y: str, title: str | None = None) -> None:
    """Name both axes (see `quantity`) and, in bold above, say what the panel shows."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title is not None:
        axes.set_title(title)


def band(axes: Axes, curves: Curves, name: str | None = None, **options: Any) -> None:
    """The mean over seeds as a line, and from the lowest to the highest seed as a band."""
    (line,) = axes.plot(curves.x, curves.mean, label=name, **options)
    if len(curves.y) > 1:
        axes.fill_between(curves.x, curves.low, curves.high, color=line.get_color(), alpha=0.2, linewidth=0)


def legend_beside(axes: Axes, title: str | None = None) -> None:
    """A legend to the right of the panel, where there is no data to cover."""
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0.3, title=title, alignment="left")


def legend_below(axes: Axes, columns: int = 2) -> None:
    """A legend under the panel's axis label: four and a half lines below the axis, however high the panel is."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns, borderaxespad=4.5, columnspacing=1.4)


def legend_outside(figure: Figure, axes: Axes, columns: int = 2, *, above: bool = False, **options: Any) -> None:
    """One legend for all panels, below (or above) the figure, with the lines of one of them."""
    lines, names = axes.get_legend_handles_labels()
    figure.legend(
        lines, names, loc="outside upper center" if above else "outside lower center", ncols=columns, **options
    )


def step_axis(axes: Axes, last: float, first: float = 5.0) -> None:
    """Training steps on a logarithmic axis that also shows step 0."""
    axes.set_xscale("symlog", linthresh=first, linscale=0.4)
    ticks = [0, *(10**power for power in range(1, 7) if first <= 10**power <= last * 1.05)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(-0.05 * first, max(last, 2 * first) * 1.1)
    axes.minorticks_off()


def heatmap(axes: Axes, matrix: ArrayLike, scale: str, *, diverging: bool = False, **options: Any) -> None:
    """A matrix as colours, with a colour bar named `scale`; a diverging scale is symmetric around 0."""
    values = np.asarray(matrix)
    if diverging:
        reach = float(np.abs(values).max()) or 1.0
        options = {"vmin": -reach, "vmax": reach, "cmap": DIVERGING, **options}
    image = axes.imshow(values, interpolation="nearest", aspect="auto", **options)
    axes.grid(False)
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.colorbar(image, ax=axes, label=scale, shrink=0.92)
