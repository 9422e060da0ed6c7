"""The panels of figures 4.5, 4.6 and A.1 to A.5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tangentlab.experiments import Picture, Results
from tangentlab.experiments._images import Row
from tangentlab.experiments.natural_gradient._competitors import NATURAL
from tangentlab.experiments.natural_gradient._convolutional_claims import SCHEDULED, of
from tangentlab.experiments.natural_gradient._optimizer_race import Competitor, draw_envelopes, logarithmic, logged
from tangentlab.figures.style import label, legend_outside, panels, quantity

if TYPE_CHECKING:
    from tangentlab.experiments.natural_gradient.convolutional import ConvolutionalRace

LOSS, TIME = quantity("training loss", "nats"), quantity("time in updates", "s")


def draw(results: Results, race: ConvolutionalRace) -> Iterator[Picture]:
    """The main figure, the batch sizes, the schedule."""
    rows, methods = logged(results, "race"), race.methods()
    vgg = "ekfac" in race.family
    yield _main("figure-4.5" if vgg else "figure-4.6", rows, race, methods)
    family = [method for method in methods if method.key in NATURAL]
    yield _batches("figure-a.1" if vgg else "figure-a.3", rows, race, family)
    if vgg:
        yield _updates(rows, race, [method for method in family if method.key != "ekfac-ra"])
    scheduled = [method for method in methods if method.key in SCHEDULED]
    yield _schedule("figure-a.4" if vgg else "figure-a.5", logged(results, "halved"), scheduled)


def _finish(figure: Figure, axes: Sequence[Axes]) -> None:
    logarithmic(*axes)
    legend_outside(figure, axes[0], 4)


def _main(name: str, rows: list[Row], race: ConvolutionalRace, methods: list[Competitor]) -> Picture:
    own = [row for row in rows if row["batch"] == race.batch_of(row["method"])]
    figure, ((left, middle, right),) = panels(3)
    draw_envelopes(left, own, methods, "epoch")
    draw_envelopes(middle, own, methods, "seconds")
    draw_envelopes(right, own, methods, "epoch", key="error")
    label(left, "epoch", LOSS, "best over the settings")
    label(middle, TIME, LOSS, "selected setting")
    label(right, "epoch", "validation error", "best over the settings")
    _finish(figure, (left, middle))
    return Picture(
        name,
        figure,
        f"Left: at each epoch the best training loss over all settings of a method. Middle: the setting with the best "
        f"final training loss, against the time spent in updates. Right: the best validation error over all settings. "
        f"Batches of {race.batches[2]} images for EKFAC, EKFAC-ra and KFAC, of {race.batches[1]} for the others.",
    )


def _batches(name: str, rows: list[Row], race: ConvolutionalRace, methods: list[Competitor]) -> Picture:
    figure, ((*axes,),) = panels(3)
    for panel, size in zip(axes, race.batches, strict=True):
        draw_envelopes(panel, [row for row in rows if row["batch"] == size], methods, "epoch")
        label(panel, "epoch", LOSS, f"batches of {size}")
    _finish(figure, axes)
    return Picture(
        name, figure, "At each epoch the best training loss over the settings of a method, for three batch sizes."
    )


def _updates(rows: list[Row], race: ConvolutionalRace, methods: list[Competitor]) -> Picture:
    figure, ((left, right),) = panels(2)
    for size, style in zip(race.batches, (":", "--", "-"), strict=True):
        own = [row for method in methods for row in of(rows, method.key, size)]
        for panel, unit in ((left, "updates"), (right, "seconds")):
            before = len(panel.lines)
            draw_envelopes(panel, own, methods, unit)
            for line in panel.lines[before:]:
                line.set(linestyle=style, label=f"{line.get_label()}, {size}")
    label(left, "updates", LOSS)
    label(right, TIME, LOSS)
    left.set_xscale("symlog", linthresh=10)
    _finish(figure, (left, right))
    return Picture(
        "figure-a.2",
        figure,
        "Training loss of the selected settings against the number of updates and the time spent in them, for three batch "
        "sizes.",
    )


def _schedule(name: str, rows: list[Row], methods: list[Competitor]) -> Picture:
    figure, ((left, right),) = panels(2)
    draw_envelopes(left, rows, methods, "epoch")
    draw_envelopes(right, rows, methods, "seconds")
    label(left, "epoch", LOSS)
    label(right, TIME, LOSS)
    _finish(figure, (left, right))
    return Picture(name, figure, "Training loss with a learning rate that is halved every few epochs.")
