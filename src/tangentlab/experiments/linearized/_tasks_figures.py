"""Figures of the eigenfunction tasks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tangentlab.experiments import Picture, Results
from tangentlab.experiments.linearized._recipe import NAMES
from tangentlab.figures.style import GRAY, PALETTE, band, label, log_height, panels

PARTS = {"all": "all images", "training": "training images", "validation": "validation images"}
TICKS = [0, 1, 10, 100, 1000]


class TaskFigures:
    """`draw` of the eigenfunction tasks and of their variants."""

    nets: tuple[str, ...]
    indices: tuple[int, ...]

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracy over index; times and distances; alignments."""
        yield _accuracies(results, self.nets)
        yield _distances(results, self.nets)
        if "spike" in results.table("task").rows[0]:
            yield _alignments(results, self.nets, self.indices)


def _index_axis(axes: Any, last: float) -> None:
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
    axes.set_xlim(-0.2, 1.3 * last)
    axes.minorticks_off()


def _accuracies(results: Results, nets: tuple[str, ...]) -> Picture:
    figure, axes = panels(len(nets), width=4.3)
    for panel, kind in zip(axes[0], nets, strict=True):
        for place, (name, style) in enumerate((("network", "-"), ("linearized", "--"))):
            curves = results.curves("task", "index", name, net=kind)
            band(panel, curves, name, color=PALETTE[place], linestyle=style, marker="o")
            rows = results.table("baseline", net=kind)
            if len(rows):
                level, named = float(rows[name].mean()), f"{name}, classes"
                panel.axhline(level, color=PALETTE[place], linestyle=":", linewidth=1.2, label=named)
        panel.axhline(0.5, color=GRAY, linewidth=0.8)
        _index_axis(panel, curves.x[-1])
        panel.set_ylim(0.4, 1.02)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        label(panel, "index of the eigenfunction", "validation accuracy", NAMES[kind])
    return Picture(
        "accuracy",
        figure,
        "Validation accuracy on tasks that are eigenfunctions of the tangent kernel at initialization, cut at 0, for networks "
        "and their linearizations; dotted: on the first five classes against the others. Mean over seeds, all seeds as a band.",
    )


def _distances(results: Results, nets: tuple[str, ...]) -> Picture:
    figure, axes = panels(3)
    names = {"updates": "updates to a loss of 0.01", "distance": "distance from the start", "angle": "1 − cosine"}
    for panel, (key, name) in zip(axes[0], names.items(), strict=True):
        for place, kind in enumerate(nets):
            curves = results.curves("task", "index", key, net=kind)
            band(panel, curves, NAMES[kind], color=PALETTE[place], marker="o")
        _index_axis(panel, curves.x[-1])
        log_height(panel)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
        label(panel, "index of the eigenfunction", name)
    return Picture(
        "distances",
        figure,
        "What a network needs for an eigenfunction: updates until the mean training loss of an epoch is 0.01 (all updates "
        "where it never was), Euclidean distance and angle between the parameters at the start and at the end.",
    )


def _alignments(results: Results, nets: tuple[str, ...], indices: tuple[int, ...]) -> Picture:
    figure, axes = panels(len(nets), len(PARTS), width=4.3)
    known = [index for index in indices if len(results.table("task", index=index))]
    shown = known[len(known) // 3 :: max(1, len(known) // 3)][:3]
    for panel, (part, kind) in zip(axes.flat, product(PARTS, nets), strict=True):
        start = results.array(f"alignments-{kind}-start-{part}")
        places = np.arange(len(start)) + 1
        panel.plot(places, start, color=GRAY, linestyle="--", label="start")
        for place, index in enumerate(shown):
            ends = results.array(f"alignments-{kind}-{index}-{part}")
            panel.plot(places, ends, color=PALETTE[place], linewidth=1, label=f"trained on {index}")
            panel.plot(index + 1, ends[index], "v", color=PALETTE[place], markersize=6)
        panel.set(xscale="log", yscale="log")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        label(panel, "index of the eigenfunction + 1", "alignment with the kernel", f"{NAMES[kind]}, {PARTS[part]}")
    signs = results.table("binarization")
    kept, chance = float(signs["kept"].mean()), float(signs["random_rms"].mean())
    return Picture(
        "alignments",
        figure,
        "Alignment of all eigenfunctions of the initial kernel with the kernel after training on one of them (triangle), and "
        "with the initial kernel, where on all images it is their eigenvalue; functions are scaled to a mean square of 1 on "
        f"the images at hand. First seed. The signs that make the tasks have a cosine of {kept:.2f} with their eigenfunction "
        f"in the mean; random signs one of {float(signs['random_mean'].mean()):.0e} in the mean, of "
        f"{float(signs['random_mean_abs'].mean()):.3f} in absolute value, of {chance:.3f} in root mean square.",
    )
