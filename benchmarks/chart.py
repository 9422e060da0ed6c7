"""The bar chart: one small panel per job, the systems' best times on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import RESULTS, seconds

OWN, PEER, YARDSTICK = "#d1495b", "#8d99ae", "#d9dde3"
COLUMNS = 3
SINGLE = ("gradient_mlp", "gradient_resnet18", "gemm")


def _panel(axes: Axes, record: dict[str, Any]) -> None:
    """Bars of one job, fastest on top; the label gives the time and the ratio to tangentlab."""
    measured = [s for s in record["systems"].values() if "best" in s and s["label"] != "GEMM"]
    rows = sorted(measured, key=lambda s: s["best"], reverse=True)
    special = {"tangentlab": OWN, "one gradient": YARDSTICK}
    colors = [special.get(s["label"], PEER) for s in rows]
    low = min(s["best"] for s in rows) / 4
    axes.barh([s["label"] for s in rows], [s["best"] for s in rows], color=colors, height=0.72, left=0)
    for y, row in enumerate(rows):
        ratio = row.get("ratio_to_tangentlab")
        shown = f" ({ratio:.3g}x)" if ratio and row["label"] != "tangentlab" else ""
        axes.text(row["best"] * 1.15, y, f"{seconds(row['best'])}{shown}", va="center", fontsize=7, color="#333333")
    axes.set_xscale("log")
    axes.set_xlim(low, max(s["best"] for s in rows) * 40)
    axes.set_title(record["title"], fontsize=8.5, loc="left", fontweight="bold")
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.tick_params(axis="x", labelsize=6, which="both", length=0, labelbottom=False)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    for label in axes.get_yticklabels():
        if label.get_text() == "tangentlab":
            label.set_fontweight("bold")
            label.set_color(OWN)


def save(figure: Figure, name: str) -> list[Path]:
    """Write SVG (reproducible: no date, fixed ids) and PNG."""
    RESULTS.mkdir(exist_ok=True)
    svg, png = RESULTS / f"{name}.svg", RESULTS / f"{name}.png"
    with plt.rc_context({"svg.hashsalt": "tangentlab", "svg.fonttype": "path"}):
        figure.savefig(svg, metadata={"Date": None}, bbox_inches="tight")
        figure.savefig(png, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return [svg, png]


def draw(results: dict[str, Any]) -> list[Path]:
    """Draw all jobs of a run that have more than yardsticks to show."""
    timed = {
        name: record
        for name, record in results["jobs"].items()
        if name not in SINGLE and any("best" in system for system in record["systems"].values())
    }
    if not timed:
        return []
    rows = -(-len(timed) // COLUMNS)
    figure, grid = plt.subplots(rows, min(COLUMNS, len(timed)), figsize=(14, 0.45 + 1.75 * rows), squeeze=False)
    for axes in grid.flat[len(timed) :]:
        axes.set_visible(False)
    for axes, record in zip(grid.flat, timed.values()):
        _panel(axes, record)
    machine, settings = results["machine"], results["settings"]
    note = f"{settings['threads']} threads, {machine['processor']}, best of several alternating calls, log scale"
    figure.suptitle(f"Time for the same work, shorter is better ({note})", fontsize=9, x=0.01, ha="left", y=0.995)
    figure.tight_layout(rect=(0, 0, 1, 0.985), w_pad=2.0)
    return save(figure, results["name"])
