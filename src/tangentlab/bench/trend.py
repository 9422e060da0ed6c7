"""Does it go towards the paper? The same measure over a ladder of a setting, for claims that fail at desk scale.

A trend is the number of one claim at several values of one setting (images, width, steps), seed by seed. It goes *towards* the
claim when the gap to its threshold shrinks from rung to rung beyond the spread over seeds: the 95 % interval of the slopes of
the gap against the number of the rung lies below 0.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tangentlab.bench.claims import Claim
from tangentlab.bench.errors import RunError, SettingError
from tangentlab.bench.folder import Config
from tangentlab.bench.registry import find
from tangentlab.bench.runner import Outcome, make_config
from tangentlab.bench.settings import check_values
from tangentlab.bench.verdicts import interval
from tangentlab.figures.curves import Curves
from tangentlab.figures.format import number, relation
from tangentlab.figures.picture import Picture
from tangentlab.figures.pictures import save_pictures
from tangentlab.figures.style import GRAY, band, label, panels
from tangentlab.files import make_folder, write_atomically
from tangentlab.plain import plain, restored

FOLDER = "trends"


@dataclass(frozen=True)
class Trend:
    """What one claim measured at every rung: `values[rung][seed]`, with the same seeds at each."""

    experiment: str
    claim: str
    measured: str
    relation: str
    threshold: float
    bound: str
    setting: str
    rungs: tuple[float, ...]
    seeds: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    scale: str = "desk"

    def gaps(self) -> np.ndarray[Any, Any]:
        """How far from its threshold the claim is, `(rungs, seeds)`: 0 where the inequality is true."""
        short = np.asarray(self.values) - self.threshold
        return np.maximum(short if self.relation in ("<", "<=") else -short, 0.0)

    def slopes(self) -> list[float]:
        """For each seed, the least-squares slope of the gap against the number of the rung."""
        places = np.arange(len(self.rungs)) - (len(self.rungs) - 1) / 2
        return [float(places @ gaps / (places @ places)) for gaps in self.gaps().T]

    def direction(self) -> str:
        """Towards the claim, away from it, or undecided; one seed is told as such."""
        slopes = self.slopes()
        if not self.gaps()[-1].any():
            return "as far as the claim: the last rung meets it in every seed"
        found = interval(slopes)
        if found is None:
            return f"{'towards' if slopes[0] < 0 else 'not towards'} the claim in one seed, which leaves no interval"
        towards, away = found[1] < 0, found[0] > 0
        word = "towards" if towards else "away from" if away else "neither towards nor away from"
        return f"{word} the claim (slope of the gap per rung {number(found[0], 2)} to {number(found[1], 2)})"

    def picture(self) -> Picture:
        """The measure over the ladder: mean and range over seeds, and the threshold as a line."""
        figure, ((axes,),) = panels(width=6.0)
        band(axes, Curves(np.asarray(self.rungs, float), np.asarray(self.values, float).T), marker="o")
        axes.axhline(self.threshold, color=GRAY, linestyle="--")
        owner = {"paper": "the paper's number", "sign": "no effect", "ours": "our number"}[self.bound]
        axes.annotate(
            f"{owner},\n{relation(self.relation)} {number(self.threshold)}",
            (1.0, self.threshold),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=GRAY,
        )
        if min(self.rungs) > 0 and max(self.rungs) / min(self.rungs) >= 4:
            axes.set_xscale("log")
        axes.set_xticks(list(self.rungs), [number(rung) for rung in self.rungs], minor=False)
        axes.minorticks_off()
        label(axes, self.setting, "\n".join(textwrap.wrap(self.measured, 44)))
        caption = (
            f"Does it go towards the paper? The measure of the claim {self.claim} over {self.setting}, everything else as at "
            f"the {self.scale} scale: mean and range over {len(self.seeds)} seed{'s' if len(self.seeds) != 1 else ''}; "
            f"dashed, what it has to meet. It goes {self.direction()}."
        )
        return Picture(f"{self.claim}-over-{self.setting}".lower().replace("_", "-"), figure, caption)


def ladder(name: str, claim: str, setting: str, rungs: Sequence[Any], scale: str, seeds: int | None) -> list[Config]:
    """The configs of a trend, checked before the first of them starts."""
    kind = find(name)
    _claim(kind.claims, claim)
    if len(rungs) < 2:
        raise SettingError("A ladder has at least two rungs, as in --over width=64,128,256.")
    values = [check_values(kind, {setting: rung}) for rung in rungs]
    if any(isinstance(value[setting], bool) or not isinstance(value[setting], (int, float)) for value in values):
        raise SettingError(f"The setting '{setting}' is not a number: a ladder needs one.")
    return [make_config(kind.at(scale, **value), scale, seeds=seeds) for value in values]


def climb(configs: Sequence[Config], claim: str, setting: str, run: Callable[[Config], Outcome]) -> Trend:
    """Run every rung, and gather what it measured of the claim."""
    stated = _claim(find(configs[0].experiment).claims, claim)
    values = []
    for config in configs:
        outcome = run(config)
        if not outcome.complete:
            raise RunError(
                f"The rung {setting} = {config.parameters[setting]} did not come to its end; the same command goes on."
            )
        (verdict,) = (verdict for verdict in outcome.verdicts if verdict.claim.id == claim)
        if set(verdict.values) != set(config.seeds):
            raise RunError(
                f"At {setting} = {config.parameters[setting]} the claim cannot be measured: {verdict.reason}."
            )
        values.append(tuple(verdict.values[seed] for seed in config.seeds))
    rule = stated.measured, stated.relation, stated.threshold, stated.bound
    rungs = tuple(float(config.parameters[setting]) for config in configs)
    first = configs[0]
    return Trend(first.experiment, claim, *rule, setting, rungs, first.seeds, tuple(values), first.scale)


def write_trend(trend: Trend, folder: Path) -> Path:
    """Put a trend into `folder/trends` and draw all that lie there; returns the file of its numbers."""
    file = make_folder(folder / FOLDER) / f"{trend.claim}-over-{trend.setting}.json"
    write_atomically(file, json.dumps(plain(asdict(trend)), indent=1, ensure_ascii=False) + "\n")
    draw_trends(folder)
    return file


def draw_trends(folder: Path) -> None:
    """Draw the trends that lie in `folder/trends`, beside their numbers."""
    trends = list(read_trends(folder))
    if trends:
        save_pictures(folder / FOLDER, lambda: [trend.picture() for trend in trends], png=False)


def read_trends(folder: Path) -> Iterator[Trend]:
    """The trends that lie in `folder/trends`."""
    for file in sorted((folder / FOLDER).glob("*-over-*.json")):
        content = restored(json.loads(file.read_text(encoding="utf-8")))
        content["values"] = tuple(map(tuple, content["values"]))
        yield Trend(**{**content, "rungs": tuple(content["rungs"]), "seeds": tuple(content["seeds"])})


def _claim(claims: Sequence[Claim], name: str) -> Claim:
    for claim in claims:
        if claim.id == name:
            return claim
    raise SettingError(f"There is no claim '{name}' (there are: {', '.join(claim.id for claim in claims)}).")
