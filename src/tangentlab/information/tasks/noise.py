"""`Z = f(X) + noise` with uniform X: uniform noise by a closed form, Gaussian noise by quadrature (the equitability table)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.information.tasks.task import Pair, Task

_NODES_PER_SIGMA = 40
_TAIL = 10.0

EQUITABILITY_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x,
    "x^3": lambda x: x**3,
    "sin x": torch.sin,
}
EQUITABILITY_SIGMAS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


class AdditiveUniform(Task):
    """`X ~ U(0, 1)`, `Z = X + U(-e, e)`: `I = e - log 2e` up to e = 1/2, and `1 / (4 e)` beyond."""

    x_features = z_features = 1

    def __init__(self, width: float) -> None:
        if not width > 0:
            raise InputError(f"Uniform noise of half-width {width}: it must be positive.")
        self.width, self.name = width, f"uniform noise {width:g}"
        self.value = width - math.log(2 * width) if width <= 0.5 else 1 / (4 * width)

    def draw(self, count: int, generator: Generator) -> Pair:
        x, noise = torch.rand(2, count, 1, generator=generator, dtype=torch.float64)
        return x, x + self.width * (2 * noise - 1)

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        x, z, e = x.double(), z.double(), self.width
        # The density of z is the length of [z - e, z + e] inside of [0, 1] over 2 e; that of z given x is 1 / (2 e).
        inside = (z + e).clamp(max=1) - (z - e).clamp(min=0)
        return torch.where((z - x).abs() <= e, -inside.log(), -torch.inf)[:, 0]


class AdditiveGaussian(Task):
    """`X ~ U(-1, 1)^d`, `Z = f(X) + sigma N(0, I)`, f entry by entry: `I = d (h(Z_1) - log(2 pi e sigma^2) / 2)`.

    The density of an entry of Z is a Gauss-Legendre sum over x, and its entropy one over z, with 40 nodes per sigma.

    Args:
        function: f, increasing on [-1, 1].
        sigma: of the noise.
        features: d.
        name: of f.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], sigma: float, features: int = 2, name: str = "f") -> None:
        if not sigma > 0:
            raise InputError(f"Gaussian noise of sigma {sigma}: it must be positive.")
        self.function, self.sigma = function, sigma
        self.x_features = self.z_features = features
        self.name = f"{name} + {sigma:g} N"
        nodes, weights = _gauss_legendre(-1.0, 1.0, sigma)
        self._images, self._log_weights = function(nodes), weights.log() - math.log(2)
        low, high = float(self._images.min()), float(self._images.max())
        at, steps = _gauss_legendre(low - _TAIL * sigma, high + _TAIL * sigma, sigma)
        log_density = self._log_density(at)
        entropy = -float((steps * log_density.exp() * log_density).sum())
        self.value = features * (entropy - 0.5 * math.log(2 * math.pi * math.e * sigma**2))

    def draw(self, count: int, generator: Generator) -> Pair:
        x = 2 * torch.rand(count, self.x_features, generator=generator, dtype=torch.float64) - 1
        noise = torch.randn(count, self.x_features, generator=generator, dtype=torch.float64)
        return x, self.function(x) + self.sigma * noise

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        x, z = x.double(), z.double()
        given = self._log_normal(z - self.function(x))
        margin = torch.stack([self._log_density(column) for column in z.T], 1)
        return (given - margin).sum(1)

    def _log_density(self, z: Tensor) -> Tensor:
        """Of one entry of Z, `(n,)`."""
        parts = [
            torch.logsumexp(self._log_normal(chunk[:, None] - self._images) + self._log_weights, 1)
            for chunk in z.split(4096)
        ]
        return torch.cat(parts)

    def _log_normal(self, differences: Tensor) -> Tensor:
        return -0.5 * (differences / self.sigma).square() - math.log(self.sigma * math.sqrt(2 * math.pi))


def equitability_tasks(
    sigmas: Sequence[float] = EQUITABILITY_SIGMAS, features: int = 2
) -> dict[str, list[AdditiveGaussian]]:
    """The tasks of figure 5.2: for each of x, x^3 and sin x, one for every sigma."""
    return {
        name: [AdditiveGaussian(function, sigma, features, name) for sigma in sigmas]
        for name, function in EQUITABILITY_FUNCTIONS.items()
    }


def _gauss_legendre(low: float, high: float, scale: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [low, high], fine enough for functions that vary over `scale`."""
    count = max(64, math.ceil(_NODES_PER_SIGMA * (high - low) / scale))
    nodes, weights = np.polynomial.legendre.leggauss(min(count, 4000))
    half = (high - low) / 2
    return torch.from_numpy(low + half * (nodes + 1)), torch.from_numpy(half * weights)
