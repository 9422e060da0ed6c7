"""`Experiment`: the question, its parameters per scale, its claims, what to run and what to draw."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tangentlab.bench.claims import Claim, preconditions
from tangentlab.bench.errors import SettingError
from tangentlab.bench.settings import check_values, suggestion

if TYPE_CHECKING:
    from tangentlab.bench.lab import Lab
    from tangentlab.bench.results import Results
    from tangentlab.figures.picture import Picture

SCALES = ("smoke", "desk", "paper")
Kind = TypeVar("Kind", bound="Experiment")


class Chapter(StrEnum):
    """The families of experiments, in the order in which lists show them."""

    GEOMETRY = "2 Geometry of function space"
    METRICS = "3 Metrics and kernels of deep networks"
    NATURAL_GRADIENT = "4 Natural gradient"
    LAZY = "5 Lazy and feature learning"
    ALIGNMENT = "6 Feature alignment"
    LINEARIZED = "7 Linearized networks and their kernels"
    SPECTRAL = "8 Spectral bias"
    INFORMATION = "9 Mutual information"
    LIMITS = "10 Limits and implicit bias"


@dataclass(frozen=True)
class Cost:
    """What one seed costs: steps of its loops, seconds per step and memory in megabytes where these are known."""

    steps: int
    seconds_per_step: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True)
class Experiment(ABC):
    """Base of all experiments; a subclass is made by the decorator `experiment`, its fields are the parameters.

    Field defaults are the `desk` scale; `scales` holds what the other two change. Class attributes describe it:

    * `name`: the word to type; `title`: one line; `question`: the question and how it is answered, in plain words
    * `chapter`, `place`: the family, and where the paper shows it
    * `claims`: every sentence that the run has to judge
    * `seeds`: number of seeds per scale (1 where not given); `minutes`: expected run time per scale, all seeds
    * `notes`: per scale, what is smaller than in the paper
    * `random`: false where nothing is drawn, so that one seed is enough
    * `dropped`: tables and arrays (names or patterns, `others/` before arrays of all seeds but the first) that neither claims
      nor figures need; a published result does not keep them, and `Results` does not have them
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    chapter: ClassVar[Chapter]
    place: ClassVar[str]
    claims: ClassVar[tuple[Claim, ...]]
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    seeds: ClassVar[Mapping[str, int]] = {}
    minutes: ClassVar[Mapping[str, float]] = {}
    notes: ClassVar[Mapping[str, str]] = {}
    random: ClassVar[bool] = True
    dropped: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, lab: Lab) -> None:
        """Compute one seed: log rows, save arrays, measure every claim. No state is kept but through `lab`."""

    @abstractmethod
    def draw(self, results: Results) -> Iterable[Picture]:
        """The figures, from what all seeds logged; the first one becomes the thumbnail of the gallery."""

    def measure(self, results: Results, seed: int) -> Mapping[str, float | str]:
        """The numbers of claims and preconditions that follow from the log of one seed, or why there is none.

        They count more than those of `Lab.measure`, and are computed again whenever a result is judged again.
        """
        return {}

    def cost(self) -> Cost:
        """Steps, time and memory of one seed with these parameters; override it when there is a loop."""
        return Cost(steps=0)

    @classmethod
    def at(cls: type[Kind], scale: str, **changes: Any) -> Kind:
        """The experiment with the parameters of `scale`, some of them changed; everything is type-checked."""
        if scale not in SCALES:
            raise SettingError(f"Unknown scale '{scale}'{suggestion(scale, SCALES)} (scales: {', '.join(SCALES)}).")
        return cls(**check_values(cls, {**cls.scales.get(scale, {}), **changes}))

    def parameters(self) -> dict[str, Any]:
        """Name and value of every parameter."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def changed_from(self, scale: str) -> dict[str, Any]:
        """The parameters that differ from those of `scale`, with the scale's own values."""
        standard = type(self).at(scale).parameters()
        return {key: standard[key] for key, value in self.parameters().items() if value != standard[key]}

    @classmethod
    def validate(cls) -> None:
        """Raise when the description is incomplete or contradicts itself; called when the experiment is registered."""
        for attribute in ("name", "title", "question", "place", "chapter", "claims"):
            if not getattr(cls, attribute, None):
                raise TypeError(f"{cls.__name__} needs a class attribute '{attribute}'.")
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cls.name):
            raise TypeError(f"Experiment name {cls.name!r}: small letters, digits and single dashes only.")
        ids = [claim.id for claim in cls.claims]
        if doubled := {one for one in ids if ids.count(one) > 1}:
            raise TypeError(f"{cls.name}: claim ids appear twice: {', '.join(sorted(doubled))}.")
        preconditions(cls.claims)
        for mapping in (cls.scales, cls.seeds, cls.minutes, cls.notes):
            if unknown := set(mapping) - set(SCALES):
                raise TypeError(f"{cls.name}: unknown scales {', '.join(sorted(unknown))}.")
        for scale in SCALES:
            cls.at(scale)
