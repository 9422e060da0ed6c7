"""What figures 4.5, 4.6 and A.1 to A.5 say, and the numbers that decide it."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from tangentlab.experiments import Claim
from tangentlab.experiments._images import Row
from tangentlab.experiments.natural_gradient._race import (
    curve,
    envelope,
    equal_time,
    reaches,
    share_below,
    winner,
)

if TYPE_CHECKING:
    from tangentlab.experiments.natural_gradient.convolutional import ConvolutionalRace

RIVALS = {
    "kfac": "KFAC",
    "sgd": "SGD with momentum",
    "sgd-bn": "SGD with momentum and batch norm",
    "adam": "Adam with batch norm",
    "soap": "SOAP",
}
SHORT = {"ekfac": ("ekfac", "EKFAC"), "ekfac-ra": ("ra", "EKFAC-ra")}
SCHEDULED = ("ekfac", "ekfac-ra", "kfac", "sgd-bn")
"""Methods that are also run with halved learning rates."""


def _per_epoch(figure: str, one: str, rival: str, when: str = "") -> Claim:
    short, name = SHORT[one]
    return Claim(
        f"{figure}-{short}-{rival}",
        f"{name} is faster than {RIVALS[rival]} per epoch{when}.",
        f"share of epochs at which the best training loss over the settings is lower for {name}",
        ">",
        0.5,
        f"figure {figure} a",
    )


def _per_second(figure: str, one: str, rival: str, when: str = "") -> Claim:
    short, name = SHORT[one]
    return Claim(
        f"{figure}-{short}-{rival}-time",
        f"{name} is faster than {RIVALS[rival]} in time{when}.",
        f"best training loss of {name} over that of the other by the time at which the first of the two has ended",
        "<",
        1.0,
        f"figure {figure} b",
    )


def _validation(figure: str, one: str, rival: str) -> Claim:
    short, name = SHORT[one]
    return Claim(
        f"{figure}-{short}-{rival}-validation",
        f"{name} generalizes no worse than {RIVALS[rival]}.",
        "difference of the best validation errors over settings and epochs",
        "<=",
        0.03,
        f"figure {figure} c",
    )


def _main(figure: str, family: tuple[str, ...], rivals: tuple[str, ...], parity: tuple[str, ...]) -> list[Claim]:
    made = [make(figure, one, rival) for one in family for rival in rivals for make in (_per_epoch, _per_second)]
    return made + [_validation(figure, one, rival) for one in family for rival in parity]


def _halved(figure: str, family: tuple[str, ...]) -> list[Claim]:
    when = ", with halved learning rates too"
    pairs = [(one, rival) for one in family for rival in ("kfac", "sgd-bn")]
    return [make(figure, *pair, when) for pair in pairs for make in (_per_epoch, _per_second)]


_GAIN = "log of KFAC's over EKFAC's best training loss"
VGG11 = (
    *_main("4.5", ("ekfac", "ekfac-ra"), tuple(RIVALS), ("kfac", "sgd-bn")),
    Claim(
        "4.5-kfac-catches-ekfac",
        "KFAC with the middle batch catches EKFAC with the largest one in time.",
        "seconds until KFAC has EKFAC's final training loss over EKFAC's seconds",
        "<=",
        1.0,
        "§4.4.2",
    ),
    Claim(
        "4.5-kfac-catches-ra",
        "It does not catch EKFAC-ra.",
        "seconds until KFAC has EKFAC-ra's final training loss over EKFAC-ra's seconds",
        ">",
        1.0,
        "§4.4.2",
    ),
    Claim(
        "A.1-batch",
        "EKFAC's gain over KFAC per epoch shrinks as the batch gets smaller.",
        f"{_GAIN}, mean over epochs: with the smallest batch minus with the largest",
        "<",
        0.0,
        "A.5.1, figure A.1",
    ),
    Claim(
        "A.2-updates",
        "EKFAC's gain per update grows with the batch.",
        f"{_GAIN}, mean over the epochs within as many updates as the largest batch has: with the largest batch minus "
        "with the smallest",
        ">",
        0.0,
        "A.5.1, figure A.2 a",
    ),
    Claim(
        "A.2-time",
        "In time it does not grow.",
        f"{_GAIN} by the time at which the first of the two has ended: with the largest batch minus with the smallest",
        "<=",
        0.0,
        "A.5.1, figure A.2 b",
    ),
    *_halved("A.4", ("ekfac", "ekfac-ra")),
)
RESNET34 = (
    *_main("4.6", ("ekfac-ra",), ("kfac", "sgd-bn", "adam", "soap"), ("kfac", "sgd-bn")),
    Claim(
        "A.3-batch",
        "EKFAC-ra's gain over KFAC is there at every batch size.",
        "log of KFAC's over EKFAC-ra's best training loss, mean over epochs: the smallest over batch sizes",
        ">",
        0.0,
        "A.5.1, figure A.3; §4.4.2",
    ),
    *_halved("A.5", ("ekfac-ra",)),
)


def of(rows: list[Row], key: str, batch: int) -> list[Row]:
    """Rows of a method with a batch size."""
    return [row for row in rows if row["method"] == key and row["batch"] == batch]


def gain(worse: list[Row], better: list[Row], updates: int | None = None) -> float:
    """Mean over epochs of log(best loss of one / best loss of the other), up to a number of updates (one epoch at least)."""
    one, other = envelope(worse), envelope(better)
    last = max(one) if updates is None else max([1, *(r["epoch"] for r in worse if r["updates"] <= updates)])
    epochs = [epoch for epoch in one if 0 < epoch <= last]
    return sum(log(one[epoch] / other[epoch]) for epoch in epochs) / max(len(epochs), 1)


def measure(race: ConvolutionalRace, rows: list[Row], halved: list[Row]) -> dict[str, float]:
    """The number of every claim of the experiment."""
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
    per_second = {size: log(theirs / ours) for size, (theirs, ours) in ((s, equal_time(*p)) for s, p in pairs.items())}
    values["A.1-batch"] = per_epoch[small] - per_epoch[large]
    values["A.2-updates"] = per_update[large] - per_update[small]
    values["A.2-time"] = per_second[large] - per_second[small]
    return values


def _batches_resnet(race: ConvolutionalRace, rows: list[Row]) -> dict[str, float]:
    return {"A.3-batch": min(gain(of(rows, "kfac", size), of(rows, "ekfac-ra", size)) for size in race.batches)}
