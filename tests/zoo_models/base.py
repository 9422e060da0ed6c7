"""What a specimen is: a model of another library in a tiny configuration, a batch, and a few of its outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tangentlab.engine.feeding import call_model

Outputs = Callable[[Any, Any], Tensor]


def logits(out: Any, batch: Any) -> Tensor:
    """The first three logits of an example."""
    return out.logits[:, :3]


def next_token(out: Any, batch: Any) -> Tensor:
    """Two logits at the last position and one at the first."""
    return torch.cat([out.logits[:, -1, :2], out.logits[:, 0, :1]], 1)


def plain(out: Any, batch: Any) -> Tensor:
    """What comes out, (N, C)."""
    return out


@dataclass(frozen=True)
class Specimen:
    """A model with random weights.

    `rounds`: it computes partly in single precision whatever its type is. `warm`: its forward converts parts of it, and has
    run once.
    """

    name: str
    package: str
    make: Callable[[], tuple[nn.Module, Any]]
    outputs: Outputs
    forward: Callable[[nn.Module, Any], Any] | None
    rounds: bool
    dtype: torch.dtype
    warm: bool

    def catch(self) -> tuple[nn.Module, Any]:
        """A fresh model in eval mode and its batch, both of the type; always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, batch = self.make()
            model = model.eval().to(self.dtype)
            with torch.no_grad():
                for parameter in model.parameters():  # small or constant initializations hide what is wrong
                    if parameter.ndim > 1 and float(parameter.std()) < 0.1:
                        parameter.normal_(0, 0.2)
                    elif parameter.ndim == 1:
                        parameter.add_(0.1 * torch.randn_like(parameter))
            batch = tree_map(
                lambda x: x.to(self.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, batch
            )
            if self.warm:
                (self.forward or call_model)(model, batch)
        return model, batch

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.package) is not None

    def __str__(self) -> str:
        return f"{self.package}: {self.name}"


SPECIMENS: list[Specimen] = []


def specimen(
    package: str,
    name: str,
    outputs: Outputs = plain,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    rounds: bool = False,
    dtype: torch.dtype = torch.float64,
    warm: bool = False,
) -> Callable[[Callable[[], tuple[nn.Module, Any]]], Callable[[], tuple[nn.Module, Any]]]:
    """Decorator: the function makes a model and a batch."""

    def add(make: Callable[[], tuple[nn.Module, Any]]) -> Callable[[], tuple[nn.Module, Any]]:
        SPECIMENS.append(Specimen(name, package, make, outputs, forward, rounds, dtype, warm))
        return make

    return add
