"""Figures 3.3 to 3.6, and a scoreboard of all operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tangentlab.experiments import Picture, Results
from tangentlab.experiments.metrics._fim_quality_claims import PRACTICAL, ROUNDING, is_practical, mean_by_representation
from tangentlab.experiments.metrics._fim_quality_measures import DRAWS, FACTORED
from tangentlab.figures.style import INK, PALETTE, band, label, legend_outside, panels

STYLES: dict[str, dict[str, Any]] = {
    "KFAC": {"color": PALETTE[0]},
    FACTORED: {"color": PALETTE[0], "linestyle": (0, (3, 1.4))},
    "EKFAC": {"color": PALETTE[1]},
    "BlockDiag": {"color": PALETTE[4]},
    "QuasiDiag": {"color": PALETTE[3]},
    "Diag": {"color": PALETTE[2]},
}
_FLOOR = 3e-8  # rounding; an error of exactly 0 has no place on a logarithmic axis


def pictures(results: Results) -> Iterator[Picture]:
    """All figures, figure 3.3 first."""
    for draws in reversed(DRAWS):
        yield _solve_picture(results, draws)
    yield _forward_picture(
        results,
        "figure-3.4",
        {"residual": "residual (lower is better)", "cosine": "cosine (higher is better)"},
        "Products with random unit vectors v: residual |F̂v − Fv| / |Fv| and cosine of F̂v and Fv, mean over vectors and "
        "seeds, all seeds as a band.",
    )
    yield _forward_picture(
        results,
        "figures-3.5-3.6",
        {"vTMv": "relative error of vᵀFv", "trace": "relative error of tr F"},
        "Quadratic forms (mean over random unit vectors) and trace: relative errors, lower is better. On shared draws "
        "the traces of all but KFAC are right up to rounding; on independent draws what is left is the fluctuation of "
        "the sampled labels.",
    )
    yield _scoreboard(results)


def _solve_picture(results: Results, draws: str) -> Picture:
    table = results.table("solve", draws=draws)
    steps = sorted(table.distinct("step"))
    figure, axes = panels(len(steps), 2, width=2.6, height=2.5, sharex=True, sharey="row")
    for column, step in enumerate(steps):
        for row, key in enumerate(("residual", "cosine")):
            panel = axes[row, column]
            for name in _present(table.distinct("representation")):
                where = {"draws": draws, "step": step, "representation": name}
                band(panel, results.curves("solve", "damping", key, **where), name, **STYLES[name])
            panel.axvspan(*PRACTICAL, color=INK, alpha=0.06, linewidth=0)
            panel.set_xscale("log")
            panel.set_xticks([1e-6, 1e-4, 1e-2, 1, 1e2])
        axes[0, column].set_yscale("log")
        axes[0, column].set_title(_when(results, step))
        axes[1, column].set_xlabel("damping λ")
    axes[0, 0].set_ylabel("residual (lower is better)")
    axes[1, 0].set_ylabel("cosine (higher is better)")
    legend_outside(figure, axes[0, 0], 3 if len(steps) < 4 else 6, columnspacing=1.6)
    kind = "its own labels, as in the paper" if draws == "independent" else "the labels of the exact matrix"
    return Picture(
        "figure-3.3" if draws == "independent" else "figure-3.3-shared",
        figure,
        f"The damped inverse of each approximation F̂, made from {kind}: v′ = (F̂+λ)⁻¹(F+λ)v should be v. Top: "
        "|v − v′| / |v′|; bottom: cosine of v and v′. Mean over random unit vectors and seeds, all seeds as a band. "
        "Columns: points of the training. Shaded: the dampings over which chapter 4 searches.",
    )


def _forward_picture(results: Results, name: str, keys: dict[str, str], caption: str) -> Picture:
    table = results.table("forward")
    steps = sorted(table.distinct("step"))
    figure, axes = panels(len(DRAWS), len(keys), width=4.0, height=2.6, sharex=True, sharey="row")
    for row, (key, what) in enumerate(keys.items()):
        for column, draws in enumerate(DRAWS):
            panel = axes[row, column]
            for kind in _present(table.distinct("representation")):
                curves = results.curves("forward", "step", key, draws=draws, representation=kind)
                places = np.arange(len(curves.x), dtype=float)
                clipped = np.maximum(curves.y, _FLOOR) if key == "trace" else curves.y
                band(panel, type(curves)(places, clipped), kind, marker="o", **STYLES[kind])
            if key == "trace":
                panel.set(yscale="log", ylim=(_FLOOR, 3), yticks=[1e-7, 1e-5, 1e-3, 1e-1])
                panel.minorticks_off()
            panel.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
        axes[row, 0].set_ylabel(what)
    for column, draws in enumerate(DRAWS):
        axes[0, column].set_title(f"{draws} draws of labels")
        axes[-1, column].set_xlabel("updates of the network")
    legend_outside(figure, axes[0, 0], 5, columnspacing=1.6)
    return Picture(name, figure, f"{caption} Left: approximation and truth share the labels; right: each has its own.")


def _scoreboard(results: Results) -> Picture:
    """Operations times representations: the measured means, coloured from the best to the worst of each operation."""
    tasks = _means(results)
    names = _present(list(tasks["solve\n(cosine)"]))
    ranks = np.full((len(names), len(tasks)), np.nan)
    figure, ((axes,),) = panels(1, width=6.2, height=0.5 * len(names) + 1.0)
    for column, (title, values) in enumerate(tasks.items()):
        sign = -1 if "cosine" in title else 1
        places = {name: sum(sign * other < sign * values[name] for other in values.values()) for name in values}
        for name, place in places.items():
            row = names.index(name)
            ranks[row, column] = place / max(1, *places.values())
            style = {"color": "black" if ranks[row, column] < 0.6 else "white", "weight": "normal" if place else "bold"}
            text = f"{values[name]:.3f}" if values[name] else "exact"
            axes.text(column, row, text, ha="center", va="center", **style)
    axes.imshow(1 - ranks, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(tasks)), list(tasks))
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    label(axes, "operation", "representation")
    return Picture(
        "scoreboard",
        figure,
        "All operations at a glance, on shared draws: means over the points of the training, the vectors, the seeds "
        "and (solve) the dampings from 1e−4 to 1e−1. The lighter a cell, the better it ranks in its column; the best "
        "one is bold. The factored form exists for the inverse only.",
    )


def _means(results: Results) -> dict[str, dict[str, float]]:
    """Mean of every operation by representation; what is wrong by no more than rounding counts as 0."""
    forward, solve = results.table("forward", draws="shared").rows, results.table("solve", draws="shared").rows
    titles = {"tr F\n(error)": "trace", "vᵀFv\n(error)": "vTMv", "Fv\n(cosine)": "cosine"}
    tasks = {title: mean_by_representation(forward, key) for title, key in titles.items()}
    practical = [row for row in solve if is_practical(row["damping"])]
    tasks["solve\n(cosine)"] = mean_by_representation(practical, "cosine")
    return {
        title: {name: 0.0 if value < ROUNDING else value for name, value in values.items()}
        for title, values in tasks.items()
    }


def _present(names: list[str]) -> list[str]:
    return [name for name in STYLES if name in names]


def _when(results: Results, step: int) -> str:
    """`25 updates, 41 % right`."""
    accuracy = results.table("training", step=step)["accuracy"].mean()
    return f"{step:,} updates, {100 * accuracy:.0f} % right"
