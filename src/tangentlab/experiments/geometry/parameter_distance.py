"""Figure 2.1: distances of parameters against distances of the functions that they describe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.figures.style import GRAY, PALETTE, label, legend_below, panels, quantity

SMALL_VARIANCE = 1 - math.sqrt(3 / 4)
NORMALS = {"A": (0.0, 1.0), "B": (0.0, 2.0), "C": (-0.5, SMALL_VARIANCE), "D": (0.5, SMALL_VARIANCE)}
PAIRS = ("AB", "CD")
HALF_WIDTH = 1.959963984540054  # of the central 95 % of a standard normal


def normal_kl(p: tuple[float, float], q: tuple[float, float]) -> float:
    """KL(p || q) of normals given by (mean, variance), in nats."""
    return 0.5 * (math.log(q[1] / p[1]) + (p[1] + (p[0] - q[0]) ** 2) / q[1] - 1)


def fisher_rao(p: tuple[float, float], q: tuple[float, float]) -> float:
    """Length of the shortest path between two normals in the metric diag(1/v, 1/(2 v^2)) of (mean, variance)."""
    gap = (p[0] - q[0]) ** 2 / 2 + (math.sqrt(p[1]) - math.sqrt(q[1])) ** 2
    return math.sqrt(2) * math.acosh(1 + gap / (2 * math.sqrt(p[1] * q[1])))


def interval(p: tuple[float, float]) -> tuple[float, float]:
    """The central 95 % interval of a normal."""
    reach = HALF_WIDTH * math.sqrt(p[1])
    return p[0] - reach, p[0] + reach


def overlap(p: tuple[float, float], q: tuple[float, float]) -> float:
    """Length of the intersection of the two 95 % intervals over that of their union."""
    (a, b), (c, d) = interval(p), interval(q)
    return max(0.0, min(b, d) - max(a, c)) / (max(b, d) - min(a, c))


@experiment
class ParameterDistance(Experiment):
    """Four normals, two pairs at parameter distance 1 (figure 2.1), and the same comparison over all variances."""

    name = "parameter-distance"
    title = "Equal steps in parameters are unequal steps in functions"
    question = (
        "Do two models that are equally far apart in their parameters also differ equally in what they compute? "
        "Four normal distributions, each described by its mean and its variance, say no: A and B lie at distance 1 in "
        "the parameter plane, and so do C and D, yet A and B are nearly the same distribution while C and D hardly "
        "overlap.\n\nThis is why tangentlab measures steps by what they do to the function: the Fisher metric, "
        "diag(1/v, 1/(2v²)) for a normal with variance v, tells the two pairs apart."
    )
    chapter = Chapter.GEOMETRY
    place = "§2.4.1, figure 2.1"
    claims = claims_of("parameter-distance")
    random = False
    scales = {"smoke": {"sweep": 5, "quadrature": 20001}}
    minutes = {"smoke": 0.1, "desk": 0.1, "paper": 0.1}

    sweep: int = 60
    quadrature: int = 200001

    def cost(self) -> Cost:
        """One step per variance."""
        return Cost(self.sweep, 1e-4, 350)

    def run(self, lab: Lab) -> None:
        """Closed forms for the four normals; the divergence at unit distance as the variance goes from 0.05 to 10."""
        for pair in PAIRS:
            p, q = NORMALS[pair[0]], NORMALS[pair[1]]
            values = {"kl": normal_kl(p, q), "kl_swapped": normal_kl(q, p), "fisher_rao": fisher_rao(p, q)}
            lab.log("pairs", pair=pair, distance=math.dist(p, q), overlap=overlap(p, q), **values)
        for variance in lab.loop(np.geomspace(0.05, 10, self.sweep).tolist(), "variances"):
            shifted = normal_kl((-0.5, variance), (0.5, variance))
            lab.log("sweep", variance=variance, mean=shifted, spread=normal_kl((0, variance), (0, variance + 1)))
        a, b, c, d = NORMALS.values()
        distances = (math.dist(a, b), math.dist(c, d))
        lab.measure("2.1-equal-parameters", max(abs(distance - 1) for distance in distances))
        lab.measure("2.1-near", overlap(a, b))
        lab.measure("2.1-far", overlap(c, d))
        lab.measure("2.1-kl-ratio", normal_kl(c, d) / max(normal_kl(a, b), normal_kl(b, a)))
        lab.measure("2.1-fisher-rao", fisher_rao(c, d) / fisher_rao(a, b))
        lab.measure("2.1-closed-form", max(self._quadrature_error(*pair) for pair in ((a, b), (b, a), (c, d))))

    def _quadrature_error(self, p: tuple[float, float], q: tuple[float, float]) -> float:
        """Closed form against the trapezoid rule over +-12 standard deviations of p."""
        x = p[0] + math.sqrt(p[1]) * np.linspace(-12, 12, self.quadrature)
        difference = log_normal(x, p) - log_normal(x, q)
        return abs(float(np.trapezoid(np.exp(log_normal(x, p)) * difference, x)) - normal_kl(p, q))

    def draw(self, results: Results) -> Iterator[Picture]:
        """Figure 2.1, and the sweep."""
        figure, ((plane, left, right),) = panels(3)
        _draw_plane(plane)
        for axes, pair in ((left, "AB"), (right, "CD")):
            row = results.table("pairs", pair=pair).rows[0]
            _draw_densities(axes, pair, row["kl"])
        yield Picture(
            "figure-2.1",
            figure,
            "Left: four normal distributions as points of the parameter plane; both dashed segments have length 1. "
            "Middle and right: the densities of each pair, with the central 95 % of each distribution as a bar. "
            "The same step in parameters leaves A and B nearly alike and tears C and D apart.",
        )
        figure, ((axes,),) = panels()
        table = results.table("sweep")
        axes.loglog(table["variance"], table["mean"], label="the mean moves by 1")
        axes.loglog(table["variance"], table["spread"], label="the variance grows by 1")
        label(axes, quantity("variance of the first normal"), quantity("KL divergence", "nats"))
        legend_below(axes)
        yield Picture(
            "unit-distance",
            figure,
            "What a parameter step of length 1 does to a normal, for every variance: between a narrow and a wide "
            "normal the divergence changes by orders of magnitude, and so does the ratio of the two directions.",
        )


def log_normal(x: Any, p: tuple[float, float]) -> Any:
    """Log density of the normal with (mean, variance) p."""
    return -0.5 * ((x - p[0]) ** 2 / p[1] + math.log(2 * math.pi * p[1]))


def _draw_plane(axes: Axes) -> None:
    for pair, colors in (("AB", PALETTE[:2]), ("CD", PALETTE[2:4])):
        points = [NORMALS[name] for name in pair]
        axes.plot(*zip(*points, strict=True), linestyle="--", linewidth=1, color=GRAY, zorder=1)
        for name, point, color in zip(pair, points, colors, strict=True):
            axes.plot(*point, "o", color=color, markersize=7)
            axes.annotate(name, point, xytext=(7, 5), textcoords="offset points", weight="bold", color=color)
    axes.set(xlim=(-1.1, 1.1), ylim=(-0.15, 2.35))
    label(axes, quantity("mean"), quantity("variance"), "two pairs at distance 1")


def _draw_densities(axes: Axes, pair: str, divergence: float) -> None:
    colors = PALETTE[:2] if pair == "AB" else PALETTE[2:4]
    x = np.linspace(-4, 4, 401)
    top = max(float(np.exp(log_normal(NORMALS[name][0], NORMALS[name]))) for name in pair)
    for position, (name, color) in enumerate(zip(pair, colors, strict=True)):
        density = np.exp(log_normal(x, NORMALS[name]))
        axes.plot(x, density, color=color, label=name)
        axes.fill_between(x, density, color=color, alpha=0.15, linewidth=0)
        height = -0.07 * top * (1 + position)
        axes.plot(interval(NORMALS[name]), (height, height), color=color, linewidth=4, solid_capstyle="butt")
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 1.1 * top])
    label(axes, "x", quantity("density"), f"{pair[0]} and {pair[1]}: KL = {divergence:.3f} nats")
    legend_below(axes)
