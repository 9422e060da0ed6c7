"""How well samples cover the modes of a distribution: modes hit, share of good samples, and the reverse KL divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError


@dataclass(frozen=True)
class ModeCoverage:
    """Of samples over equally likely modes.

    Attributes:
        modes: that at least one good sample hit.
        reverse_kl: `KL(histogram of the samples over modes || uniform)`, in nats.
        good_share: share of samples that are near their mode; 1 where every sample belongs to one by definition.
        histogram: share of samples for every mode.
    """

    modes: int
    reverse_kl: float
    good_share: float
    histogram: Tensor


def coverage_of_modes(assigned: Tensor, modes: int, good: Tensor | None = None) -> ModeCoverage:
    """Coverage of samples that were assigned to modes 0, 1, ... by a classifier.

    For a KL of 0 the samples must be equally frequent in all modes; n true samples of m modes have about `(m - 1) / 2n`.

    Args:
        assigned: the mode of every sample, `(n,)`.
        modes: how many there are.
        good: whether a sample counts as a hit, `(n,)`; all do by default.
    """
    if assigned.ndim != 1 or not len(assigned) or int(assigned.min()) < 0 or int(assigned.max()) >= modes:
        raise InputError(f"One mode from 0 to {modes - 1} is needed for every sample.")
    good = torch.ones_like(assigned, dtype=torch.bool) if good is None else good
    histogram = torch.bincount(assigned, minlength=modes).double() / len(assigned)
    present = histogram[histogram > 0]
    divergence = float((present * present.log()).sum()) + math.log(modes)
    return ModeCoverage(len(assigned[good].unique()), divergence, float(good.double().mean()), histogram)


def coverage_of_points(points: Tensor, centres: Tensor, spread: float, deviations: float = 3.0) -> ModeCoverage:
    """Coverage of points around centres: each belongs to the nearest, and is good within `deviations` times the spread.

    Args:
        points: `(n, d)`; those that are not finite are refused.
        centres: `(m, d)`.
        spread: standard deviation of a mode in every direction.
        deviations: PacGAN and VEEGAN count three.
    """
    if not bool(points.isfinite().all()):
        raise InputError("Points that are not finite belong to no mode.")
    distances, nearest = torch.cdist(points.double(), centres.double()).min(1)
    return coverage_of_modes(nearest, len(centres), distances <= deviations * spread)
