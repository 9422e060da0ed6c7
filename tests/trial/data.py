"""Data in every form that users have it, with targets that fit a likelihood."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from tests.trial.blocks.base import MIXES, Shape
from tests.trial.choices import Choices
from tests.trial.networks import TOKENS, Blueprint

SIZES = [1, 2, 3, 4, 5, 6, 7, 8]
ONE = {"tensor": 3.0, "tuple": 4.0, "list": 1.5, "dict": 2.5, "mapping": 1.0, "object": 1.0}
SEVERAL = {
    "list of tuples": 3.0,
    "list of lists": 1.0,
    "list of tensors": 0.3,
    "loader": 3.0,
    "shuffled": 1.0,
    "generator": 1.5,
    "list of mappings": 0.5,
    "loader of dicts": 0.5,
    "iterator of a loader": 0.5,
    "own sampler": 0.5,
}
"""Forms of one batch and of several, and how often they are drawn."""
LOADED = ("loader", "shuffled", "loader of dicts", "iterator of a loader", "own sampler")
MEMORY = ["plain", "strided", "with gradients"]


@dataclass
class Pair:
    """Inputs and targets in one object."""

    inputs: Tensor
    targets: Tensor


class InOrder(SequentialSampler):
    """A sampler of one's own."""


@dataclass(frozen=True)
class Data:
    """Batches as (inputs, targets), and a function that gives them (again) in the form the user has."""

    batches: list[tuple[Tensor, Tensor]]
    form: str
    likelihood: str
    give: Callable[[], Any] = field(repr=False)

    @property
    def examples(self) -> int:
        """N."""
        return sum(len(x) for x, _ in self.batches)

    @property
    def ambiguous(self) -> bool:
        """A list of tensors of one shape and type could be one batch or several: it must be refused."""
        parts = self.give() if self.form in ("list", "list of tensors") else []
        return len(parts) > 1 and len({(part.shape, part.dtype) for part in parts}) == 1

    @property
    def has_targets(self) -> bool:
        """Whether targets travel along."""
        return self.form not in ("tensor", "list of tensors")


def make(choices: Choices, blueprint: Blueprint) -> Data:
    """Data for a network; no more than about thirty outputs in all."""
    o = choices
    outputs = max(prod(blueprint.output_shape), 1)
    largest = max(32 // outputs, 1)
    counts = [size for size in SIZES if size <= largest]
    forms = {f: w for f, w in (ONE | SEVERAL).items() if f != "shuffled" or MIXES not in blueprint.traits}
    form = o.pick("form", list(forms), list(forms.values()))
    sizes = [o.pick("examples", counts)] + ([o.pick("more examples", [0, *counts])] if form in SEVERAL else [])
    if form in LOADED:  # the last batch is smaller
        sizes = [sizes[0], min(sizes[1], sizes[0])]
    if form == "list of tensors" and sizes[1]:  # by shapes alone it cannot be told from inputs and targets
        sizes = [sizes[0], sizes[0]]
    sizes = [size for size in sizes if size]
    generator = torch.Generator().manual_seed(o.number("data seed", 0, 2**16))
    dtype, likelihood = blueprint.dtype, blueprint.likelihood
    memory = o.pick("memory", MEMORY, [20, 2, 1])
    if memory == "strided" and form in LOADED:  # a loader puts its examples together anew
        memory = "plain"
    batches = []
    for size in sizes:
        if blueprint.tokens:
            x = torch.randint(TOKENS, (size, *blueprint.input_shape), generator=generator)
        else:
            x = _laid_out(torch.randn((size, *blueprint.input_shape), generator=generator).to(dtype), memory)
        batches.append((x, _targets(likelihood, size, blueprint.output_shape, dtype, generator)))
    return Data(batches, form, likelihood, _giver(form, batches))


def _laid_out(x: Tensor, memory: str) -> Tensor:
    """The same numbers as a part of a larger tensor with axes in another order, or as a leaf that asks for gradients."""
    if memory == "strided":
        return torch.stack([x, -x], -1).transpose(0, -2).contiguous().transpose(0, -2)[..., 0]
    return x.requires_grad_() if memory == "with gradients" else x


def _targets(likelihood: str, size: int, shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if likelihood == "regression":
        return torch.randn((size, *shape), generator=generator).to(dtype)
    if likelihood == "binary":
        return torch.randint(2, (size, *shape), generator=generator).to(dtype)
    classes, rest = (shape[0], shape[1:]) if likelihood == "segmentation" else (shape[-1], shape[:-1])
    return torch.randint(classes, (size, *rest), generator=generator)


def _giver(form: str, batches: list[tuple[Tensor, Tensor]]) -> Callable[[], Any]:
    """A function that gives the data anew."""
    x, y = batches[0]
    whole = TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    named: Any = [{"x": one, "labels": label} for one, label in whole]
    forms: dict[str, Callable[[], Any]] = {
        "tensor": lambda: x,
        "tuple": lambda: (x, y),
        "list": lambda: [x, y],
        "dict": lambda: {"x": x, "labels": y},
        "list of tuples": lambda: list(batches),
        "list of lists": lambda: [list(batch) for batch in batches],
        "list of tensors": lambda: [x for x, _ in batches],
        "loader": lambda: DataLoader(whole, batch_size=len(x)),
        "shuffled": lambda: DataLoader(whole, batch_size=len(x), shuffle=True),
        "generator": lambda: (batch for batch in batches),
        "mapping": lambda: UserDict(x=x, labels=y),
        "object": lambda: Pair(x, y),
        "loader of dicts": lambda: DataLoader(named, batch_size=len(x)),
        "list of mappings": lambda: [UserDict(x=x, labels=y) for x, y in batches],
        "iterator of a loader": lambda: iter(DataLoader(whole, batch_size=len(x), generator=torch.Generator())),
        "own sampler": lambda: DataLoader(whole, batch_size=len(x), sampler=InOrder(whole)),
    }
    return forms[form]
