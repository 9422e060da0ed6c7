"""Toy data sets with a known geometry: disk, yin-yang, flower manifold, Gaussian mixtures, sinusoids, spirals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from tangentlab.data.dataset import Dataset
from tangentlab.errors import InputError

DISK_RADIUS = math.sqrt(2 / math.pi)
YIN_YANG_RADIUS = 0.3
YIN_YANG_CENTRES = ((0.5, -0.5), (-0.5, 0.5))


def square(count: int, generator: Generator) -> Tensor:
    """`count` points uniform in [-1, 1]^2."""
    return 2 * torch.rand(count, 2, generator=generator) - 1


def grid(side: int, half_width: float = 1.0) -> Tensor:
    """`side * side` points of a regular grid over [-half_width, half_width]^2, row by row from the bottom left."""
    line = torch.linspace(-half_width, half_width, side)
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1)


def disk_labels(points: Tensor) -> Tensor:
    """1 inside the circle of radius sqrt(2/pi), which covers half of [-1, 1]^2, else 0."""
    return (points.norm(dim=1) <= DISK_RADIUS).long()


def disk(count: int, generator: Generator) -> Dataset:
    """Points uniform in [-1, 1]^2, labelled by a disk that covers half the area (Baratin et al. 2021, figure 1)."""
    points = square(count, generator)
    return Dataset(points, disk_labels(points), "disk", classes=2)


def yin_yang_labels(points: Tensor) -> Tensor:
    """1 above the horizontal axis and 0 below, the other way round inside two disks of radius 0.3."""
    upper = points[:, 1] > 0
    centres = torch.tensor(YIN_YANG_CENTRES, dtype=points.dtype)
    flipped = (torch.cdist(points, centres) < YIN_YANG_RADIUS).any(dim=1)
    return (upper ^ flipped).long()


def yin_yang(count: int, generator: Generator) -> Dataset:
    """Points uniform in [-1, 1]^2 with the yin-yang labels: two large easy areas, two small difficult disks."""
    points = square(count, generator)
    return Dataset(points, yin_yang_labels(points), "yin-yang", classes=2)


def flower(latent: Tensor, petals: int) -> Tensor:
    """The curve `(1 + sin(2 pi L z) / 2) (cos 2 pi z, sin 2 pi z)` with L petals: `(n,)` to `(n, 2)`."""
    if petals < 0:
        raise InputError(f"A flower has 0 or more petals, not {petals}.")
    radius = 1 + 0.5 * torch.sin(2 * math.pi * petals * latent)
    angle = 2 * math.pi * latent
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)


def sinusoids(
    latent: Tensor,
    frequencies: Sequence[float],
    amplitudes: Sequence[float] | None = None,
    phases: Tensor | None = None,
) -> Tensor:
    """`sum_i A_i sin(2 pi k_i z + phi_i)` on the points z; amplitudes default to 1, phases to 0."""
    factor = torch.ones(len(frequencies)) if amplitudes is None else torch.tensor(amplitudes)
    shift = torch.zeros(len(frequencies)) if phases is None else phases
    if len(factor) != len(frequencies) or len(shift) != len(frequencies):
        raise InputError(
            f"{len(frequencies)} frequencies need as many amplitudes ({len(factor)}) and phases ({len(shift)})."
        )
    waves = torch.sin(2 * math.pi * latent[:, None] * torch.tensor(frequencies, dtype=latent.dtype) + shift.to(latent))
    return waves @ factor.to(latent)


def sinusoid_sum(
    count: int,
    frequencies: Sequence[float],
    generator: Generator,
    amplitudes: Sequence[float] | None = None,
    petals: int | None = None,
) -> Dataset:
    """Regression on the sinusoids with fresh phases, at z = 0, 1/n, ..., (n-1)/n.

    With the endpoint excluded, whole frequencies are exact bins of the discrete Fourier transform. Inputs are z itself
    `(n, 1)`, or its image on the flower curve `(n, 2)` when `petals` is given.
    """
    latent = torch.arange(count) / count
    phases = 2 * math.pi * torch.rand(len(frequencies), generator=generator)
    inputs = latent[:, None] if petals is None else flower(latent, petals)
    return Dataset(inputs, sinusoids(latent, frequencies, amplitudes, phases)[:, None], "sinusoids")


def gaussian_mixture(count: int, centres: Tensor, spread: float, generator: Generator) -> Dataset:
    """`count` points around the rows of `centres` with equal weights; the target is the index of the centre."""
    component = torch.randint(len(centres), (count,), generator=generator)
    noise = spread * torch.randn(count, centres.shape[1], generator=generator, dtype=centres.dtype)
    return Dataset(centres[component] + noise, component, "gaussian-mixture", classes=len(centres))


def gaussian_grid(
    count: int, generator: Generator, side: int = 5, spacing: float = 1.0, spread: float = 0.05
) -> Dataset:
    """The mixture of `side * side` Gaussians on a centred grid (25 of them by default)."""
    return gaussian_mixture(count, grid(side, spacing * (side - 1) / 2), spread, generator)


def spiral_curve(latent: Tensor, turns: float = 1.5, radius: float = 4.0) -> Tensor:
    """The spiral `radius u (cos 2 pi turns u, sin 2 pi turns u)`, u in [0, 1]: `(n,)` to `(n, 2)`."""
    angle = 2 * math.pi * turns * latent
    return radius * latent[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)


def spiral(count: int, generator: Generator, turns: float = 1.5, radius: float = 4.0, spread: float = 0.05) -> Dataset:
    """Points of the spiral, uniform in u, with Gaussian noise; the target is u."""
    latent = torch.rand(count, generator=generator)
    noise = spread * torch.randn(count, 2, generator=generator)
    return Dataset(spiral_curve(latent, turns, radius) + noise, latent, "spiral")
