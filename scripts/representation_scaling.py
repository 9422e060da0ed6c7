"""Measure memory, product and solve of every representation against the number of parameters, and draw the figure.

`python scripts/representation_scaling.py measure` writes docs/img/representation_scaling.json (minutes, one thread);
`python scripts/representation_scaling.py draw` makes the figure and the table of docs/scaling.md from it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import tangentlab as tl
from tangentlab.figures.style import house_style, label, legend_beside, panels
from tangentlab.figures.svg import to_png, to_svg

DOCS = Path(__file__).parent.parent / "docs"
DATA, FIGURE, PAGE = (
    DOCS / "img" / "representation_scaling.json",
    DOCS / "img" / "representation_scaling",
    DOCS / "scaling.md",
)
START, END = "<!-- measured: start -->", "<!-- measured: end -->"

WIDTHS = (8, 16, 32, 64, 128, 256, 512)
EXAMPLES, CLASSES, DAMPING = 300, 2, 1e-2
LARGEST = {"PMatDense": 10_000, "PMatBlockDiag": 20_000}
"""Parameters beyond which a representation would take minutes or gigabytes here."""
KINDS = (
    tl.PMatDense,
    tl.PMatBlockDiag,
    tl.PMatLowRank,
    tl.PMatEKFAC,
    tl.PMatKFAC,
    tl.PMatQuasiDiag,
    tl.PMatDiag,
    tl.PMatImplicit,
)
QUANTITIES = {
    "numbers": "numbers stored",
    "build": "time to build [s]",
    "product": "time of F @ v [s]",
    "solve": "time of the first solve [s]",
}


def network(width: int) -> tuple[nn.Module, torch.Tensor]:
    """Two square hidden layers of a width, about 2 width^2 parameters, and standard normal inputs."""
    torch.manual_seed(0)
    sizes = (width, width, width, CLASSES)
    layers = [part for a, b in zip(sizes, sizes[1:], strict=False) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]), torch.randn(EXAMPLES, width)


def best_of(work: Callable[[], Any], seconds: float = 0.3, most: int = 20) -> float:
    """Least processor time of repeated calls, which other processes hardly change."""
    times: list[float] = []
    while not times or (sum(times) < seconds and len(times) < most):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def measure_one(kind: type[tl.PMat], model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Numbers stored, time to build, least time of one of many products, and of a solve from scratch."""
    v = tl.PVector.random_unit(model)
    build = best_of(lambda: tl.FIM(model, x, kind), most=5)
    F = tl.FIM(model, x, kind)
    with F.frozen():
        product = best_of(lambda: F @ v)
    solves = []
    for _ in range(3):
        start = time.process_time()
        fresh = F if kind is tl.PMatImplicit else F._map(lambda tensor: tensor)
        fresh.solve(v, DAMPING)
        solves.append(time.process_time() - start)
    return {"numbers": F.numel(), "build": build, "product": product, "solve": min(solves)}


def measure() -> dict[str, Any]:
    """All representations at all widths."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": 1},
        "setting": {"examples": EXAMPLES, "outputs": CLASSES, "damping": DAMPING, "dtype": "float32"},
        "curves": {},
    }
    for kind in KINDS:
        measure_one(kind, *network(WIDTHS[0]))
    for width in WIDTHS:
        model, x = network(width)
        parameters = sum(p.numel() for p in model.parameters())
        for kind in KINDS:
            if parameters <= LARGEST.get(kind.__name__, 10**9):
                point = {"parameters": parameters, **measure_one(kind, model, x)}
                result["curves"].setdefault(kind.__name__, []).append(point)
                print(kind.__name__, point, flush=True)
    return result


def slope(points: list[dict[str, float]], quantity: str) -> float:
    """Growth exponent over the last three sizes; 0 where nothing is stored."""
    last = points[-3:]
    values = [point[quantity] for point in last]
    if min(values) <= 0:
        return 0.0
    return float(np.polyfit(np.log([p["parameters"] for p in last]), np.log(values), 1)[0])


def draw(result: dict[str, Any]) -> None:
    """Write the figure as SVG and PNG."""
    with house_style():
        figure = curves(result)
    FIGURE.with_suffix(".svg").write_text(to_svg(figure))
    FIGURE.with_suffix(".png").write_bytes(to_png(figure))


def curves(result: dict[str, Any]) -> Figure:
    """Four panels on logarithmic axes; the legends give the slopes."""
    figure, axes = panels(2, 2, width=5.2, height=3.5)
    for axis, (quantity, name) in zip(axes.flat, QUANTITIES.items(), strict=True):
        for kind, points in result["curves"].items():
            shown = [p for p in points if p[quantity] > 0]
            if shown:
                text = f"{kind.removeprefix('PMat')}, {slope(points, quantity):.2f}"
                axis.plot([p["parameters"] for p in shown], [p[quantity] for p in shown], marker="o", label=text)
            else:
                axis.plot([], [], marker="o", label=f"{kind.removeprefix('PMat')}, nothing")
        axis.set_xscale("log")
        axis.set_yscale("log")
        label(axis, "parameters d", name, name.partition(" [")[0])
        legend_beside(axis, title="slope in d")
    return figure


def table(result: dict[str, Any]) -> str:
    """Markdown: the largest size measured, and the slopes."""
    header = "| representation | largest d | stored there | build | `F @ v` | first `solve` | slopes (in this order) |"
    lines = [header, "|---|---|---|---|---|---|---|"]
    for kind, points in result["curves"].items():
        last = points[-1]
        slopes = ", ".join(f"{slope(points, quantity):.1f}" for quantity in QUANTITIES)
        stored = f"{4 * last['numbers'] / 1e6:,.1f} MB"
        times = " | ".join(
            f"{1e3 * last[key]:,.{digits}f} ms" for key, digits in (("build", 0), ("product", 2), ("solve", 1))
        )
        lines.append(f"| `{kind}` | {last['parameters']:,} | {stored} | {times} | {slopes} |")
    return "\n".join(lines)


def page(text: str, result: dict[str, Any]) -> str:
    """The page with its measured part renewed."""
    before, rest = text.split(START, 1)
    return f"{before}{START}\n\n{table(result)}\n\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    DATA.parent.mkdir(exist_ok=True)
    if "measure" in sys.argv[1:]:
        DATA.write_text(json.dumps(measure(), indent=1) + "\n")
    measured = json.loads(DATA.read_text())
    draw(measured)
    PAGE.write_text(page(PAGE.read_text(), measured))
