"""The figures of a recording: training, alignment, layers, spectrum, linearity, complexity, curvature, cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, pairwise
from math import nan
from typing import TYPE_CHECKING, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tangentlab.figures.picture import Picture
from tangentlab.figures.style import INK, PALETTE, SEQUENTIAL, house_style, label, panels, quantity

if TYPE_CHECKING:
    from tangentlab.recorder.recording import Recording

Line = Literal["-", "--", ":", "-."]
LINES: tuple[Line, ...] = ("-", "--", ":", "-.")
LAYERS_NAMED = 24
PROBES_IN_A_ROW = 6
STEPS = "training step"


def pictures(recording: Recording) -> list[Picture]:
    """All figures for which something was recorded."""
    makers: tuple[Callable[[Recording], Picture | None], ...] = (
        training,
        alignment,
        layers,
        partial(layers, centred=False),
        spectrum,
        partial(spectrum, centred=False),
        linearity,
        frequencies,
        complexity,
        curvature,
        cost,
    )
    with house_style():
        return [picture for picture in (make(recording) for make in makers) if picture is not None]


def training(recording: Recording) -> Picture | None:
    """Loss and accuracy on the probes."""
    return _by_probe(
        recording,
        "training",
        [
            ("loss", quantity("mean loss", "nats"), "loss"),
            ("accuracy", "share of right answers", "accuracy"),
        ],
        "Loss and accuracy on the probes.",
    )


def alignment(recording: Recording) -> Picture | None:
    """CKA and KA with the labels."""
    return _by_probe(
        recording,
        "alignment",
        [("cka", "CKA with the labels", "centred"), ("ka", "KA with the labels", "not centred")],
        "Alignment of the tangent kernel with the labels, between 0 and 1. It rises where the network's gradients come to "
        "tell the classes apart. Left: features centred per output; right: as they are.",
    )


def layers(recording: Recording, centred: bool = True) -> Picture | None:
    """CKA, or KA, of every layer as a map over steps."""
    found = {probe: recording.layers(probe, centred) for probe in recording.probes}
    probes = [probe for probe in found if found[probe]]
    if not probes:
        return None
    names, what = list(found[probes[0]]), "CKA" if centred else "KA"
    height = min(6.0, max(2.6, 1.2 + 0.17 * min(len(names), LAYERS_NAMED)))
    figure, (axes,) = panels(len(probes), width=4.6 if len(probes) < 3 else 3.6, height=height, sharey=True)
    tables = [np.array(list(found[probe].values())) for probe in probes]
    highest = max(float(np.nanmax(table)) for table in tables) or 1.0
    for one, probe, table in zip(axes, probes, tables, strict=True):
        image = one.imshow(table, aspect="auto", interpolation="nearest", vmin=0, vmax=highest)
        one.grid(False)
        steps = [row["step"] for row in recording.snapshots]
        shown = _some(len(steps), 8)
        one.set_xticks(shown, [f"{steps[place]:,}" for place in shown], rotation=45)
        named = _some(len(names), LAYERS_NAMED)
        one.set_yticks(named, [names[place] for place in named], fontsize=7.5)
        label(one, STEPS, "layer, from input to output" if one is axes[0] else "", probe)
    figure.colorbar(image, ax=list(axes), label=f"{what} with the labels", shrink=0.92)
    return Picture(
        "layers" if centred else "layers-uncentred",
        figure,
        f"{what} with the labels of the kernel of every layer alone{'' if centred else ', not centred'}; the kernels of all "
        "layers add up to the tangent kernel.",
    )


def spectrum(recording: Recording, centred: bool = True) -> Picture | None:
    """Eigenvalues, effective rank and trace ratios."""
    mark = "" if centred else "uncentred/"
    probes = [probe for probe in recording.probes if f"{probe}/{mark}effective_rank" in recording.names]
    if not probes:
        return None
    figure, ((values, ranks, shares),) = panels(3, height=3.5)
    for line, probe in zip(_lines(probes), probes, strict=True):
        for color, name in zip(PALETTE, ("max", "mean", "median"), strict=False):
            _curve(values, recording, f"{probe}/{mark}{name}", name, color, line)
        _curve(ranks, recording, f"{probe}/{mark}effective_rank", probe, PALETTE[0], line)
        for color, name in zip(PALETTE[2:], ("T_4%", "T_8%", "T_16%"), strict=False):
            _curve(shares, recording, f"{probe}/{mark}{name}", name.removeprefix("T_"), color, line)
    if all(value > 0 for probe in probes for value in recording.curve(f"{probe}/{mark}median")[1]):
        values.set_yscale("log")
    label(values, STEPS, "eigenvalue", "eigenvalues")
    label(ranks, STEPS, "effective rank", "effective rank")
    label(shares, STEPS, "share of the trace", "in the largest")
    _finish(figure, recording, [values, ranks, shares], probes)
    for axes in (values, shares):
        lines = {str(one.get_label()): str(one.get_color()) for one in axes.get_lines()}
        _legend(axes, [(color, "-", text) for text, color in lines.items() if not text.startswith("_")])
    return Picture(
        "spectrum" if centred else "spectrum-uncentred",
        figure,
        f"The tangent kernel, {'centred per output' if centred else 'not centred'}. Left: its largest, mean and median "
        "eigenvalue. Middle: exp of the entropy of the spectrum, between 1 and the number of rows. Right: what the largest 4, "
        "8 and 16 % of the eigenvalues hold.",
    )


def linearity(recording: Recording) -> Picture | None:
    """Similarity with the start of training."""
    shown = [
        ("ntk_similarity", "KA with the first kernel", "tangent kernel"),
        ("sign_similarity", "share of equal signs", "ReLU patterns"),
        ("representation_similarity", "KA with the first", "last representation"),
    ]
    return _by_probe(
        recording,
        "linearity",
        shown,
        "How much is left of the network at its start: 1 as long as training is linear.",
    )


def frequencies(recording: Recording) -> Picture | None:
    """The learnt share of every band of kernel eigenvectors."""
    marks = {probe: f"{probe}/learnt/" for probe in recording.probes}
    found = {probe: [name for name in recording.names if name.startswith(mark)] for probe, mark in marks.items()}
    present = [probe for probe in found if found[probe]]
    if not present:
        return None
    figure, (axes,) = panels(len(present), sharey=True)
    for panel, probe in zip(axes, present, strict=True):
        shades = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.88, len(found[probe])))
        colors = [to_hex(shade) for shade in shades]
        bands = [name.removeprefix(marks[probe]) for name in found[probe]]
        for color, name, band in zip(colors, found[probe], bands, strict=True):
            _curve(panel, recording, name, band, color, "-")
        label(panel, STEPS, "share of the error that is gone" if panel is axes[0] else "", probe)
        _legend(panel, [(color, "-", band) for color, band in zip(colors, bands, strict=True)])
    _finish(figure, recording, list(axes), [])
    return Picture(
        "frequencies",
        figure,
        "How much of the error at the first snapshot is gone, along eigenvectors of the first tangent kernel: 1 is the "
        "leading one, the smoothest function of the probe, and higher numbers are rougher. Lines that rise one after the other "
        "are spectral bias.",
    )


def complexity(recording: Recording) -> Picture | None:
    """C(f), the path of the parameters, and the size of the tangent features."""
    if "complexity" not in recording.names:
        return None
    figure, ((flow, path, norm),) = panels(3)
    _curve(flow, recording, "complexity", "every step", PALETTE[0], "-")
    _curve(flow, recording, "complexity_between_logs", "between snapshots", PALETTE[1], "--")
    _curve(path, recording, "path_length", "length", PALETTE[0], "-")
    _curve(path, recording, "distance_from_start", "distance", PALETTE[1], "--")
    _curve(norm, recording, "feature_norm", "", PALETTE[0], "-")
    label(flow, STEPS, "C(f)", "complexity")
    label(path, STEPS, "parameter norm", "path of the parameters")
    label(norm, STEPS, "√tr K", "tangent features")
    _finish(figure, recording, [flow, path, norm], [])
    _legend(flow, [(PALETTE[0], "-", "every step"), (PALETTE[1], "--", "between snapshots")])
    _legend(path, [(PALETTE[0], "-", "length"), (PALETTE[1], "--", "distance from start")])
    return Picture(
        "complexity",
        figure,
        "C(f) sums the lengths of the steps times the norm of the tangent features at the last snapshot, or the "
        "displacements between snapshots only.",
    )


def curvature(recording: Recording) -> Picture | None:
    """Traces of Fisher matrix and Hessian."""
    shown = [
        ("fisher_trace", "trace", "Fisher matrix"),
        ("hessian_trace", "trace", "Hessian of the loss"),
    ]
    return _by_probe(
        recording,
        "curvature",
        shown,
        "Traces by random signs, of the Fisher factors and of the parameters: unbiased estimates from few draws, so single "
        "points scatter.",
    )


def cost(recording: Recording) -> Picture | None:
    """Seconds of every snapshot and the overhead so far."""
    rows = recording.snapshots
    figure, ((seconds, share),) = panels(2, height=3.5)
    parts = list(dict.fromkeys(part for row in rows for part in row["parts"]))
    below, places = np.zeros(len(rows)), np.arange(len(rows))
    for color, part in zip(cycle(PALETTE), parts, strict=False):
        values = np.array([row["parts"].get(part, 0.0) for row in rows])
        seconds.bar(places, values, bottom=below, color=color, width=0.8, label=part)
        below += values
    shown = _some(len(rows), 8)
    seconds.set_xticks(shown, [f"{rows[place]['step']:,}" for place in shown], rotation=45)
    seconds.grid(False, axis="x")
    label(seconds, STEPS, quantity("time", "s"), "time of a snapshot")
    trained = [row for row in rows if row["step"] > 0]
    share.plot([row["step"] for row in trained], [100 * row["overhead"] for row in trained], "o-", color=PALETTE[0])
    share.set_yscale("log")
    _step_axis(share, recording)
    label(share, STEPS, quantity("recorder / training time", "%"), "overhead so far")
    colored = zip(cycle(PALETTE), parts, strict=False)
    handles = [Line2D([], [], color=color, linewidth=5, label=part) for color, part in colored]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return Picture(
        "cost", figure, "What the recorder cost: seconds of every snapshot, and all of it over the training time."
    )


def _by_probe(recording: Recording, name: str, shown: Sequence[tuple[str, str, str]], caption: str) -> Picture | None:
    """One panel per quantity (key, axis, title), one line per probe."""
    found = [one for one in shown if any(f"{probe}/{one[0]}" in recording.names for probe in recording.probes)]
    if not found:
        return None
    present = [p for p in recording.probes if any(f"{p}/{one[0]}" in recording.names for one in found)]
    figure, (axes,) = panels(len(found))
    for panel, (key, axis, title) in zip(axes, found, strict=True):
        for color, line, probe in zip(cycle(PALETTE), _lines(present), present, strict=False):
            _curve(panel, recording, f"{probe}/{key}", probe, color, line)
        label(panel, STEPS, axis, title)
    _finish(figure, recording, list(axes), present, colors=True)
    return Picture(name, figure, caption)


def _curve(axes: Axes, recording: Recording, name: str, text: str, color: str, line: str) -> None:
    """A line that is broken where the measurement is missing."""
    if name in recording.names:
        steps = [row["step"] for row in recording.snapshots]
        values = [nan if value is None else value for value in recording.track(name)]
        axes.plot(steps, values, line, color=color, label=text, marker="o", markersize=2.8)


def _mark_gaps(axes: Axes, recording: Recording) -> None:
    """A grey band between the points around snapshots at which no line of the panel has a finite value."""
    steps = [row["step"] for row in recording.snapshots]
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    seen = np.isfinite(np.array(lines)).any(axis=0) if lines else np.ones(len(steps), dtype=bool)
    edges = [place for place in range(len(steps)) if seen[place]]
    for before, after in pairwise([0, *edges, len(steps) - 1]):
        if not seen[before : after + 1].all():
            axes.axvspan(steps[before], steps[after], color=INK, alpha=0.1, linewidth=0)
    axes.set_xlim(right=max(float(axes.get_xlim()[1]), steps[-1]))


def _lines(probes: Sequence[str]) -> list[Line]:
    """One per probe, so that probes of the same colour have different ones."""
    return [LINES[(number + number // len(PALETTE)) % len(LINES)] for number in range(len(probes))]


def _finish(
    figure: Figure, recording: Recording, axes: Sequence[Axes], probes: Sequence[str], *, colors: bool = False
) -> None:
    """Logarithmic steps, marks where the size changed, and the probes' lines named below the figure."""
    for panel in axes:
        _mark_gaps(panel, recording)
        _step_axis(panel, recording)
        for before, after in pairwise(recording.snapshots):
            if (before["examples"], before["outputs"]) != (after["examples"], after["outputs"]):
                panel.axvline(after["step"], color=INK, alpha=0.35, linewidth=1, linestyle=(0, (1, 2)))
    if len(probes) > 1:
        chosen = cycle(PALETTE if colors else (INK,))
        handles = [
            Line2D([], [], color=color, linestyle=line, label=probe)
            for color, line, probe in zip(chosen, _lines(probes), probes, strict=False)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(probes), PROBES_IN_A_ROW))


def _step_axis(axes: Axes, recording: Recording) -> None:
    """Logarithmic from the first update on, with step 0 beside it."""
    steps = [row["step"] for row in recording.snapshots if row["step"] > 0]
    if steps and steps[-1] > 10 * steps[0]:
        axes.set_xscale("symlog", linthresh=steps[0])
        axes.set_xlim(left=-0.15 * steps[0])
        powers = [10**power for power in range(len(str(steps[-1]))) if 10**power >= steps[0]]
        axes.xaxis.set_major_locator(FixedLocator([0, *powers]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _legend(axes: Axes, entries: Sequence[tuple[str, Line, str]]) -> None:
    """(colour, line, name) below the axis label, two or three in a row."""
    handles = [Line2D([], [], color=color, linestyle=line, label=text) for color, line, text in entries]
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=min(3, len(entries)),
        borderaxespad=0.0,
        columnspacing=1.0,
        fontsize=8,
    )


def _some(count: int, most: int) -> list[int]:
    """At most so many of 0 ... count - 1, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})
