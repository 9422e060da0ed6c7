"""`mutual_information`: one call for every estimator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.information.checks import about_data, looks_discrete
from tangentlab.information.closed_forms import discrete_terms, gaussian_terms
from tangentlab.information.fitting import FitRecipe
from tangentlab.information.intervals import TYPICAL, interval_of, room, standard_error, z_of
from tangentlab.information.margins import Margin, Margins
from tangentlab.information.neighbours import ksg_terms
from tangentlab.information.neural import by_critic, default_critic
from tangentlab.information.objectives import OBJECTIVES, Objective
from tangentlab.information.result import Diagnostics, MutualInformation
from tangentlab.information.samples import PairedSample, SampleSplit, read_sample, side

Terms = Callable[[Tensor, Tensor], Any]
WITHOUT_CRITIC = ("ksg", "ksg2", "gaussian", "cca", "discrete")
ESTIMATORS = (*OBJECTIVES, *WITHOUT_CRITIC)
"""The names that `mutual_information` takes."""


def mutual_information(
    x: Any,
    z: Any = None,
    estimator: str | Objective = "mine",
    *,
    critic: Callable[[], nn.Module] | None = None,
    condition: Any = None,
    recipe: FitRecipe | None = None,
    margins: Margins | None = None,
    split: tuple[float, float, float] = (0.5, 0.1, 0.4),
    halves: bool = True,
    permutations: int | None = None,
    neighbours: int = 3,
    samples: int = 20_000,
    most_pairs: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> MutualInformation:
    """I(X; Z), or I(X; Z | condition), in nats, with its error.

    A critic is fitted on the training part, stopped on the validation part, and read on the test part over all pairs of
    examples that do not belong together; never is a maximum or a mean over minibatches reported. Two refits on halves of the
    training part tell what more data would bring, which the interval has to allow for; the value is that of the mean of the
    three critics. See `tangentlab.information.intervals` for what the interval assumes.

    Args:
        x, z: tensors or arrays of as many examples, `(n,)` or `(n, ...)`; or x alone: a loader of `(x, z)`, or a sampler
            `f(n, generator) -> (x, z)`, from which new examples are drawn in every step.
        estimator: "mine", "dv", "nwj" (also "mine-f"), "infonce", "smile", "js", "fdime", "ksg", "ksg2", "gaussian", "cca",
            "discrete", or an objective of one's own, which is copied for every fit.
        critic: makes a new critic `T(x, z)`; a separable one by default, convolutional for images.
        condition: a third variable, by the chain rule `I(X; Z, C) - I(X; C)`.
        recipe: of the fit.
        margins: "normal", "standard" or "none": bijections of the coordinates beforehand. By default "normal" for critics and
            neighbours, "standard" for the others.
        split: shares of training, validation and test.
        halves: whether to refit on halves; without, the interval is open above.
        permutations: for the p-value; by default 999 (99 where every one needs the critic, none for other estimators).
        neighbours: k of KSG.
        samples: how many examples to draw from a sampler for validation and test, and for the margins.
        most_pairs: how many pairs of strangers to score at most; all for a separable critic, else a million.
        level: of the interval.
        seed: of the split, the start, the batches and the permutations.
    """
    if not 0 < level < 1:
        raise InputError(f"The level of an interval lies between 0 and 1, not at {level}.")
    if condition is not None:
        return _conditional(x, z, condition, estimator, level, partial(mutual_information, **_without(locals())))
    sample = read_sample(x, z, samples=samples, seed=seed)
    name = _name_of(estimator)
    if name in WITHOUT_CRITIC:
        kind = margins or ("normal" if name.startswith("ksg") else "none" if name == "discrete" else "standard")
        return _by_terms(sample, name, kind, neighbours, halves, permutations or 0, level, seed)
    make = (lambda: copy.deepcopy(estimator)) if isinstance(estimator, Objective) else OBJECTIVES[name]
    parts = SampleSplit.of(sample, split, margins or "normal", seed)
    read = partial(by_critic, name=name, halves=halves, permutations=permutations, level=level, most_pairs=most_pairs)
    return read(
        sample, parts, make, critic or partial(default_critic, sample), replace(recipe or FitRecipe(), seed=seed)
    )


def _name_of(estimator: str | Objective) -> str:
    """One of the names, or the class of an objective of the user's own."""
    if not isinstance(estimator, str):
        return type(estimator).__name__
    if estimator not in ESTIMATORS:
        near = get_close_matches(estimator, ESTIMATORS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"There is no estimator {estimator!r}: there are {', '.join(ESTIMATORS)}.{hint}")
    return estimator


def _without(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in ("x", "z", "estimator", "condition", "level")}


