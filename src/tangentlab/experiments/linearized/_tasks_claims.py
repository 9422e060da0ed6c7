"""Claims of the eigenfunction tasks and of their variants, and the measures that decide some of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tangentlab.experiments import Claim
from tangentlab.experiments.linearized._recipe import PLACE

SECTION = f"{PLACE}, section 3"
NEIGHBOURS = 10


def task_claims(code: str, variant: str) -> tuple[Claim, ...]:
    """What every variant claims."""
    return (
        Claim(
            f"S3-E1{code}-falls",
            f"Accuracy falls with the index of the eigenfunction{variant}.",
            "rank correlation of index and validation accuracy, the largest over networks and their linearizations",
            "<=",
            -0.6,
            SECTION,
        ),
        Claim(
            f"S3-E1{code}-alike",
            f"Networks and their linearizations order the eigenfunctions alike{variant}.",
            "rank correlation of the two accuracies over eigenfunctions, smallest over networks",
            ">=",
            0.6,
            SECTION,
        ),
        Claim(
            f"S3-E1{code}-linear",
            f"On eigenfunctions the linearized networks are at least as good{variant}.",
            "mean over eigenfunctions of accuracy, linearized minus network, smallest over networks",
            ">=",
            0.0,
            SECTION,
        ),
    )


FURTHER = (
    Claim(
        "S3-E7-network",
        "On CIFAR2 the networks are better than their linearizations.",
        "validation accuracy, network minus linearized, smallest over networks",
        ">=",
        0.01,
        SECTION,
    ),
    Claim(
        "S3-E2-time",
        "Networks need longer for eigenfunctions of higher index.",
        "rank correlation of index and updates until the training loss is 0.01 (or all), smallest over networks",
        ">=",
        0.6,
        f"{PLACE}, figures 4 and 5",
    ),
    Claim(
        "S3-E2-distance",
        "They end farther from where they started.",
        "rank correlation of index and distance in parameters, smallest over networks",
        ">=",
        0.6,
        f"{PLACE}, figures 4 and 5",
    ),
    Claim(
        "S3-E2-angle",
        "They turn by a larger angle.",
        "rank correlation of index and 1 - cosine of the parameters, smallest over networks",
        ">=",
        0.6,
        f"{PLACE}, figures 4 and 5",
    ),
    Claim(
        "S3-E5-spike",
        "Training on an eigenfunction turns the kernel towards this one more than towards its neighbours.",
        "alignment over the median of 20 neighbours, end over start, median over tasks, smallest over networks",
        ">=",
        1.5,
        f"{PLACE}, figures 6 and 7",
    ),
    Claim(
        "S3-E11-binarized",
        "Cutting eigenfunctions at 0 keeps most of them.",
        "mean cosine of an eigenvector with its signs, over all eigenfunctions, distance from 0.78",
        "<=",
        0.06,
        f"{PLACE}, appendix B",
    ),
)

CROSSING = Claim(
    "S3-E1-mnist-crossing",
    "On MNIST, the curves of LeNet and of its linearization cross near index 500.",
    "distance in octaves of the index that best parts a lead of the linearization from a lead of the network",
    "<=",
    1.0,
    f"{PLACE}, figure 3",
)


def crossing(
    indices: Sequence[int], network: Sequence[float], linearized: Sequence[float], examples: int
) -> tuple[float, list[float]]:
    """Where the lead goes from the linearization to the network, and all places where it may, up to two standard errors.

    A place parts a lead of the linearization, before it, from a lead of the network, after it; the best one has the largest
    sum of leads on both sides. Between two of the indices it is their geometric mean; half the first or twice the last when
    one of the two always leads. Accuracies are on so many ``examples``.
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
