"""Claims of the eigenfunction tasks and of their variants."""

from __future__ import annotations

from tangentlab.experiments import Claim
from tangentlab.experiments.linearized_networks._recipe import PLACE

SECTION = f"{PLACE}, section 3"


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
