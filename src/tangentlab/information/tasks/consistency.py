"""The staircases and the consistency tests of Song and Ermon (2020)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.information.tasks.elliptical import Gaussian
from tangentlab.information.tasks.maps import LinearMap, Power
from tangentlab.information.tasks.task import Joined, Pair, Repeated, Task, Transformed

STAIRS = (2.0, 4.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True)
class Staircase:
    """Tasks of rising information, one after the other, `steps` updates each."""

    name: str
    tasks: tuple[Task, ...]
    steps: int

    def at(self, step: int) -> Task:
        """The task of update number `step`; the last one goes on for ever."""
        return self.tasks[min(step // self.steps, len(self.tasks) - 1)]


def staircase(
    features: int = 20,
    values: Sequence[float] = STAIRS,
    steps: int = 4000,
    cubic: bool = False,
    generator: Generator | None = None,
) -> Staircase:
    """Gaussians whose information climbs through `values`; with `cubic`, z is turned and cubed, `(A z)^3`.

    A is the identity unless a generator to draw a rotation from is given.
    """
    tasks: list[Task] = [Gaussian.of_value(features, value) for value in values]
    if generator is not None:
        rotation = LinearMap.rotation(features, generator)
        tasks = [Transformed(task, z_map=rotation) for task in tasks]
    if cubic:
        tasks = [Transformed(task, z_map=Power(3.0, "cube")) for task in tasks]
    return Staircase("cubic staircase" if cubic else "Gaussian staircase", tuple(tasks), steps)


class TopRows(Task):
    """x is an image of a set, drawn uniformly, and z its first rows, the others zero: `I = H(Z)`, since z is a function of x.

    The value is about the set as it is: the entropy of its distinct tops, at most `log n`. For the population from which the
    set was drawn it is not known; the ratios of `consistency_tests` hold for both.

    Args:
        images: `(n, height, width)` or `(n, channels, height, width)`.
        rows: that z shows.
    """

    def __init__(self, images: Tensor, rows: int) -> None:
        if images.ndim not in (3, 4) or not 0 <= rows <= images.shape[-2]:
            raise InputError(
                f"Images (n, ..., height, width) and 0 to height rows are needed, not {tuple(images.shape)}, {rows}."
            )
        self.images, self.rows = images.double(), rows
        self.name = f"top {rows} rows"
        self.x_features = self.z_features = images[0].numel()
        self._counts = Counter(_keys(self.top(self.images.flatten(1))))
        shares = torch.tensor(list(self._counts.values()), dtype=torch.float64) / len(images)
        self.value = -float((shares * shares.log()).sum()) + 0.0

    def top(self, points: Tensor, rows: int | None = None) -> Tensor:
        """Flat images with all but their first rows (those of the task by default) set to zero."""
        shown = points.reshape(-1, *self.images.shape[1:]).clone()
        shown[..., self.rows if rows is None else rows :, :] = 0
        return shown.flatten(1)

    def draw(self, count: int, generator: Generator) -> Pair:
        x = self.images[torch.randint(len(self.images), (count,), generator=generator)].flatten(1)
        return x, self.top(x)

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        """`-log p(z)`; minus infinity where z is not the top of x."""
        fits = (self.top(x.double()) == z.double()).all(1)
        shares = torch.tensor([self._counts[key] for key in _keys(z.double())], dtype=torch.float64) / len(self.images)
        return torch.where(fits, -shares.log(), -torch.inf)


@dataclass(frozen=True)
class ConsistencyTest:
    """Two tasks whose informations have a known ratio, `I(task) / I(reference)`, whatever the distribution of the data."""

    name: str
    task: Task
    reference: Task
    ratio: float


def consistency_tests(images: Tensor, rows: int, fewer: int = 3) -> list[ConsistencyTest]:
    """Independence, data processing and additivity, on the first `rows` rows of images.

    No rows carry no information; `([x, x], [z, the first rows - fewer rows of z])` carries that of (x, z); two independent
    images carry twice as much as one.
    """
    one = TopRows(images, rows)
    if not 0 < one.value < math.inf or fewer > rows:
        raise InputError(f"The first {rows} rows are the same in all images, or fewer than {fewer}: choose more rows.")
    return [
        ConsistencyTest("independence", TopRows(images, 0), one, 0.0),
        ConsistencyTest("data processing", Repeated(one, lambda z: one.top(z, rows - fewer)), one, 1.0),
        ConsistencyTest("additivity", Joined([one, one]), one, 2.0),
    ]


def _keys(points: Tensor) -> list[bytes]:
    return [row.tobytes() for row in points.contiguous().numpy()]
