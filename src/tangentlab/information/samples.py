"""Samples: tensors, loaders or a sampler as examples that are split once into training, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from tangentlab.engine.batches import Batches, targets_of
from tangentlab.errors import InputError, NumericsError
from tangentlab.information.margins import Margin, Margins

Sampler = Callable[[int, Generator], tuple[Tensor, Tensor]]
"""`sampler(n, generator)` draws n pairs: x `(n, ...)` and z `(n, ...)`."""


@dataclass(frozen=True)
class PairedSample:
    """Pairs of examples, `x` and `z` (n, ...), and a sampler where there is one to draw more from."""

    x: Tensor
    z: Tensor
    sampler: Sampler | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> PairedSample:
        """Some of the examples."""
        return replace(self, x=self.x[index], z=self.z[index])


def read_sample(x: Any, z: Any = None, *, samples: int = 20_000, seed: int = 0) -> PairedSample:
    """Pairs from two tensors or arrays, from a loader that yields `(x, z)`, or `samples` pairs from a sampler.

    Numbers of one axis, (n,), become (n, 1). Values that are not finite, and lengths that differ, are refused.
    """
    sampler = None
    if z is None and callable(x):
        sampler = x
        x, z = sampler(samples, torch.Generator().manual_seed(seed))
    elif z is None:
        batches = [(batch[0], targets_of(batch)) for batch in Batches(x)]
        x, z = (torch.cat(part) for part in zip(*batches, strict=True))
    found = PairedSample(_column(x, "x"), _column(z, "z"), sampler)
    if len(found.x) != len(found.z):
        raise InputError(f"Pairs need as many x as z: there are {len(found.x)} and {len(found.z)}.")
    return found


def side(x: Any, other: Any) -> Tensor:
    """Both parts of a variable as one, (n, features of both)."""
    one, two = _column(x, "one variable"), _column(other, "the other")
    if len(one) != len(two):
        raise InputError(f"The variables have {len(one)} and {len(two)} examples: they must belong together.")
    return torch.cat([one.flatten(1), two.flatten(1)], 1)


def _column(values: Any, name: str) -> Tensor:
    if not isinstance(values, Tensor):
        try:
            values = torch.as_tensor(np.asarray(values))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name} cannot be read as numbers: give tensors, arrays, a loader or a sampler."
            ) from error
    if values.ndim == 0 or values.is_complex():
        raise InputError(f"{name} has the shape {tuple(values.shape)}: real examples along a first axis are needed.")
    values = values.detach()
    if values.is_floating_point() and not values.isfinite().all():
        bad = (~values.flatten(1).isfinite().all(1) if values.ndim > 1 else ~values.isfinite()).sum().item()
        raise NumericsError(
            f"{name} holds NaN or infinite values in {bad} of {len(values)} examples: drop or repair them."
        )
    return values[:, None] if values.ndim == 1 else values


@dataclass(frozen=True)
class SampleSplit:
    """Training, validation and test examples with mapped margins; the maps are made on the training part."""

    train: PairedSample
    validation: PairedSample
    test: PairedSample
    margins: tuple[Margin, Margin]

    @classmethod
    def of(cls, sample: PairedSample, shares: tuple[float, float, float], margins: Margins, seed: int) -> SampleSplit:
        """Random parts of the given shares."""
        if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
            raise InputError(f"The split needs three positive shares of sum 1 (train, validation, test), not {shares}.")
        n = len(sample)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        first, second = round(n * shares[0]), round(n * (shares[0] + shares[1]))
        parts = [sample.take(part) for part in (order[:first], order[first:second], order[second:])]
        maps = Margin.of(parts[0].x, margins), Margin.of(parts[0].z, margins)
        train, validation, test = (_mapped(part, maps) for part in parts)
        return cls(train, validation, test, maps)

    def half(self, which: int) -> SampleSplit:
        """The same with one half of the training examples, the first (0) or the second (1)."""
        middle = len(self.train) // 2
        index = torch.arange(middle) if which == 0 else torch.arange(middle, len(self.train))
        return replace(self, train=self.train.take(index))


def _mapped(sample: PairedSample, maps: tuple[Margin, Margin]) -> PairedSample:
    """Mapped examples in single precision, and a sampler that maps what it draws."""
    of_x, of_z = maps
    sampler = sample.sampler

    def draw(n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        assert sampler is not None
        x, z = sampler(n, generator)
        return of_x(_column(x, "x").float()), of_z(_column(z, "z").float())

    return PairedSample(
        of_x(sample.x.double()).float(), of_z(sample.z.double()).float(), None if sampler is None else draw
    )
