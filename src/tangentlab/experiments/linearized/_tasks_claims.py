"""Measures that decide claims of the eigenfunction tasks and of their variants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

NEIGHBOURS = 10


def crossing(
    indices: Sequence[int], network: Sequence[float], linearized: Sequence[float], examples: int
) -> tuple[float, list[float]]:
    """Where the lead goes from the linearization to the network, and all places where it may, up to two standard errors.

    A place parts a lead of the linearization, before it, from a lead of the network, after it; the best one has the largest
    sum of leads on both sides. Between two of the indices it is their geometric mean; half the first or twice the last when
    one of the two always leads. Accuracies are on so many `examples`.
    """
    lead = np.asarray(linearized, dtype=float) - np.asarray(network, dtype=float)
    scores = np.array([lead[:cut].sum() - lead[cut:].sum() for cut in range(len(lead) + 1)])
    ends = np.array([indices[0] / 4, *indices, 4 * indices[-1]], dtype=float).clip(0.5)
    places = np.sqrt(ends[:-1] * ends[1:])
    best = int(scores.argmax())
    # scores of two cuts differ by twice the leads between them; a lead has a variance of at most 1/2 per example
    errors = 2 * np.sqrt(0.5 / examples * np.abs(np.arange(len(scores)) - best))
    return float(places[best]), places[scores[best] - scores <= 2 * errors].tolist()


def spike(values: Tensor, index: int) -> float:
    """One alignment over the median of its neighbours, ten on each side where they exist."""
    low, high = max(0, index - NEIGHBOURS), min(len(values), index + NEIGHBOURS + 1)
    others = torch.cat([values[low:index], values[index + 1 : high]])
    return float(values[index] / others.median())
