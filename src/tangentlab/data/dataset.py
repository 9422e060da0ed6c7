"""`Dataset`: inputs and targets as two tensors that travel together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tangentlab.errors import InputError


@dataclass(frozen=True)
class Dataset:
    """Inputs `(examples, ...)` and targets `(examples, ...)` of one split.

    It unpacks like a pair (`x, y = dataset`), and can be given wherever a batch is expected. `note` says what
    a reader of a figure should know (fewer images than the original, stand-in noise); `stand_in` is true when the
    inputs are noise of the right shape because the data were absent.
    """

    inputs: Tensor
    targets: Tensor
    name: str
    split: str = "train"
    classes: int | None = None
    note: str = ""
    stand_in: bool = False

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise InputError(f"{self.name}: {len(self.inputs)} inputs but {len(self.targets)} targets.")

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.inputs, self.targets))

    def take(self, indices: Tensor) -> Dataset:
        """The examples with these indices, in this order."""
        return replace(self, inputs=self.inputs[indices], targets=self.targets[indices])

    def first(self, count: int) -> Dataset:
        """The first `count` examples; an error when there are fewer."""
        if count > len(self):
            raise InputError(f"{self.name}/{self.split} has {len(self)} examples, {count} were asked for.")
        return replace(self, inputs=self.inputs[:count], targets=self.targets[:count])

    def to(self, dtype: torch.dtype) -> Dataset:
        """The same examples with inputs (and real-valued targets) in `dtype`."""
        targets = self.targets.to(dtype) if self.targets.is_floating_point() else self.targets
        return replace(self, inputs=self.inputs.to(dtype), targets=targets)
