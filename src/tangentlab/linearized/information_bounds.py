"""What the split of labels into information and nuisance space says about the test error, up to constants.

For one hidden layer of width k with a fixed output layer of entries of size `1 / sqrt(k outputs log outputs)`, a cutoff
`alpha = sqrt(n outputs) abar` and Gamma >= 1, the share of wrong predictions after T steps is at most of the order of

    e^-Gamma + |P_N(y)| / sqrt(n)    (bias)    +  (Gamma / abar) / sqrt(n)    (variance)

when `k >= Gamma^4 / abar^8` and `T = Gamma / abar^2`, with the expected kernel at a random start. (The slides print
`Gamma / abar^8` for T. Their own example, `T ~ Gamma K^2 C` where `abar^2 ~ 1 / (K^2 C)`, has `Gamma / abar^2`.) From a given
start W_0, and so at any iterate, the Jacobian is that of W_0 and the bias that of `f(W_0) - y`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.linearized.information import InformationSpace


@dataclass(frozen=True)
class InformationBound:
    """The parts of the bound, each up to a constant.

    Attributes:
        gamma: Gamma, of which T is a multiple.
        abar: the cutoff over `sqrt(n outputs)`.
        dimension: r, of the information space.
        bias: `|P_N(y)| / sqrt(n)`, or with `f(W_0) - y` in place of y.
        variance: `(Gamma / abar) / sqrt(n)`.
    """

    gamma: float
    abar: float
    dimension: int
    bias: float
    variance: float

    @property
    def value(self) -> float:
        """`e^-Gamma` and both parts."""
        return exp(-self.gamma) + self.bias + self.variance

    @property
    def iterations(self) -> float:
        """`T = Gamma / abar^2`, up to a constant."""
        return self.gamma / self.abar**2

    @property
    def width(self) -> float:
        """`Gamma^4 / abar^8`, up to a constant."""
        return self.gamma**4 / self.abar**8


def information_bound(space: InformationSpace, values: Tensor, gamma: float = 1.0) -> InformationBound:
    """The bound for the space at hand: its smallest singular value is the cutoff.

    values: `(outputs * n,)`, the labels at a random start, `f(W_0) - y` from a given one (`stacked` makes it).
    """
    if not gamma >= 1:
        raise InputError(f"The argument gamma must be at least 1, not {gamma}.")
    if space.basis.rank < len(space):
        raise InputError(
            f"Only {space.basis.rank} of the {len(space)} singular values are more than rounding: use space.leading(...)."
        )
    n, total = space.basis.examples, space.basis.vectors.shape[1]
    abar = float(space.singular_values[-1]) / sqrt(total)
    bias = float(space.split(values).nuisance) / sqrt(n)
    return InformationBound(gamma, abar, len(space), bias, gamma / abar / sqrt(n))


def small_cutoff_bound(space: InformationSpace, labels: Tensor) -> Tensor:
    """`sqrt(y^T (J J^T)^-1 y / n)` for one output and a cutoff below all singular values, up to a constant.

    The width must be at least of the order `n^4 log n / s_min^8`, s_min the smallest singular value. Labels that leave the
    span of the singular vectors at hand are refused.
    """
    if space.basis.outputs != 1:
        raise InputError(
            f"This bound is for one output, and the model has {space.basis.outputs}: use information_bound."
        )
    return (space.basis.norm_squared(labels) / space.basis.examples).sqrt()
