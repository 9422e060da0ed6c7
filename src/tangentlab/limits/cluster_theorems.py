"""What the theorems on mixtures and clusters say: how many directions carry information, how wide, how long, how wrong.

All but the number of large singular values hold up to constants that the theorems do not name, so these are scales: what
changes by a factor of 2 when a class is added, not how many steps a training takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tangentlab.errors import InputError

LARGEST_CORRUPTION = 1 / 16
"""The share of corrupted labels below which the theorem on early stopping is proved."""


@dataclass(frozen=True)
class MixtureTheorem:
    """A mixture of K classes with C components each, of small variance, learnt by `V phi(W x)`.

    (Slides of Soltanolkotabi, 2019.) Rows of the Jacobian depend on the component and the output alone as the variance goes
    to 0, so that K^2 C singular values are large, and they grow like sqrt(n). The rest is the general theorem with the cutoff
    abar^2 = 1 / (K^2 C): k ~ Gamma^4 / abar^8, T ~ Gamma / abar^2 (printed there as Gamma / abar^8) and an error of exp(-Gamma)
    + Gamma / (abar sqrt(n)). `confidence` is Gamma >= 1.
    """

    classes: int
    components: int
    confidence: float = 1.0

    def __post_init__(self) -> None:
        _check_counts(classes=self.classes, components=self.components)
        if not 1 <= self.confidence < math.inf:
            raise InputError(f"The confidence Gamma is at least 1, not {self.confidence}.")

    @property
    def large_values(self) -> int:
        """K^2 C, the singular values of the Jacobian that are large: one for each component and output."""
        return self.classes**2 * self.components

    @property
    def cutoff(self) -> float:
        """abar = 1 / (K sqrt(C)), to be multiplied by sqrt(n K)."""
        return self.large_values**-0.5

    @property
    def width(self) -> float:
        """Gamma^4 K^8 C^4, the scale of the width that is enough."""
        return (self.confidence * self.large_values) ** 4

    @property
    def steps(self) -> float:
        """Gamma K^2 C, the scale of the number of steps."""
        return self.confidence * self.large_values

    def error(self, examples: int) -> float:
        """Gamma sqrt(K^2 C / n) + exp(-Gamma), the scale of the share of new points that are misclassified."""
        _check_counts(examples=examples)
        return self.confidence * math.sqrt(self.large_values / examples) + math.exp(-self.confidence)


@dataclass(frozen=True)
class ClusterTheorem:
    """L clusters of which a share rho of the labels is corrupted: stopped in time, descent finds all true labels.

    (Li, Soltanolkotabi and Oymak 2019.)
    """

    clusters: int
    corruption: float

    def __post_init__(self) -> None:
        _check_counts(clusters=self.clusters)
        if not 0 < self.corruption < 1:
            raise InputError(f"The share of corrupted labels is between 0 and 1, not {self.corruption}.")

    @property
    def proved(self) -> bool:
        """Whether rho < 1/16, as the theorem asks for."""
        return self.corruption < LARGEST_CORRUPTION

    @property
    def parameters(self) -> int:
        """L^4, the scale of the number of parameters that are enough."""
        return self.clusters**4

    @property
    def steps(self) -> float:
        """L log(1 / rho), the scale of the number of steps."""
        return self.clusters * math.log(1 / self.corruption)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"The number of {name} is at least 1, not {count}.")
