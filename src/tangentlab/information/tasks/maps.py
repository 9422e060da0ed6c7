"""Maps that leave mutual information as it is: margins, powers, wiggles, rotations, spirals and the swiss roll."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.special import erfc, ndtri

from tangentlab.errors import InputError
from tangentlab.information.tasks.task import Invertible

_HALVINGS = 64


class UniformMargins(Invertible):
    """The distribution function of the standard normal, entry by entry: normal margins become uniform on (0, 1)."""

    name = "uniform margins"

    def forward(self, points: Tensor) -> Tensor:
        return _normal_cdf(points)

    def inverse(self, points: Tensor) -> Tensor:
        return ndtri(points)


@dataclass(frozen=True)
class Power(Invertible):
    """`sign(v) |v|^exponent`, entry by entry; 3/2 is the half-cube, 3 the cube of Song and Ermon."""

    exponent: float
    name: str = "power"

    def __post_init__(self) -> None:
        if not self.exponent > 0:
            raise InputError(f"A power of {self.exponent} cannot be undone at 0; choose a positive one.")

    def forward(self, points: Tensor) -> Tensor:
        return points.sign() * points.abs() ** self.exponent

    def inverse(self, points: Tensor) -> Tensor:
        return points.sign() * points.abs() ** (1 / self.exponent)


class Asinh(Invertible):
    """`asinh v`, entry by entry: heavy tails become exponential ones."""

    name = "asinh"

    def forward(self, points: Tensor) -> Tensor:
        return points.asinh()

    def inverse(self, points: Tensor) -> Tensor:
        return points.sinh()


@dataclass(frozen=True)
class Wiggly(Invertible):
    """`v + sum_k a_k sin(w_k v + phi_k)`, which grows as long as `sum_k |a_k w_k| < 1`; undone by bisection.

    Args:
        waves: `(a_k, w_k, phi_k)`.
    """

    waves: Sequence[tuple[float, float, float]]
    name: str = "wiggly"

    def __post_init__(self) -> None:
        if sum(abs(size * frequency) for size, frequency, _ in self.waves) >= 1:
            raise InputError("Waves whose sum of |amplitude x frequency| is 1 or more may fold, and cannot be undone.")

    def forward(self, points: Tensor) -> Tensor:
        return points + sum(
            (size * torch.sin(frequency * points + phase) for size, frequency, phase in self.waves),
            torch.zeros_like(points),
        )

    def inverse(self, points: Tensor) -> Tensor:
        reach = sum(abs(size) for size, _, _ in self.waves)
        return _bisection(self.forward, points, points - reach, points + reach)


@dataclass(frozen=True)
class MixtureMargins(Invertible):
    """Normal margins become those of a mixture of unit Gaussians: `Q(Phi(v))`, Q the quantile function, by bisection.

    Args:
        weights: of the components, with sum 1.
        means: of the components.
    """

    weights: Sequence[float]
    means: Sequence[float]
    name: str = "bimodal margins"

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.means) or min(self.weights) <= 0 or abs(sum(self.weights) - 1) > 1e-12:
            raise InputError("A mixture needs one mean for every weight, and positive weights with sum 1.")

    def forward(self, points: Tensor) -> Tensor:
        # Phi(v - m) <= u <= Phi(v - m') at the extreme means: the quantile lies between v + min and v + max.
        return _bisection(self._normal_score, points, points + min(self.means), points + max(self.means))

    def inverse(self, points: Tensor) -> Tensor:
        return self._normal_score(points)

    def _normal_score(self, points: Tensor) -> Tensor:
        """`Phi^-1(F(v))`, from whichever tail is the smaller, so that neither loses its digits."""
        parts = list(zip(self.weights, self.means, strict=True))
        lower = sum((weight * _normal_cdf(points - mean) for weight, mean in parts), torch.zeros_like(points))
        upper = sum((weight * _normal_cdf(mean - points) for weight, mean in parts), torch.zeros_like(points))
        return torch.where(lower < upper, ndtri(lower), -ndtri(upper))


@dataclass(frozen=True)
class Spiral(Invertible):
    """A rotation in the plane of two entries by the angle `speed |v|^2`; the norm stays, so the angle is known on the way back.

    Args:
        first, second: entries that are turned into each other.
        speed: radians per unit of squared norm.
    """

    first: int
    second: int
    speed: float
    name: str = "spiral"

    def forward(self, points: Tensor) -> Tensor:
        return self._turned(points, self.speed)

    def inverse(self, points: Tensor) -> Tensor:
        return self._turned(points, -self.speed)

    def _turned(self, points: Tensor, speed: float) -> Tensor:
        if max(self.first, self.second) >= points.shape[1] or self.first == self.second:
            raise InputError(f"Entries {self.first} and {self.second} of {points.shape[1]} span no plane.")
        angle = speed * points.square().sum(1)
        a, b = points[:, self.first], points[:, self.second]
        turned = points.clone()
        turned[:, self.first] = angle.cos() * a - angle.sin() * b
        turned[:, self.second] = angle.sin() * a + angle.cos() * b
        return turned


class SwissRoll(Invertible):
    """A number u of [0, 1] to the point `t (cos t, sin t) / 21`, `t = (1 + 2 u) 3 pi / 2`, of a plane."""

    name = "swiss roll"
    _START, _SCALE = 1.5 * math.pi, 21.0

    def features(self, features: int) -> int:
        if features != 1:
            raise InputError(f"A swiss roll is made of one number, not of {features}.")
        return 2

    def forward(self, points: Tensor) -> Tensor:
        angle = self._START * (1 + 2 * points)
        return torch.cat([angle * angle.cos(), angle * angle.sin()], 1) / self._SCALE

    def inverse(self, points: Tensor) -> Tensor:
        return (self._SCALE * points.norm(dim=1, keepdim=True) / self._START - 1) / 2


class LinearMap(Invertible):
    """`v A^T` with an invertible A."""

    def __init__(self, matrix: Tensor, name: str = "linear") -> None:
        self.matrix, self.name = matrix.double(), name
        if (
            matrix.ndim != 2
            or matrix.shape[0] != matrix.shape[1]
            or torch.linalg.matrix_rank(self.matrix) < len(matrix)
        ):
            raise InputError(f"{name}: a square matrix of full rank is needed.")

    @classmethod
    def rotation(cls, features: int, generator: Generator) -> LinearMap:
        """A rotation drawn uniformly from SO(features)."""
        turn, upper = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64))
        turn = turn * upper.diagonal().sign()
        turn[:, 0] *= torch.linalg.det(turn).sign()
        return cls(turn, "rotation")

    def forward(self, points: Tensor) -> Tensor:
        return points @ self.matrix.T.to(points)

    def inverse(self, points: Tensor) -> Tensor:
        return torch.linalg.solve(self.matrix.to(points), points.T).T


def _normal_cdf(points: Tensor) -> Tensor:
    """Phi with all its digits in the lower tail, where `torch.special.ndtr` gives 0 from -8.3 on."""
    return erfc(points * -math.sqrt(0.5)) / 2


def _bisection(function: Callable[[Tensor], Tensor], values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Where the increasing `function` takes these values, which lies between `low` and `high`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = function(middle) < values
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
