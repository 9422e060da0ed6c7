"""What an operation of the trial is: a call of the library and the dense algebra that gives its truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import StructureError, TangentlabError
from tests.trial.choices import Choices
from tests.trial.scene import Scene
from tests.trial.truth import Truth

Results = dict[str, Tensor]


def nothing(truth: Truth) -> float:
    """Nothing cancels."""
    return 0.0


@dataclass
class Work:
    """`found` calls the library; `expected` says what comes out, given the truth about rows and outputs.

    `ordered`: the order of examples matters, so shuffling loaders are refused. `refusals`: errors that are in order even for
    an ordinary network. `slack`: how much further than usual the results may be off (iterative methods). `touches`: whether
    the call may change the model. `measures`: whether noise must be refused. `one_batch`: the first batch is what it takes.
    `draws`: whether the method itself is random. `undefined`: why no number can be right. `size`: of what
    cancels in the results, for their rounding.
    """

    found: Callable[[], Results]
    expected: Callable[[Truth], Results]
    ordered: bool = False
    refusals: tuple[type[TangentlabError], ...] = ()
    slack: float = 1.0
    touches: bool = False
    measures: bool = True
    one_batch: bool = False
    draws: bool = False
    undefined: str = ""
    size: Callable[[Truth], float] = nothing


@dataclass(frozen=True)
class Operation:
    """A family of calls."""

    name: str
    make: Callable[[Choices, Scene], Work]
    weight: float
    dtypes: tuple[torch.dtype, ...]
    fits: Callable[[Scene], bool]


OPERATIONS: dict[str, Operation] = {}
REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def operation(
    weight: float = 1.0, *, dtypes: tuple[torch.dtype, ...] = REAL, fits: Callable[[Scene], bool] = lambda scene: True
) -> Callable[[Callable[[Choices, Scene], Work]], Callable[[Choices, Scene], Work]]:
    """Decorator: the function makes the work of an operation of its own name."""

    def add(make: Callable[[Choices, Scene], Work]) -> Callable[[Choices, Scene], Work]:
        OPERATIONS[make.__name__] = Operation(make.__name__, make, weight, dtypes, fits)
        return make

    return add


def has_targets(scene: Scene) -> bool:
    """Whether the data come with targets."""
    return scene.data.has_targets


def random_vector(*shape: int, seed: int = 7) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_type(scene: Scene, *shape: int, seed: int = 7) -> Tensor:
    """The same in the type of the results."""
    return random_vector(*shape, seed=seed).to(scene.blueprint.dtype)


STRUCTURE: tuple[Any, ...] = (StructureError,)
