"""The figures of the tour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from tangentlab.demo.stations import FisherRow, Kernels, Run
from tangentlab.figures.picture import Picture
from tangentlab.figures.style import INK, PALETTE, label, legend_below, legend_outside, panels, quantity

COLORS = {
    "Dense": INK,
    "Implicit": PALETTE[5],
    "LowRank": PALETTE[6],
    "BlockDiag": PALETTE[4],
    "EKFAC": PALETTE[1],
    "KFAC": PALETTE[0],
    "QuasiDiag": PALETTE[3],
    "Diag": PALETTE[2],
    "SGD": PALETTE[5],
    "EKFAC-ra": PALETTE[0],
}
APPROXIMATIONS = ("BlockDiag", "EKFAC", "KFAC", "QuasiDiag", "Diag")
STATES = {"before training": 0.4, "after training": 1.0}


def overview(before: Sequence[FisherRow], after: Sequence[FisherRow], kernels: Kernels, runs: Sequence[Run]) -> Picture:
    """The tour in one strip: kernel before and after, approximations, training."""
    figure, ((first, second, third, fourth),) = panels(4, width=3.1, height=3.0)
    draw_kernel(first, kernels, before=True)
    draw_kernel(second, kernels, before=False)
    draw_bars(third, before, after, "natural")
    draw_race(fourth, runs, against_time=False)
    fourth.set_title("training")
    fourth.legend(loc="lower left", borderaxespad=0.2)
    return Picture("overview", figure, "The tour in one strip.")


def fisher_picture(before: Sequence[FisherRow], after: Sequence[FisherRow]) -> Picture:
    """Distance to the truth and quality of the natural gradient, before and after training."""
    figure, ((left, right),) = panels(2, height=3.4, sharey=True)
    draw_bars(left, before, after, "frobenius")
    draw_bars(right, before, after, "natural")
    right.set_ylabel("")
    handles = [Patch(color="#787887", alpha=alpha, label=name) for name, alpha in STATES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return Picture(
        "fisher",
        figure,
        "Left: distance of each approximation to the dense Fisher matrix (lower is better). Right: cosine of its "
        "natural gradient with the exact one (higher is better). Pale: before training, where all do well; full: after "
        "it, when the layers have learned to work together, which no approximation by layers can see.",
    )


def kernel_picture(kernels: Kernels) -> Picture:
    """The tangent kernel before and after training, and its spectrum."""
    figure, ((left, middle, right),) = panels(3, height=3.1)
    draw_kernel(left, kernels, before=True)
    draw_kernel(middle, kernels, before=False)
    figure.colorbar(middle.images[0], ax=[left, middle], label="normalized kernel", shrink=0.8, pad=0.02)
    for kernel, name, color in ((kernels.before, "before", PALETTE[5]), (kernels.after, "after", PALETTE[1])):
        values = np.linalg.eigvalsh(kernel.double().numpy())[::-1]
        right.loglog(np.arange(1, len(values) + 1), values / values.sum(), color=color, label=name)
    label(right, "index of the eigenvalue", "share of the trace", "spectrum")
    legend_below(right)
    return Picture(
        "kernel",
        figure,
        "The tangent kernel on test images sorted by digit, every row and column divided by the root of its diagonal, "
        "before and after training, and the eigenvalues of both. Blocks on the diagonal: gradients of images of one "
        "digit have become alike.",
    )


def race_picture(runs: Sequence[Run]) -> Picture:
    """Training loss per epoch and per second."""
    figure, ((left, right),) = panels(2, sharey=True)
    draw_race(left, runs, against_time=False)
    draw_race(right, runs, against_time=True)
    right.set_ylabel("")
    legend_outside(figure, left, 6)
    return Picture(
        "race",
        figure,
        "Training loss of the same network from the same start, each method with the best of three learning rates: "
        "per epoch, and per second spent in updates.",
    )


def draw_bars(axes: Axes, before: Sequence[FisherRow], after: Sequence[FisherRow], key: str) -> None:
    """One quantity of every approximation: a pale bar before training, a full one after it."""
    pairs = [pair for pair in zip(before, after, strict=True) if pair[1].name in APPROXIMATIONS][::-1]
    names = [row.name for row, _ in pairs]
    for column, (alpha, shift) in enumerate(zip(STATES.values(), (0.2, -0.2), strict=True)):
        values = [getattr(pair[column], key) for pair in pairs]
        places = np.arange(len(names)) + shift
        axes.barh(places, values, height=0.36, color=[COLORS[name] for name in names], alpha=alpha)
        for place, value in zip(places, values, strict=True):
            axes.text(max(value, 0), place, f" {value:.2f}", va="center", fontsize=8.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 1.18)
    axes.grid(False, axis="y")
    titles = {"frobenius": "distance to the Fisher matrix", "natural": "natural gradient"}
    units = {"frobenius": "|F̂ − F| / |F|", "natural": "cosine with the exact one"}
    label(axes, units[key], "representation", titles[key])


def draw_kernel(axes: Axes, kernels: Kernels, *, before: bool) -> None:
    """One kernel, with the digits along its axes; both have the same colours."""
    kernel = kernels.before if before else kernels.after
    lowest = float(min(kernels.before.quantile(0.02), kernels.after.quantile(0.02)))
    axes.imshow(kernel.numpy(), vmin=lowest, vmax=1, interpolation="nearest")
    middles = kernels.per_class * (np.arange(10) + 0.5) - 0.5
    axes.set_xticks(middles, [str(digit) for digit in range(10)])
    axes.set_yticks(middles, [str(digit) for digit in range(10)])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    found = kernels.alignment_before if before else kernels.alignment
    title = f"kernel {'before' if before else 'after'} training"
    label(axes, f"digit (alignment with labels {found:.2f})", "digit", title)


def draw_race(axes: Axes, runs: Sequence[Run], *, against_time: bool) -> None:
    """Training loss of every method."""
    for run in runs:
        places = run.seconds if against_time else list(range(len(run.losses)))
        axes.semilogy(places, run.losses, "o-", markersize=3.5, color=COLORS[run.name], label=run.name)
    where = quantity("time in updates", "s") if against_time else "epochs"
    label(axes, where, quantity("training loss", "nats"), "per second" if against_time else "per epoch")