def _conditional(
    x: Any, z: Any, condition: Any, estimator: Any, level: float, estimate: Callable[..., MutualInformation]
) -> MutualInformation:
    """`I(X; Z, C) - I(X; C)` on the same split: the influences of an example are subtracted, the gaps may both be there."""
    if z is None:
        raise InputError("A conditional information needs x, z and the condition as tensors.")
    whole = estimate(x, side(z, condition), estimator, level=level)
    part = estimate(x, condition, estimator, level=level)
    influence = whole.influence - part.influence
    error, value = standard_error(influence), whole.value - part.value
    rooms = [max(0.0, one.interval[1] - one.value - z_of(level) * one.error) for one in (whole, part)]
    low, high = value - z_of(level) * error - rooms[1], value + z_of(level) * error + rooms[0]
    found = replace(
        whole,
        value=value,
        interval=(max(0.0, low), max(0.0, high)),
        error=error,
        influence=influence,
        pointwise=whole.pointwise - part.pointwise,
        extrapolated=whole.extrapolated - part.extrapolated,
        p_value=math.nan,
        estimator=f"{whole.estimator}, conditional",
        critic=None,
        curve=None,
    )
    both = [f"I(X; Z, C): {one}" for one in whole.warnings] + [f"I(X; C): {one}" for one in part.warnings]
    return replace(found, warnings=tuple(both))


def _by_terms(
    sample: PairedSample,
    name: str,
    margins: Margins,
    neighbours: int,
    halves: bool,
    permutations: int,
    level: float,
    seed: int,
) -> MutualInformation:
    """Estimators that are a mean of terms, one per example; halves of the sample tell what more data would change."""
    known: dict[str, Terms] = {
        "ksg": partial(ksg_terms, k=neighbours),
        "ksg2": partial(ksg_terms, k=neighbours, variant=2),
        "discrete": discrete_terms,
    }
    terms = known.get(name, gaussian_terms)
    warnings = list(about_data(sample))
    if name == "discrete":
        x, z = sample.x, sample.z
    else:
        x, z = (Margin.of(part, margins)(part.double()) for part in (_varying(sample.x), _varying(sample.z)))
    if any("is constant, so" in warning for warning in warnings):
        found = torch.zeros(len(sample), dtype=torch.float64)
        terms, halves, permutations = (lambda one, other: torch.zeros(len(one))), False, 0
    else:
        found = torch.as_tensor(terms(x, z)).double()
    value, gain = found.mean().item(), {}
    if halves and len(sample) >= 40:
        gain = _gain_of_terms(terms, x, z, value, seed)
    warnings += _about_terms(sample, name, value, gain)
    influence = found - found.mean()
    interval = interval_of(value, influence, level, is_bound=False, **gain)
    if halves is False and not influence.any():
        interval = (0.0, 0.0)
    return MutualInformation(
        value=value,
        interval=interval,
        level=level,
        error=standard_error(influence),
        pointwise=found,
        influence=influence,
        estimator=name,
        extrapolated=value + math.copysign(room(abs(gain["step"]), TYPICAL), gain["step"]) if gain else math.nan,
        p_value=_permuted(terms, x, z, value, permutations, seed),
        diagnostics=Diagnostics(log_examples=math.log(len(sample)), step_from_half=gain.get("step", math.nan)),
        warnings=tuple(warnings),
        examples=len(sample),
    )


def _varying(values: Tensor) -> Tensor:
    """The coordinates that are not constant; all of a side that is."""
    flat = values.flatten(1)
    varies = (flat != flat[0]).any(0)
    return flat[:, varies] if varies.any() else flat


def _gain_of_terms(terms: Terms, x: Tensor, z: Tensor, value: float, seed: int) -> dict[str, float]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).tensor_split(2)
    parts = [float(torch.as_tensor(terms(x[index], z[index])).mean()) for index in order]
    spread = (
        abs(parts[0] - parts[1]) / 2
    )  # the mean of the halves has nearly the sampling error of the whole: it cancels
    return {"full": value, "step": value - sum(parts) / 2, "step_error": 0.0 * spread}


def _permuted(terms: Terms, x: Tensor, z: Tensor, value: float, permutations: int, seed: int) -> float:
    """The estimator on permuted examples, as often as asked for."""
    if permutations < 1:
        return math.nan
    source = torch.Generator().manual_seed(seed + 2)
    drawn = (torch.randperm(len(x), generator=source) for _ in range(permutations))
    above = sum(float(torch.as_tensor(terms(x, z[order])).mean()) >= value for order in drawn)
    return (1 + above) / (1 + permutations)


def _about_terms(sample: PairedSample, name: str, value: float, gain: dict[str, float]) -> list[str]:
    found = []
    n = len(sample)
    if value > math.log(n) - 1:
        found.append(f"The value is within one nat of log n = {math.log(n):.2f}: the truth may be much larger.")
    if gain and abs(gain["step"]) > 0.05 + 0.1 * abs(value):
        found.append(f"Twice the data changed the value by {gain['step']:.2f} nats: more would change it further.")
    dimensions = sample.x[0].numel() + sample.z[0].numel()
    if name.startswith("ksg") and dimensions > 10:
        found.append(
            f"Nearest neighbours in {dimensions} dimensions are far away: KSG falls short there, and does not show it."
        )
    if name.startswith("ksg") and looks_discrete(sample):
        found.append("One side looks discrete: neighbours at equal distances break KSG; use 'discrete' or a critic.")
    if name in ("gaussian", "cca"):
        found.append("This is the information of Gaussians with these moments; other dependence is not seen.")
    if name == "discrete":
        cells = len(sample.x.flatten(1).unique(dim=0)) * len(sample.z.flatten(1).unique(dim=0))
        if cells > n:
            found.append(
                f"{cells} possible cells for {n} examples: the table is too large to be filled, the value is too high."
            )
    return found
