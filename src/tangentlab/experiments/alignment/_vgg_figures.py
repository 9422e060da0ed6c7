"""Drawings of spectra, effective ranks, trace ratios and alignments along trainings with and without label noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tangentlab.experiments import Picture, Results
from tangentlab.experiments.alignment._kernels import TRACE_RATIOS
from tangentlab.figures.style import PALETTE, band, label, legend_outside, log_height, panels, step_axis

SPLITS = (("train", "-"), ("test", "--"))
_CENTRED = {"": "centred per output", "_raw": "not centred"}


def spectrum(results: Results, name: str, noises: Sequence[float], rate: float, suffix: str, last: int) -> Picture:
    """Accuracy, eigenvalues, effective rank and trace ratios, one column per share of random labels."""
    figure, axes = panels(len(noises), 4, width=4.0, height=2.3, sharex=True)
    for column, noise in enumerate(noises):
        for split, _ in SPLITS:
            facts: dict[str, Any] = {"noise": noise, "rate": rate, "split": split}
            _line(axes[0, column], results, "accuracy", split, PALETTE[5], facts)
            for key, color in (("max", PALETTE[4]), ("mean", PALETTE[0]), ("median", PALETTE[2])):
                _line(axes[1, column], results, key + suffix, key if split == "train" else None, color, facts)
            _line(axes[2, column], results, f"effective_rank{suffix}", None, PALETTE[3], facts)
            _ratios(axes[3, column], results, facts, suffix)
        axes[1, column].set_yscale("log")
        log_height(axes[2, column])
        names = ("accuracy", "eigenvalue", "effective rank", "trace ratio T_k")
        for row, text in enumerate(names):
            title = f"{noise:.0%} random labels" if row == 0 else None
            label(axes[row, column], "step" if row == 3 else "", text, title)
            step_axis(axes[row, column], last)
    for row in range(4):
        handles, texts = axes[row, -1].get_legend_handles_labels()
        if handles:
            axes[row, -1].legend(handles, texts, loc="center left", bbox_to_anchor=(1.01, 0.5))
    _same_rows(axes)
    return Picture(
        name,
        figure,
        f"The tangent kernel of VGG19 on 100 train (solid) and 100 test images (dashed), {_CENTRED[suffix]}, learning rate "
        f"{rate:g}: accuracy, eigenvalues, effective rank, and the share of the trace in the k largest "
        "eigenvalues. Mean over seeds, all seeds as a band.",
    )


def alignment(results: Results, name: str, noises: Sequence[float], rate: float, suffix: str, last: int) -> Picture:
    """Accuracy, CKA, and layer-wise CKA on train and test as maps."""
    key = "ka" if suffix else "cka"
    figure, axes = panels(len(noises), 4, width=4.4, height=2.3)
    for column, noise in enumerate(noises):
        for split, _ in SPLITS:
            facts: dict[str, Any] = {"noise": noise, "rate": rate, "split": split}
            _line(axes[0, column], results, "accuracy", split, PALETTE[5], facts)
            _line(axes[1, column], results, key, split, PALETTE[0], facts)
        for row, text in enumerate(("accuracy", "alignment" if suffix else "CKA with the labels")):
            label(axes[row, column], "step", text, f"{noise:.0%} random labels" if row == 0 else None)
            step_axis(axes[row, column], last)
        for row, (split, _) in enumerate(SPLITS, start=2):
            _layer_map(axes[row, column], results, {"noise": noise, "rate": rate, "split": split}, key)
            axes[row, column].set_title(f"layers, {split}")
    legend_outside(figure, axes[1, 0], above=True)
    _same_rows(axes[:2])
    return Picture(
        name,
        figure,
        f"Alignment of VGG19's tangent kernel with the labels, {_CENTRED[suffix]}, learning rate {rate:g}: accuracy, the "
        "kernel as a whole on train (solid) and test images (dashed), and layer by layer as colours, counted from the input. "
        "Mean over seeds, all seeds as a band.",
    )


def _line(axes: Axes, results: Results, key: str, name: str | None, color: str, facts: dict[str, Any]) -> None:
    """One quantity of one split: train solid, test dashed."""
    style = dict(SPLITS)[facts["split"]]
    band(axes, results.curves("kernel", "step", key, **facts), name, color=color, linestyle=style)


def _ratios(axes: Axes, results: Results, facts: dict[str, Any], suffix: str) -> None:
    style, named = dict(SPLITS)[facts["split"]], facts["split"] == "train"
    found = results.table("kernel", **facts).rows[0]
    for k, shade in zip(TRACE_RATIOS, (1.0, 0.7, 0.45), strict=True):
        if f"T_{k}{suffix}" in found:
            curves = results.curves("kernel", "step", f"T_{k}{suffix}", **facts)
            band(axes, curves, f"k = {k}" if named else None, color=PALETTE[4], alpha=shade, linestyle=style)
    axes.set_ylim(0, 1.02)


def _layer_map(axes: Axes, results: Results, facts: dict[str, Any], key: str) -> None:
    table = results.table("layers", **facts)
    steps, layers = sorted(table.distinct("step")), sorted(table.distinct("layer"))
    values = np.array(
        [[np.mean(table.where(step=step, layer=layer)[key]) for step in steps] for layer in layers], dtype=float
    )
    image = axes.imshow(values, origin="lower", aspect="auto", interpolation="nearest", vmin=0)
    axes.grid(False)
    places = range(0, len(steps), max(1, len(steps) // 5))
    axes.set_xticks(list(places), [f"{steps[place]:,}" for place in places])
    label(axes, "step", "layer")
    figure: Any = axes.figure
    figure.colorbar(image, ax=axes, label="alignment", shrink=0.9)


def _same_rows(axes: Any) -> None:
    """One range per row, so that columns can be compared."""
    for row in axes:
        low, high = min(a.get_ylim()[0] for a in row), max(a.get_ylim()[1] for a in row)
        for one in row:
            one.set_ylim(low, high)
