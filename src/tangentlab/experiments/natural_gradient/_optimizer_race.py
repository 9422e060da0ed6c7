"""Races between optimizers: every method gets a grid of the same size and the same budget, judged by training loss.

The protocol of chapter 4: hyper-parameters are selected by training loss; at each epoch the best loss over the whole grid
is the method's curve (its lower envelope); the clock runs during updates alone; a validation panel stands beside it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from torch import Tensor, nn

from tangentlab.experiments import Lab, Minibatches, Results, Training, train
from tangentlab.experiments._images import Points, Row, evaluation
from tangentlab.figures.style import PALETTE

Make = Callable[[nn.Module, float, float], torch.optim.Optimizer]
DIVERGED = math.inf
"""The loss of a training that diverged, which no measure may take for a number."""


@dataclass(frozen=True)
class Competitor:
    """One competitor.

    Attributes:
        key, name: in tables, and in figures.
        first, second: names of the two hyper-parameters of its grid.
        make: (model, first, second) -> optimizer.
        norm: whether its network has batch norm.
        color: in figures.
    """

    key: str
    name: str
    first: str
    second: str
    make: Make
    norm: bool = False
    color: str = PALETTE[0]


@dataclass(frozen=True)
class Field:
    """What all competitors of a race share.

    Attributes:
        network: (batch norm?) -> a fresh network.
        loss: (model, batch) -> mean loss of the batch.
        score: (model) -> training and validation numbers of the model in evaluation mode, e.g. {"train": .., "valid": ..}.
        batches: of the training set.
        epochs: length of a training.
    """

    network: Callable[[bool], nn.Module]
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
    score: Callable[[nn.Module], dict[str, float]]
    batches: Minibatches
    epochs: int

    @property
    def steps(self) -> int:
        """Updates of one training."""
        return self.epochs * self.batches.per_epoch


def compete(
    lab: Lab,
    field: Field,
    method: Competitor,
    point: tuple[float, float],
    table: str,
    after_update: Callable[[torch.optim.Optimizer, Training], None] | None = None,
    **facts: Any,
) -> list[Row]:
    """Train with one setting; a row per epoch goes to the log and comes back, also after a restart.

    A training that diverges, or whose loss is not finite at an epoch, keeps the loss `DIVERGED` from there on. Of a finished
    training the rows are kept, and not its weights.
    """
    own = {"method": method.key, "first": point[0], "second": point[1], **facts}
    name = " ".join(str(value) for value in own.values())

    def race() -> list[Row]:
        model = field.network(method.norm)
        optimizer = method.make(model, *point)

        def record(training: Training) -> list[Row]:
            with evaluation(model, field.batches, lab.capped(5)):
                scores = {key: value if math.isfinite(value) else DIVERGED for key, value in field.score(model).items()}
            clock = {"epoch": round(training.epoch), "updates": training.step, "seconds": training.seconds}
            row = {**own, **clock, **scores}
            lab.log(table, **row)
            return [row]

        points = Points(range(0, field.steps + 1, field.batches.per_epoch), record)
        hook = None if after_update is None else lambda training: after_update(optimizer, training)
        with warnings.catch_warnings():  # non-finite gradients on the way out
            warnings.filterwarnings("ignore", message="Step ", category=RuntimeWarning)
            train(
                model, field.batches, field.loss, optimizer, field.steps, lab=lab, name=name, callbacks=[points],
                after_update=hook,
            )  # fmt: skip
        return points.rows

    rows = lab.stage(f"race {name}", race)
    lab.forget(f"train {name}")
    return finished(rows, field.epochs)


def finished(rows: list[Row], epochs: int) -> list[Row]:
    """Rows of all epochs: those that a diverged training did not reach are `DIVERGED`."""
    last = rows[-1]
    numbers = [key for key, value in last.items() if key in ("train", "valid", "error")]
    missing = range(last["epoch"] + 1, epochs + 1)
    return rows + [{**last, "epoch": epoch, **dict.fromkeys(numbers, DIVERGED)} for epoch in missing]


def grid(first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    """All pairs."""
    return list(product(first, second))


def envelope(rows: Iterable[Row], key: str = "train") -> dict[int, float]:
    """The best value over the grid at each epoch."""
    best: dict[int, float] = {}
    for row in rows:
        best[row["epoch"]] = min(best.get(row["epoch"], DIVERGED), row[key])
    return best


def winner(rows: Iterable[Row], key: str = "train") -> tuple[float, float]:
    """The setting with the best value at the last epoch."""
    rows = list(rows)
    last = max(row["epoch"] for row in rows)
    best = min((row for row in rows if row["epoch"] == last), key=lambda row: row[key])
    return best["first"], best["second"]


def share_below(one: dict[int, float], other: dict[int, float]) -> float:
    """Share of the epochs, from the first on, at which one curve is below the other."""
    epochs = [epoch for epoch in one if epoch > 0 and epoch in other]
    return sum(one[epoch] < other[epoch] for epoch in epochs) / max(len(epochs), 1)


def reaches(rows: Iterable[Row], goal: float, unit: str = "epoch") -> float:
    """The first epoch (or second) at which a curve is at or below a goal; infinite if it never is."""
    found = [float(row[unit]) for row in rows if row["train"] <= goal]
    return min(found, default=math.inf)


def best_at(rows: Iterable[Row], seconds: float) -> float:
    """The best training loss over the grid that was reached within so much time."""
    return min((row["train"] for row in rows if row["seconds"] <= seconds), default=DIVERGED)


def equal_time(one: list[Row], other: list[Row]) -> tuple[float, float]:
    """Best training losses of two methods by the time at which the first of their selected trainings ends."""
    end = min(curve(rows, winner(rows))[-1]["seconds"] for rows in (one, other))
    return best_at(one, end), best_at(other, end)


def halving(rate: float, updates: int) -> Callable[[torch.optim.Optimizer, Training], None]:
    """An `after_update` that halves the learning rate every so many updates."""

    def halve(optimizer: torch.optim.Optimizer, training: Training) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate * 0.5 ** ((training.step + 1) // updates)

    return halve


def curve(rows: Iterable[Row], point: tuple[float, float], **conditions: Any) -> list[Row]:
    """The rows of one setting, by epoch."""
    wanted = {"first": point[0], "second": point[1], **conditions}
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return sorted(found, key=lambda row: row["epoch"])


def logged(results: Results, table: str, **conditions: Any) -> list[Row]:
    """Rows of a table as plain dictionaries."""
    return [dict(row) for row in results.table(table, **conditions).rows]


def draw_envelopes(axes: Axes, rows: list[Row], methods: Sequence[Competitor], unit: str, key: str = "train") -> None:
    """Lower envelopes over epochs, or the selected settings over seconds."""
    for method in methods:
        own = [row for row in rows if row["method"] == method.key]
        if not own:
            continue
        if unit == "epoch":
            best = envelope(own, key)
            places, values = list(best), list(best.values())
        else:
            chosen = curve(own, winner(own))
            places, values = [row[unit] for row in chosen], [row[key] for row in chosen]
        kept = [(place, value) for place, value in zip(places, values, strict=True) if value < DIVERGED]
        axes.plot(*zip(*kept, strict=True), color=method.color, label=method.name)
    if unit == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def logarithmic(*panels: Axes) -> None:
    """Losses on a logarithmic axis with plain numbers, once they are drawn; where they span little, as they are."""
    for axes in panels:
        low, high = axes.dataLim.intervaly
        if low <= 0 or high < 3 * low:
            continue
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
