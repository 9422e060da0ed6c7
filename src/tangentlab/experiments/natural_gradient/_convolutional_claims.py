"""The numbers that decide what figures 4.5, 4.6 and A.1 to A.5 say."""

from __future__ import annotations

from math import isfinite, isnan, log, nan
from typing import TYPE_CHECKING

from tangentlab.experiments._images import Row
from tangentlab.experiments.natural_gradient._optimizer_race import (
    curve,
    envelope,
    equal_time,
    reaches,
    share_below,
    winner,
)

if TYPE_CHECKING:
    from tangentlab.experiments.natural_gradient.convolutional import ConvolutionalRace

SHORT = {"ekfac": ("ekfac", "EKFAC"), "ekfac-ra": ("ra", "EKFAC-ra")}
SCHEDULED = ("ekfac", "ekfac-ra", "kfac", "sgd-bn")
"""Methods that are also run with halved learning rates."""


def of(rows: list[Row], key: str, batch: int) -> list[Row]:
    """Rows of a method with a batch size."""
    return [row for row in rows if row["method"] == key and row["batch"] == batch]


def gain(worse: list[Row], better: list[Row], updates: int | None = None) -> float:
    """Mean over epochs of log(best loss of one / best loss of the other), up to a number of updates (one epoch at least).

    Epochs at which all trainings of one of them have diverged are left out; NaN where none is left.
    """
    one, other = envelope(worse), envelope(better)
    last = max(one) if updates is None else max([1, *(r["epoch"] for r in worse if r["updates"] <= updates)])
    epochs = [epoch for epoch in one if 0 < epoch <= last and isfinite(one[epoch]) and isfinite(other[epoch])]
    return sum(log(one[epoch] / other[epoch]) for epoch in epochs) / len(epochs) if epochs else nan


def measure(race: ConvolutionalRace, rows: list[Row], halved: list[Row]) -> dict[str, float | str]:
    """The number of every claim of the experiment, or why there is none."""
    values = _measured(race, rows, halved)
    return {claim: "all trainings of a method diverged" if isnan(value) else value for claim, value in values.items()}


def _measured(race: ConvolutionalRace, rows: list[Row], halved: list[Row]) -> dict[str, float]:
    main = {key: of(rows, key, race.batch_of(key)) for key in (*race.family, *race.rivals)}
    scheduled = {key: [row for row in halved if row["method"] == key] for key in SCHEDULED}
    figure, schedule_figure = ("4.5", "A.4") if "ekfac" in race.family else ("4.6", "A.5")
    values: dict[str, float] = {}
    for one in (key for key in race.family if key in SHORT):
        for rival in ("kfac", *race.rivals):
            values |= _duel(f"{figure}-{SHORT[one][0]}-{rival}", main[one], main[rival])
        for rival in ("kfac", "sgd-bn"):
            values |= _duel(f"{schedule_figure}-{SHORT[one][0]}-{rival}", scheduled[one], scheduled[rival])
            errors = (min(row["error"] for row in main[key]) for key in (one, rival))
            values[f"{figure}-{SHORT[one][0]}-{rival}-validation"] = next(errors) - next(errors)
    return values | (_batches_vgg(race, rows, main) if "ekfac" in race.family else _batches_resnet(race, rows))


def _duel(claim: str, one: list[Row], rival: list[Row]) -> dict[str, float]:
    ours, theirs = equal_time(one, rival)
    return {claim: share_below(envelope(one), envelope(rival)), f"{claim}-time": ours / theirs}


def _batches_vgg(race: ConvolutionalRace, rows: list[Row], main: dict[str, list[Row]]) -> dict[str, float]:
    small, middle, large = race.batches
    values = {}
    kfac = curve(of(rows, "kfac", middle), winner(of(rows, "kfac", middle)))
    for one in SHORT:
        own = curve(main[one], winner(main[one]))
        reached = reaches(kfac, own[-1]["train"], "seconds")
        values[f"4.5-kfac-catches-{SHORT[one][0]}"] = reached / max(own[-1]["seconds"], 1e-9)
    pairs = {size: (of(rows, "kfac", size), of(rows, "ekfac", size)) for size in (small, large)}
    updates = max(row["updates"] for row in pairs[large][0])
    per_epoch = {size: gain(*pair) for size, pair in pairs.items()}
    per_update = {size: gain(*pair, updates) for size, pair in pairs.items()}
    per_second = {size: _log_ratio(*equal_time(*pair)) for size, pair in pairs.items()}
    values["A.1-batch"] = per_epoch[small] - per_epoch[large]
    values["A.2-updates"] = per_update[large] - per_update[small]
    values["A.2-time"] = per_second[large] - per_second[small]
    return values


def _log_ratio(one: float, other: float) -> float:
    return log(one / other) if isfinite(one) and isfinite(other) else nan


def _batches_resnet(race: ConvolutionalRace, rows: list[Row]) -> dict[str, float]:
    gains = [gain(of(rows, "kfac", size), of(rows, "ekfac-ra", size)) for size in race.batches]
    return {"A.3-batch": nan if any(map(isnan, gains)) else min(gains)}
