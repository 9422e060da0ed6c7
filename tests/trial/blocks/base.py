"""What a block of a generated network is, and how a function joins the collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.trial.choices import Choices

Shape = tuple[int, ...]
FEATURES, MAPS = "features", "maps"
"""Features on the last axis, (..., F), or channels on the first, (C, L...), both without the axis of the examples."""

MIXES, NOISE, ODD, STATEFUL, ROUNDS, WRITES = "mixes", "noise", "odd", "stateful", "rounds", "writes"
"""Examples see each other; the forward draws at random; refusing is allowed; the forward changes what the next one gives;
a part of it is in single precision; it writes to its parameters."""


@dataclass
class Site:
    """Where a block is put: what comes in, the decisions about it, and the blocks before it."""

    shape: Shape
    form: str
    choices: Choices
    earlier: list[tuple[nn.Module, str, Shape, Shape]] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Number of features or channels."""
        return self.shape[-1] if self.form == FEATURES else self.shape[0]


@dataclass(frozen=True)
class Made:
    """A module and the shape (and form) of what it gives."""

    module: nn.Module
    shape: Shape
    form: str


@dataclass(frozen=True)
class Block:
    """A way of continuing a network."""

    kind: str
    make: Callable[[Site], Any]
    form: str
    rank: int | None
    traits: frozenset[str]
    weight: float

    def fits(self, site: Site) -> bool:
        """Whether it can follow here."""
        return self.form in ("", site.form) and self.rank in (None, len(site.shape))

    def build(self, site: Site) -> Made:
        """The module; what a function returns may leave out shape and form where they stay."""
        made = self.make(site)
        module, *rest = made if isinstance(made, tuple) else (made,)
        shape = rest[0] if rest else site.shape
        return Made(module, shape, rest[1] if len(rest) > 1 else site.form)


BLOCKS: dict[str, Block] = {}


def block(
    form: str = FEATURES, *traits: str, rank: int | None = None, weight: float = 1.0
) -> Callable[[Callable[[Site], Any]], Callable[[Site], Any]]:
    """Decorator: the function makes blocks of its own name."""

    def add(make: Callable[[Site], Any]) -> Callable[[Site], Any]:
        BLOCKS[make.__name__] = Block(make.__name__, make, form, rank, frozenset(traits), weight)
        return make

    return add


class Apply(nn.Module):
    """A function of (this module, x) with the given modules and parameters as attributes."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def parameter(*shape: int) -> nn.Parameter:
    """A bare parameter."""
    return nn.Parameter(torch.randn(shape))


def in_train_mode(module: nn.Module) -> nn.Module:
    """A module that stays in train mode where the network goes to eval mode."""
    module.stays_in_train_mode = True  # type: ignore[assignment]
    return module


def shape_after(layer: nn.Module, shape: Shape) -> Shape:
    """Shape of one example's output."""
    with torch.no_grad():
        return tuple(layer(torch.zeros(1, *shape)).shape[1:])
