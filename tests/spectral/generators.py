"""Everything in `tangentlab.spectral` that draws, as calls with a generator; see tests/test_generators.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from tangentlab.spectral import high_frequency_volume, perturbed_spectrum, spectral_norm
from tests.spectral.networks import mlp


def volume(g: Generator) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        model = mlp(1, 4, 1)
    found = high_frequency_volume(model, 1.0, 0.01, np.geomspace(1, 30, 20), samples=6, generator=g)
    return torch.from_numpy(found.share)


def perturbed(g: Generator) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        model = mlp(1, 8, 1)
    return perturbed_spectrum(model, torch.arange(16.0)[:, None] / 16, (1, 2), (0.5,), directions=3, generator=g)


CALLS: dict[str, Callable[[Generator], Any]] = {
    "spectral.bounds.spectral_norm": lambda g: spectral_norm(torch.diag(torch.arange(1.0, 9.0)), 1, g),
    "spectral.modes.high_frequency_volume": volume,
    "spectral.perturbed.perturbed_spectrum": perturbed,
}
