"""Nearest neighbours beside a network: probabilities for many numbers of neighbours from one search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tangentlab.errors import InputError


def neighbour_probabilities(points: Tensor, labels: Tensor, queries: Tensor, counts: Sequence[int]) -> Tensor:
    """The share of label 1 among the K nearest points, for every K and every query.

    Args:
        points: `(n, d)`.
        labels: `(n,)`, 0 or 1.
        queries: `(m, d)`; a query that is one of the points counts itself.
        counts: the numbers K, each between 1 and n.

    Returns:
        `(len(counts), m)`. Cost: one search for the largest K in scikit-learn's tree.
    """
    from sklearn.neighbors import NearestNeighbors

    wanted = [int(count) for count in counts]
    if points.ndim != 2 or queries.shape[1:] != points.shape[1:] or not len(queries):
        raise InputError(f"Points (n, d) and queries (m, d), not {tuple(points.shape)} and {tuple(queries.shape)}.")
    if not bool(points.isfinite().all() and queries.isfinite().all()):
        raise InputError("The points and the queries must be finite.")
    if wanted != list(counts) or not wanted or not 1 <= min(wanted) <= max(wanted) <= len(points):
        raise InputError(
            f"Numbers of neighbours are between 1 and {len(points)}, the number of points, not {list(counts)}."
        )
    flat = labels.flatten().double()
    if len(flat) != len(points) or not bool(((flat == 0) | (flat == 1)).all()):
        raise InputError(f"{len(points)} points need as many labels 0 or 1.")
    search = NearestNeighbors(n_neighbors=max(wanted)).fit(points.detach().double().numpy())
    nearest = torch.from_numpy(search.kneighbors(queries.detach().double().numpy(), return_distance=False))
    sums = flat[nearest].cumsum(1)
    return torch.stack([sums[:, count - 1] / count for count in wanted])
