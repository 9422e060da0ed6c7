"""Separable potentials: what an interpolation by gradient flow, by mirror descent or by a penalty makes smallest.

A potential is `Psi(beta) = scale * sum_j psi(beta_j / scale)` and is given by its mirror map: `beta_j = scale * h(z_j)`
with z the dual variable, `h = (psi')^{-1}` increasing, `psi*(z) = int_0^z h`. Everything else follows: `psi' = h^{-1}` and
`psi(b) = b z - psi*(z)` at `z = psi'(b)`. Every evaluation costs O(d).

Sources: slides "Kernel and rich regimes" (Srebro 2019; Woodworth et al. 2020 for depths above two).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from tangentlab.errors import InputError


class Potential(ABC):
    """A separable convex function with its mirror map; subclasses give the map in the dual variable.

    Attributes:
        scale: the unit of beta. Far below it the potential is quadratic, far above it has its own shape.
        reach: the dual variable lies in (-reach, reach).
    """

    scale: float = 1.0
    reach: float = math.inf

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def unit_primal(self, dual: Tensor) -> Tensor:
        """`h(z)`, elementwise."""

    @abstractmethod
    def unit_slope(self, dual: Tensor) -> Tensor:
        """`h'(z) > 0`, elementwise."""

    @abstractmethod
    def unit_conjugate(self, dual: Tensor) -> Tensor:
        """`psi*(z) = int_0^z h`, elementwise."""

    @abstractmethod
    def unit_dual(self, primal: Tensor) -> Tensor:
        """`psi'(b) = h^{-1}(b)`, elementwise."""

    def primal(self, dual: Tensor) -> Tensor:
        """The mirror map from the dual variable to beta."""
        return self.scale * self.unit_primal(dual)

    def gradient(self, beta: Tensor) -> Tensor:
        """`dPsi / dbeta`, the dual variable of beta."""
        return self.unit_dual(beta / self.scale)

    def value(self, beta: Tensor) -> Tensor:
        """`Psi(beta)`, a scalar; 0 at `beta = h(0)`."""
        dual = self.gradient(beta)
        return (beta * dual - self.scale * self.unit_conjugate(dual)).sum()

    def divergence(self, beta: Tensor, start: Tensor) -> Tensor:
        """`Psi(beta) - Psi(start) - <Psi'(start), beta - start>`, the Bregman divergence, at least 0."""
        return self.value(beta) - self.value(start) - self.gradient(start) @ (beta - start)


class Euclidean(Potential):
    """`Psi = |beta|^2 / 2`: gradient descent on the predictor itself."""

    def unit_primal(self, dual: Tensor) -> Tensor:
        """`z`."""
        return dual

    def unit_slope(self, dual: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(dual)

    def unit_conjugate(self, dual: Tensor) -> Tensor:
        """`z^2 / 2`."""
        return dual.square() / 2

    def unit_dual(self, primal: Tensor) -> Tensor:
        """`b`."""
        return primal


class Entropy(Potential):
    """`Psi = sum_j beta_j log beta_j - beta_j + 1` on positive beta: exponentiated gradients."""

    def unit_primal(self, dual: Tensor) -> Tensor:
        """`e^z`."""
        return dual.exp()

    def unit_slope(self, dual: Tensor) -> Tensor:
        """`e^z`."""
        return dual.exp()

    def unit_conjugate(self, dual: Tensor) -> Tensor:
        """`e^z - 1`."""
        return dual.expm1()

    def unit_dual(self, primal: Tensor) -> Tensor:
        """`log b`.

        Raises:
            InputError: an entry is not positive.
        """
        if bool((primal <= 0).any()):
            raise InputError("The entropy is defined for positive entries only: start from positive values.")
        return primal.log()


class FlowPotential(Potential):
    r"""What gradient flow minimizes on a diagonal network of depth D that starts at `w = alpha 1`.

    The network is `beta = w_+^D - w_-^D`; the flow of any loss of `X beta` ends at the interpolant that minimizes this
    potential (Woodworth et al. 2020). With the scale `alpha^D`:

    * D = 2: `h(z) = 2 sinh z`, `psi(b) = 2 - sqrt(4 + b^2) + b asinh(b / 2)`, the q of the slides, where the sign under the
      root is printed as a minus;
    * D > 2: `h(z) = (1 - z)^{-D/(D-2)} - (1 + z)^{-D/(D-2)}` for |z| < 1.

    For alpha -> infinity its minimizers are those of the L2 norm, for alpha -> 0 those of the L1 norm, at a rate of
    1 / log(1 / alpha) only when D = 2.
    """

    def __init__(self, alpha: float, depth: int = 2) -> None:
        if not 0 < alpha < math.inf:
            raise InputError(f"The scale alpha of the start is a positive number, not {alpha!r}.")
        if depth < 2 or depth != int(depth):
            raise InputError(f"A diagonal network has a depth of at least 2, not {depth!r}; depth 1 is Euclidean().")
        self.alpha, self.depth = float(alpha), int(depth)
        if not abs(self.depth * math.log10(self.alpha)) < 280:
            raise InputError(
                f"alpha^depth = {alpha:g}^{depth} leaves the range of double precision: choose an alpha closer to 1."
            )
        self.scale = self.alpha**self.depth
        self.reach = math.inf if depth == 2 else 1.0

    def __repr__(self) -> str:
        return f"FlowPotential(alpha={self.alpha:g}, depth={self.depth})"

    @property
    def _power(self) -> float:
        return self.depth / (self.depth - 2)

    def unit_primal(self, dual: Tensor) -> Tensor:
        """`2 sinh z`, or a difference of powers."""
        if self.depth == 2:
            return 2 * torch.sinh(dual)
        return (-self._power * torch.log1p(-dual)).expm1() - (-self._power * torch.log1p(dual)).expm1()

    def unit_slope(self, dual: Tensor) -> Tensor:
        """`2 cosh z`, or a sum of powers."""
        if self.depth == 2:
            return 2 * torch.cosh(dual)
        return self._power * ((1 - dual) ** (-self._power - 1) + (1 + dual) ** (-self._power - 1))

    def unit_conjugate(self, dual: Tensor) -> Tensor:
        """`2 cosh z - 2 = 4 sinh^2(z / 2)`, or `(D - 2) / 2` times a sum of powers less 2."""
        if self.depth == 2:
            return 4 * torch.sinh(dual / 2).square()
        power = 2 / (self.depth - 2)
        return ((-power * torch.log1p(-dual)).expm1() + (-power * torch.log1p(dual)).expm1()) / power

    def unit_dual(self, primal: Tensor) -> Tensor:
        """`asinh(b / 2)`, or the root of h(z) = b."""
        return torch.asinh(primal / 2) if self.depth == 2 else _root_in_unit_interval(self, primal)


def distance_potential(alpha: float) -> FlowPotential:
    r"""`R_alpha(beta) = min |w - alpha 1|^2` over the w with `w_+^2 - w_-^2 = beta`: an explicit penalty on the distance.

    In units of `alpha^2`, with the multiplier z in (-1, 1), the nearest weights are `w_+ = 1 / (1 - z)`, `w_- = 1 / (1 + z)`.
    So `h(z) = 4 z / (1 - z^2)^2`, which is the map of a diagonal network of depth four that starts at `sqrt(alpha)`: what
    the penalty does at depth two, the flow does at depth four. `psi(b)` is the smallest real root r of the slides' quartic
    `r^4 - 6 r^3 + (12 - 2 b^2) r^2 - (8 + 10 b^2) r + b^2 + b^4 = 0`, and `R_alpha = alpha^2 sum_j psi(beta_j / alpha^2)`.
    """
    if not 0 < alpha < math.inf:
        raise InputError(f"The scale alpha of the start is a positive number, not {alpha!r}.")
    return FlowPotential(math.sqrt(alpha), depth=4)


def _root_in_unit_interval(potential: FlowPotential, primal: Tensor) -> Tensor:
    """The z in (-1, 1) with `h(z) = b`, by bisection down to neighbouring numbers; h is odd and increasing."""
    target = primal.detach().to(torch.float64).abs()
    low, high = torch.zeros_like(target), torch.ones_like(target)
    for _ in range(64):
        middle = (low + high) / 2
        below = potential.unit_primal(middle) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.copysign(low, primal)
