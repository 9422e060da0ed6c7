"""What a curve does to frequencies: the kernel that carries those of the input space over to those along the curve.

For a function f on `R^d` and a curve gamma, `(f o gamma)(l) = (2 pi)^-d int f(k) P(l, k) dk` (with transforms
`int f e^(-i k.x)`), where `P(l, k) = int_0^1 e^(i (k.gamma(z) - l z)) dz` knows of the curve alone. It is
negligible unless the phase is stationary somewhere: `l = k.gamma'(z)`. A curve that turns fast makes large frequencies l out of
small frequencies k. Both k and l are angular, `2 pi` times periods per unit of length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError

Curve = Callable[[Tensor], Tensor]
"""From latent values `(n,)` to points `(n, d)`, differentiable by torch."""
NODES = 32
"""Of the Gauss-Legendre rule in each panel, which is exact to rounding as long as the phase turns less than `TURN` there."""
TURN = 2 * math.pi
SAMPLES = 4096
"""Points at which the speed of a curve is looked at."""


def composition_kernel(curve: Curve, latent: Tensor, frequencies: Tensor) -> Tensor:
    """`P(l, k)` by quadrature, complex `(len(latent), len(frequencies))`.

    Args:
        curve: gamma, from latent values in [0, 1] to points.
        latent: `(a,)` frequencies l.
        frequencies: `(b, d)` frequencies k.

    Cost: `(a + b)` times 32 points for every turn of the fastest phase. Panels are as short as that needs, so that the result
    is exact to about 1e-12 for smooth curves.
    """
    vectors, speeds = _speeds(curve, frequencies)
    if latent.ndim != 1 or not len(latent) or not bool(latent.isfinite().all()):
        raise InputError(f"The argument latent is a list of finite frequencies (a,), here {tuple(latent.shape)}.")
    waves = latent.double()
    fastest = float(speeds.abs().max()) + float(waves.abs().max())
    panels = max(16, math.ceil(2 * fastest / TURN))
    require_memory(
        16 * panels * NODES * (len(waves) + len(vectors)),
        "A composition kernel",
        "Ask for fewer frequencies at a time.",
    )
    nodes, weights = _rule()
    z = ((torch.arange(panels, dtype=torch.float64)[:, None] + nodes) / panels).flatten()
    inner = torch.polar(torch.ones(1, dtype=torch.float64), _points(curve, z) @ vectors.t())
    outer = torch.polar(weights.repeat(panels) / panels, -waves[:, None] * z)
    return outer @ inner


def latent_reach(curve: Curve, frequencies: Tensor) -> Tensor:
    """The largest frequency along the curve with a stationary phase, `max_z |k.gamma'(z)|`, for every k: `(b, d)` to `(b,)`.

    Beyond it, `composition_kernel` of a closed smooth curve falls faster than every power at whole multiples of `2 pi`.
    """
    return _speeds(curve, frequencies)[1].abs().amax(1)


def stationary_points(curve: Curve, latent: float, frequency: Tensor) -> Tensor:
    """The places z at which `k.gamma'(z) = l`, `(s,)`, each to rounding (sign changes on a grid of 4,096, then bisection)."""
    _, speeds = _speeds(curve, frequency[None])
    gap = speeds[0] - latent
    grid = torch.linspace(0, 1, SAMPLES + 1, dtype=torch.float64)
    crossing = (gap[:-1] * gap[1:] < 0).nonzero()[:, 0]
    low, high = grid[crossing], grid[crossing + 1]
    below = gap[crossing] < 0
    for _ in range(50):
        middle = (low + high) / 2
        left = ((_slopes(curve, middle) @ frequency.double() - latent) < 0) == below
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return torch.cat([grid[gap == 0], (low + high) / 2]).sort().values


def _speeds(curve: Curve, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """The frequencies `(b, d)` in float64, and `k.gamma'` of all of them on a grid, `(b, samples + 1)`."""
    vectors = frequencies.double()
    slopes = _slopes(curve, torch.linspace(0, 1, SAMPLES + 1, dtype=torch.float64))
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != slopes.shape[1]:
        raise InputError(f"Frequencies are (count, {slopes.shape[1]}) for this curve, not {tuple(frequencies.shape)}.")
    if not bool(vectors.isfinite().all()):
        raise InputError("The frequencies must be finite.")
    return vectors, vectors @ slopes.t()


def _slopes(curve: Curve, z: Tensor) -> Tensor:
    """`gamma'(z)`, `(n, d)`: every point depends on its own z alone, so one directional derivative has them all."""
    slopes: Tensor = torch.func.jvp(lambda at: _points(curve, at), (z,), (torch.ones_like(z),))[1]
    return slopes


def _points(curve: Curve, z: Tensor) -> Tensor:
    points = curve(z).double()
    if points.ndim != 2 or len(points) != len(z):
        raise InputError(f"A curve maps latent values (n,) to points (n, d), this one to {tuple(points.shape)}.")
    return points


@cache
def _rule() -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
