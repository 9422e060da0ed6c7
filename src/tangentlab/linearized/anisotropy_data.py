"""Data that one direction separates: the task that shows how well a network sees that direction."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from tangentlab.data import Dataset
from tangentlab.errors import InputError


def direction_dataset(
    direction: Tensor,
    count: int,
    generator: Generator,
    *,
    margin: float = 1.0,
    variance: float = 1.0,
    half_margin: bool = False,
    split: str = "train",
) -> Dataset:
    """D(u): `x = eps y u + w` with y = +-1 by a fair coin and `w ~ N(0, sigma (I - u u^T))`; labels 1 for +1, else 0.

    So `u^T x = eps y` exactly, every other direction is noise, and a linear classifier along u makes no error.

    Args:
        direction: u, `input_shape`; it is normalized.
        count: examples.
        generator: source of randomness.
        margin: eps.
        variance: sigma, the variance of every other direction.
        half_margin: `eps y / 2` in place of `eps y`, as in the public code of the papers.
        split: "train" or "test".
    """
    norm = direction.norm()
    if not norm > 0 or not margin > 0 or variance < 0:
        raise InputError("A direction other than 0, a margin > 0 and a variance >= 0 are needed.")
    unit = (direction / norm).flatten().float()
    signs = 2 * torch.randint(0, 2, (count,), generator=generator) - 1
    noise = variance**0.5 * torch.randn(count, len(unit), generator=generator, dtype=torch.float32)
    noise -= (noise @ unit)[:, None] * unit
    reach = margin / 2 if half_margin else margin
    inputs = reach * signs[:, None] * unit + noise
    return Dataset(
        inputs.reshape(count, *direction.shape), (signs > 0).long(), "anisotropy-direction", split, classes=2
    )
