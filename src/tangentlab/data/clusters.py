"""Clusters around unit vectors, each of one class: Gaussian mixtures and the clusterable data of early-stopping theorems."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from tangentlab.data.dataset import Dataset
from tangentlab.data.toys import gaussian_mixture
from tangentlab.errors import InputError


@dataclass(frozen=True)
class Clusters:
    """L Gaussian clusters in d dimensions, the points of each belonging to one of K classes.

    `centres` (L, d), `labels` (L,) the class of each, `spread` the root of the mean squared distance of a point from its
    centre (so that noise has the standard deviation spread / sqrt(d) per coordinate). With `sphere`, points are scaled to
    norm 1, as in the theorem on early stopping (Li, Soltanolkotabi and Oymak 2019).
    """

    centres: Tensor
    labels: Tensor
    spread: float
    sphere: bool = False

    def __post_init__(self) -> None:
        if self.centres.ndim != 2 or self.labels.shape != self.centres.shape[:1] or not len(self.labels):
            raise InputError(
                f"Clusters need centres (clusters, dimension) and one label each, not {tuple(self.centres.shape)} and "
                f"{tuple(self.labels.shape)}."
            )
        if not 0 <= self.spread < math.inf:
            raise InputError(f"The spread of clusters is 0 or larger, not {self.spread}.")

    @property
    def classes(self) -> int:
        """K."""
        return int(self.labels.max()) + 1

    def sample(self, count: int, generator: Generator) -> tuple[Dataset, Tensor]:
        """`count` points with the class as target, and the number of the cluster of each (count,); all are equally likely."""
        points = gaussian_mixture(count, self.centres, self.spread / math.sqrt(self.centres.shape[1]), generator)
        inputs = normalize(points.inputs, dim=1) if self.sphere else points.inputs
        data = replace(
            points, inputs=inputs, targets=self.labels[points.targets], name="clusters", classes=self.classes
        )
        return data, points.targets


def random_clusters(
    count: int,
    classes: int,
    dimension: int,
    spread: float,
    generator: Generator,
    *,
    sphere: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Clusters:
    """`count` clusters around random unit vectors, dealt to the classes in turn.

    A mixture of K classes with C components each is `random_clusters(K * C, K, ...)`.
    """
    if not 1 <= classes <= count:
        raise InputError(f"{count} clusters cannot be dealt to {classes} classes: each class needs at least one.")
    centres = normalize(torch.randn(count, dimension, generator=generator, dtype=dtype), dim=1)
    return Clusters(centres, torch.arange(count) % classes, spread, sphere)
