"""`Minibatches`: an endless, shuffled stream of minibatches in which batch k depends only on the seed and on k."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

from tangentlab.bench.seeds import derive, torch_generator
from tangentlab.data import Dataset
from tangentlab.errors import InputError
from tangentlab.moved import moved_name

Batch = tuple[Tensor, ...]


class Minibatches:
    """Minibatches of `size` examples; a fresh permutation every epoch, the last partial batch dropped.

    `size=None` gives the whole data set every time, in its own order. Since batch k is a function of (seed, k), a
    training run resumes in the middle of an epoch without replaying it, and two runs with the same seed see the same
    order. `augment(batch, generator)` may change a batch; its generator too depends only on (seed, k).
    """

    def __init__(
        self,
        data: Dataset | Batch,
        size: int | None,
        seed: int,
        *,
        augment: Callable[[Batch, Generator], Batch] | None = None,
    ) -> None:
        self.tensors: Batch = tuple(data)
        self.count = len(self.tensors[0])
        if size is not None and not 1 <= size <= self.count:
            raise InputError(f"Batches of {size} examples cannot be made from {self.count}.")
        self.size, self.seed, self._augment = size, seed, augment
        self._epoch, self._order = -1, torch.arange(0)

    @property
    def per_epoch(self) -> int:
        """Minibatches per epoch."""
        return 1 if self.size is None else self.count // self.size

    def at(self, step: int) -> Batch:
        """Batch number `step`."""
        batch = self.tensors if self.size is None else self._picked(step, self.size)
        if self._augment is not None:
            batch = self._augment(batch, torch_generator(self.seed, "augment", step))
        return batch

    def _picked(self, step: int, size: int) -> Batch:
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = Generator().manual_seed(derive(self.seed, "epoch", epoch))
            self._epoch, self._order = epoch, torch.randperm(self.count, generator=generator)
        rows = self._order[position * size : (position + 1) * size]
        return tuple(tensor[rows] for tensor in self.tensors)


__getattr__ = partial(moved_name, __name__)
