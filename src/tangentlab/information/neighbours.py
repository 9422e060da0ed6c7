"""Nearest neighbours: the estimators of Kraskov, Stoegbauer and Grassberger (2004), in the maximum norm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tangentlab.errors import InputError

Array = NDArray[np.float64]


def ksg_terms(x: Tensor, z: Tensor, k: int = 3, variant: int = 1) -> Array:
    """The terms, (n,), whose mean is the estimate in nats.

    Variant 1: `psi(k) + psi(n) - psi(n_x + 1) - psi(n_z + 1)`, n_x the points nearer than the k-th neighbour in the joint
    space. Variant 2: `psi(k) - 1/k + psi(n) - psi(n_x) - psi(n_z)`, n_x the points within the rectangle of the k neighbours.
    Cost: trees, n log n in few dimensions and n^2 in many.

    Args:
        x, z: (n, ...), flattened.
        k: neighbours.
        variant: 1 or 2.
    """
    from scipy.spatial import cKDTree
    from scipy.special import psi

    n = len(x)
    if variant not in (1, 2):
        raise InputError(f"KSG has the variants 1 and 2, not {variant}.")
    if not 1 <= k < n:
        raise InputError(f"KSG needs 1 <= k < n: k = {k}, and there are {n} examples.")
    parts = [np.ascontiguousarray(part.flatten(1).double().numpy()) for part in (x, z)]
    joint = np.hstack(parts)
    distances, near = cKDTree(joint).query(joint, k + 1, p=np.inf)
    if variant == 1:
        radius = np.nextafter(distances[:, -1], 0)  # strictly nearer
        inside = [_within(part, radius) for part in parts]  # with the point itself: n_x + 1
        return psi(k) + psi(n) - psi(inside[0]) - psi(inside[1])
    inside = []
    for part in parts:
        reach = np.abs(part[near[:, 1:]] - part[:, None]).max((1, 2))
        inside.append(np.maximum(_within(part, reach) - 1, 1))
    return psi(k) - 1 / k + psi(n) - psi(inside[0]) - psi(inside[1])


def _within(part: Array, radius: Array) -> Array:
    """How many points, itself among them, lie within `radius` of every point."""
    from scipy.spatial import cKDTree

    return cKDTree(part).query_ball_point(part, radius, p=np.inf, return_length=True).astype(float)
