"""What an animal of the zoo is, and how a class joins it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

NO_FORM = "no closed form is registered for"


@dataclass(frozen=True)
class Animal:
    """One awkward situation: how to make the model and a batch, how to call it, and what the engine must decide.

    `fallback` names the parameters that may not take the structured route, with a part of the stated reason; all others
    must be structured, or unused where `unused` says so.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    fallback: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    forward: Callable[[nn.Module, Any], Any] | None = None

    def catch(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[nn.Module, Any]:
        """A fresh model in eval mode and a batch, both of the dtype."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.manual_seed(seed)
            model, batch = self.make().eval().to(dtype), self.batch()
        return model, tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, batch)

    def __str__(self) -> str:
        return self.name


ZOO: list[Animal] = []


def animal(batch: Callable[[], Any], *args: Any, name: str = "", **facts: Any) -> Callable[[type], type]:
    """Class decorator: the class, made with the arguments, joins the zoo."""

    def add(kind: type) -> type:
        ZOO.append(Animal(name or kind.__name__, lambda: kind(*args), batch, **facts))
        return kind

    return add


def images(*shape: int) -> Callable[[], Tensor]:
    """A maker of normal tensors."""
    return lambda: torch.randn(shape)


def tokens(*shape: int, vocabulary: int = 5) -> Callable[[], Tensor]:
    """A maker of token indices; every token occurs if there is room."""
    return lambda: torch.arange(torch.Size(shape).numel()).mul(3).remainder(vocabulary).reshape(shape)
