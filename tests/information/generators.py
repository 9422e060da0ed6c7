"""Calls of everything in `tangentlab.information` that draws, for tests/test_generators.py."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from tangentlab.information.scores import derangement, score_pairs
from tangentlab.information.tasks.consistency import TopRows, staircase
from tangentlab.information.tasks.elliptical import Gaussian, Student
from tangentlab.information.tasks.maps import Asinh, LinearMap
from tangentlab.information.tasks.noise import AdditiveGaussian, AdditiveUniform
from tangentlab.information.tasks.tables import DiscreteTable
from tangentlab.information.tasks.task import Joined, Repeated, Task, Transformed

NORMAL = Gaussian.of_value(2, 1.0)
TABLE = torch.full((3, 4), 1 / 12, dtype=torch.float64)
IMAGES = torch.arange(200.0).view(50, 2, 2)


def drawn(task: Task) -> Callable[[Generator], Any]:
    return lambda generator: task.draw(9, generator)


def deranged_scores(generator: Generator) -> Tensor:
    places = torch.arange(20.0)[:, None]
    return score_pairs(lambda x, z: (x * z)[:, 0], places, places, "deranged", generator).marginal


CALLS: dict[str, Callable[[Generator], Any]] = {
    "information.scores.derangement": lambda g: derangement(20, g),
    "information.scores.score_pairs": deranged_scores,
    "information.tasks.consistency.TopRows.draw": drawn(TopRows(IMAGES, 1)),
    "information.tasks.consistency.staircase": lambda g: staircase(3, (1.0,), generator=g).at(0).draw(5, g),
    "information.tasks.elliptical.Gaussian.draw": drawn(NORMAL),
    "information.tasks.elliptical.Student.draw": drawn(Student(torch.eye(2, dtype=torch.float64), 1, 3)),
    "information.tasks.maps.LinearMap.rotation": lambda g: LinearMap.rotation(3, g).matrix,
    "information.tasks.noise.AdditiveGaussian.draw": drawn(AdditiveGaussian(torch.sin, 0.5)),
    "information.tasks.noise.AdditiveUniform.draw": drawn(AdditiveUniform(0.5)),
    "information.tasks.tables.DiscreteTable.draw": drawn(DiscreteTable(TABLE)),
    "information.tasks.tables.DiscreteTable.random": lambda g: DiscreteTable.random(3, 4, g).table,
    "information.tasks.task.Joined.draw": drawn(Joined([NORMAL, NORMAL])),
    "information.tasks.task.Repeated.draw": drawn(Repeated(NORMAL, torch.sin)),
    "information.tasks.task.Task.draw": drawn(NORMAL),
    "information.tasks.task.Task.sample": lambda g: NORMAL.sample(9, g),
    "information.tasks.task.Transformed.draw": drawn(Transformed(NORMAL, x_map=Asinh())),
}
