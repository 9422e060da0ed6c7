"""Section 2.7 of chapter 3: what each representation of the Fisher matrix costs, against the number of parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import nn

from tangentlab import (
    FIM_MonteCarlo,
    LayerCollection,
    PMat,
    PMatBlockDiag,
    PMatDense,
    PMatDiag,
    PMatEKFAC,
    PMatImplicit,
    PMatKFAC,
    PMatLowRank,
    PMatQuasiDiag,
    PVector,
)
from tangentlab.errors import MemoryBudgetError
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.figures.style import INK, PALETTE, label, panels, quantity
from tangentlab.models import ResNet50

Array = NDArray[Any]
Row = dict[str, Any]
REPRESENTATIONS: dict[str, type[PMat]] = {
    "Dense": PMatDense,
    "BlockDiag": PMatBlockDiag,
    "LowRank": PMatLowRank,
    "EKFAC": PMatEKFAC,
    "KFAC": PMatKFAC,
    "QuasiDiag": PMatQuasiDiag,
    "Diag": PMatDiag,
    "Implicit": PMatImplicit,
}
COLORS = dict(
    zip(REPRESENTATIONS, (INK, *(PALETTE[place] for place in (4, 6, 1, 0, 3, 2, 5))), strict=True)  # as in fim-quality
)
FITTED = 4
DAMPING = 0.01


def cpu_seconds(action: Callable[[], Any], budget: float, prepare: Callable[[], None] = lambda: None) -> float:
    """The least processor time of one call, over calls that take `budget` seconds together (three at least).

    Processor time, since the clock on the wall also counts what other programs do.
    """
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 1000):
        prepare()
        started = time.process_time()
        action()
        times.append(time.process_time() - started)
    return max(min(times), 1e-9)


def slope(sizes: Array, values: Array, fitted: int = FITTED) -> float:
    """The exponent of a power law through the `fitted` largest sizes, where overheads matter least."""
    order = np.argsort(sizes)[-fitted:]
    return float(np.polyfit(np.log(sizes[order]), np.log(values[order]), 1)[0])


def square_network(width: int) -> nn.Sequential:
    """Two square layers and ten outputs: about 2 width^2 parameters."""
    layers = (nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10))
    return nn.Sequential(*layers).eval()


EXPONENTS = {
    ("memory", "Dense"): (2.0, 0.1, "The dense matrix takes memory d²."),
    ("memory", "BlockDiag"): (2.0, 0.1, "Blocks take memory Σ d_l²: d² for layers that grow together."),
    ("memory", "LowRank"): (1.0, 0.1, "The low-rank form takes memory c n d, linear in d."),
    ("memory", "KFAC"): (1.0, 0.1, "Kronecker factors take memory Σ (d_in² + d_out²), linear in d for square layers."),
    ("memory", "EKFAC"): (1.0, 0.1, "EKFAC takes memory Σ (d_in² + d_out² + d_l), linear in d for square layers."),
    ("memory", "Diag"): (1.0, 0.01, "The diagonal takes memory d."),
    ("mv", "Dense"): (2.0, 0.4, "A product with the dense matrix takes time d²."),
    ("solve", "Dense"): (3.0, 0.5, "The inverse of the dense matrix takes time d³."),
    ("mv", "KFAC"): (1.5, 0.4, "A product with Kronecker factors takes time Σ d_in d_out (d_in + d_out): d^1.5."),
}


@experiment
class RepresentationCosts(Experiment):
    """Memory, and time of building, mv and solve, of every representation over growing networks."""

    name = "representation-costs"
    title = "What each representation of the Fisher matrix costs"
    question = (
        "The Fisher matrix of a network with d parameters has d² entries. How much memory does each representation "
        "take, and how long do products Fv and damped inverses take, as the network grows?\n\nNetworks of two square "
        "layers and ten outputs are made wider and wider. Memory is what is stored; times are processor times on one "
        "core, the least of several calls, and the first solve includes the factorization that later ones share. "
        "Slopes in the logarithmic plots are the exponents of the theory."
    )
    chapter = Chapter.METRICS
    place = "§3.3.1, §3.3.2.2, §3.4"
    claims = claims_of("representation-costs")
    random = False
    scales = {
        "smoke": {"widths": (6, 8, 12, 16), "examples": 32, "budget": 0.002, "resnet50": False},
        "paper": {"widths": (16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724, 1024, 1448), "examples": 2048},
    }
    minutes = {"smoke": 0.1, "desk": 4, "paper": 60}
    notes = {
        "desk": "products with matrices that fit the processor's cache (32 MB where this was run; the dense matrix leaves it "
        "at 2,900 parameters) are faster than memory allows for larger ones, which steepens their curve."
    }

    widths: tuple[int, ...] = (16, 23, 32, 45, 54, 64, 91, 128, 181, 256, 362, 512)
    examples: int = 1024
    budget: float = 0.2
    dense_limit: int = 9000
    bytes_limit: int = 1_200_000_000
    resnet50: bool = True

    def cost(self) -> Cost:
        """One step is one width."""
        return Cost(len(self.widths), 15, 3000)

    def run(self, lab: Lab) -> None:
        """Every representation at every width, then the network that is too large for a dense matrix."""
        rows: list[Row] = []
        for width in lab.loop(self.widths, "networks"):
            found = lab.stage(f"width {width}", lambda width=width: self._measure(width, lab))  # type: ignore[misc]
            lab.live(parameters=found[0]["d"])
            rows += found
        for row in rows:
            lab.log("cost", **row)
        for (what, kind), (order, _, _) in EXPONENTS.items():
            lab.measure(f"2.7-{what}-{kind.lower()}", abs(slope(*_curve(rows, kind, what)) - order))
        sizes, stored = _curve(rows, "QuasiDiag", "memory")
        lab.measure("2.7-memory-quasidiag", stored[-1] / sizes[-1] / 4)
        dense, kfac = (dict(zip(*_curve(rows, kind, "mv"), strict=True)) for kind in ("Dense", "KFAC"))
        lab.measure("2.7-linear-is-cheaper", dense[max(dense)] / kfac[max(dense)])
        if self.resnet50:
            self._too_large(lab)

    def _measure(self, width: int, lab: Lab) -> list[Row]:
        """One row per representation and quantity: memory in bytes, times in seconds."""
        with lab.seeded("model", width):
            model = square_network(width)
        inputs = torch.randn(self.examples, width, generator=lab.generator("inputs", width))
        layout = LayerCollection.from_model(model)
        v = PVector(layout, torch.randn(layout.numel, generator=lab.generator("vector", width)))
        rows: list[Row] = []
        for kind, representation in REPRESENTATIONS.items():
            if not self._fits(kind, layout):
                continue
            lab.progress(f"{kind}, {layout.numel:,} parameters", 0, None)

            def build(representation: type[PMat] = representation) -> PMat:
                labels = lab.generator("labels", width)
                return FIM_MonteCarlo(model, inputs, representation, generator=labels, progress=False)

            matrix = build()
            where = {"d": layout.numel, "representation": kind}
            rows.append({**where, "what": "memory", "bytes": matrix.nbytes()})
            for what, seconds in self._times(matrix, build, v).items():
                rows.append({**where, "what": what, "seconds": seconds})
        return rows

    def _times(self, matrix: PMat, build: Callable[[], PMat], v: PVector) -> dict[str, float]:
        """Processor seconds of building, of one of many products, and of the first solve, which factorizes."""
        times = {"build": cpu_seconds(build, self.budget)}
        with matrix.frozen():
            times["mv"] = cpu_seconds(lambda: matrix @ v, self.budget)
        fresh = [matrix]

        def forget() -> None:
            if not isinstance(matrix, PMatImplicit):  # it keeps no factorization
                fresh[0] = matrix.to(v.flat.dtype)

        times["solve"] = cpu_seconds(lambda: fresh[0].solve(v, DAMPING), self.budget, forget)
        return times

    def _fits(self, kind: str, layout: LayerCollection) -> bool:
        """Whether a representation is small enough to be measured in reasonable time."""
        layers = [sum(math.prod(layout.shapes[name]) for name in names) for names in layout.layers.values()]
        if kind in ("Dense", "BlockDiag"):
            return (layout.numel if kind == "Dense" else max(layers)) <= self.dense_limit
        return kind != "LowRank" or 4 * self.examples * layout.numel <= self.bytes_limit

    def _too_large(self, lab: Lab) -> None:
        """ResNet50 of 200 classes: the dense matrix is refused, the implicit one multiplies."""
        with lab.seeded("resnet50"):
            model = ResNet50(200, stem="imagenet").eval()
        images = torch.randn(2, 3, 64, 64, generator=lab.generator("images"))
        numel = LayerCollection.from_model(model).numel
        lab.measure("2.7-petabytes", abs(4 * numel**2 / 2.3e15 - 1))
        try:
            FIM_MonteCarlo(model, images, PMatDense, generator=lab.generator("labels"), progress=False)
            lab.measure("2.7-refused", 0)
        except MemoryBudgetError:
            lab.measure("2.7-refused", 1)
        matrix = FIM_MonteCarlo(model, images, PMatImplicit, generator=lab.generator("labels"), progress=False)
        noise = torch.randn(2, numel, generator=lab.generator("vectors"))
        pair = PVector(matrix.layout, noise)
        (_, uFv), (vFu, _) = (noise @ (matrix @ pair).flat.t()).tolist()
        lab.measure("2.7-implicit", abs(uFv - vFu) / abs(uFv))

    def draw(self, results: Results) -> Iterator[Picture]:
        """Memory and three times against the number of parameters, with the fitted exponents."""
        rows = list(results.table("cost").rows)
        figure, axes = panels(2, 2, width=4.4, height=3.2)
        titles = {"memory": "memory", "build": "building it", "mv": "product Fv", "solve": "first solve"}
        for panel, (what, title) in zip(axes.flat, titles.items(), strict=True):
            unit = quantity("memory", "bytes") if what == "memory" else quantity("processor time", "s")
            label(panel, "number of parameters d", unit, title)
            panel.set(xscale="log", yscale="log")
            _draw_curves(panel, {kind: _curve(rows, kind, what) for kind in REPRESENTATIONS})
        handles = {n: line for panel in axes.flat for line, n in zip(*panel.get_legend_handles_labels(), strict=True)}
        names = [kind for kind in REPRESENTATIONS if kind in handles]
        lines = [handles[kind] for kind in names]
        figure.legend(lines, names, loc="outside lower center", ncols=4, columnspacing=1.6)
        yield Picture(
            "costs",
            figure,
            "What each representation costs on networks of two square layers that grow wider. The number at the end of "
            f"a curve is its slope over the {FITTED} largest sizes, the exponent of the power law. The first solve "
            "includes the factorization; the implicit matrix stores nothing and solves by conjugate gradients.",
        )


def _curve(rows: list[Row], kind: str, what: str) -> tuple[Array, Array]:
    """Numbers of parameters and values (bytes or seconds) of one representation, by size."""
    found = {
        row["d"]: row.get("bytes", row.get("seconds"))
        for row in rows
        if (row["representation"], row["what"]) == (kind, what)
    }
    sizes = sorted(found)
    return np.array(sizes, dtype=float), np.array([found[size] for size in sizes], dtype=float)


def _draw_curves(axes: Axes, curves: dict[str, tuple[Array, Array]]) -> None:
    """Every curve, with its exponent behind its last point; the numbers do not cover each other."""
    shown = {kind: curve for kind, curve in curves.items() if curve[1].any()}  # the implicit matrix stores nothing
    for kind, (sizes, values) in shown.items():
        axes.plot(sizes, values, "o-", markersize=3, linewidth=1.4, color=COLORS[kind], label=kind)
    low, high = np.log10(axes.get_ylim())
    ends = {kind: float(np.log10(values[-1])) for kind, (_, values) in shown.items() if len(values) > 1}
    for right in {float(shown[kind][0][-1]) for kind in ends}:  # curves that end at the same size share a column
        column = [kind for kind in ends if shown[kind][0][-1] == right]
        for kind, place in zip(column, spread([ends[kind] for kind in column], 0.055 * (high - low)), strict=True):
            text = f"  {slope(*shown[kind]):.1f}".replace("-", "−")
            note = axes.annotate(
                text, (right, 10**place), color=COLORS[kind], fontsize=8.5, va="center", annotation_clip=False
            )
            note.set_path_effects([withStroke(linewidth=2.5, foreground="white")])  # readable where a curve passes


def spread(places: list[float], distance: float) -> list[float]:
    """The places moved apart as little as needed, in their order, until neighbours are `distance` apart."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _middle(groups[-1], places) - _middle(groups[-2], places) < distance * (
            (len(groups[-1]) + len(groups[-2])) / 2 - 1e-9
        ):
            last = groups.pop()
            groups[-1] += last
    moved = list(places)
    for group in groups:
        start = _middle(group, places) - distance * (len(group) - 1) / 2
        for number, index in enumerate(group):
            moved[index] = start + number * distance
    return moved


def _middle(group: list[int], places: list[float]) -> float:
    return sum(places[index] for index in group) / len(group)
