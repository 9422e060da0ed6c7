"""What one way of preconditioning has to provide; `Preconditioner` does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.optim.sums import Sample

Gradients = dict[Group, list[Tensor]]
"""Gradients of the parameters of every group."""


class Method(ABC):
    """From per-example gradients to natural gradients, group by group or all together."""

    name: str

    def _refusal(self, group: Group) -> str:
        """Why a group with a closed form is passed through untouched, or ''."""
        if any(site.rule.couples for site in group.sites):
            return "batch statistics couple the examples"
        sparse = any(getattr(site.module, "sparse", False) for site in group.sites)
        return "its gradient is sparse" if sparse else ""

    def _begins(self, outputs: dict[Group, list[tuple[int, ...]]]) -> None:
        """Look at the shapes of the outputs of all calls of a forward pass, before anything is asked about it."""
        return

    @abstractmethod
    def _wants(self, step: int) -> bool:
        """Whether inputs and output-gradients are needed at a step."""

    @abstractmethod
    def _collect(self, samples: dict[Group, list[Sample]], examples: int) -> None:
        """Take in the per-example gradients of one minibatch (or of a part of it)."""

    @abstractmethod
    def _clear(self) -> None:
        """Forget what was collected since the last step."""

    @abstractmethod
    def _finite(self) -> bool:
        """Whether what was collected is finite."""

    @abstractmethod
    def _update(self, gain: float, examples: float) -> None:
        """Take what was collected into the state; gradients times `gain` are per-example gradients."""

    @abstractmethod
    def _natural(self, gradients: Gradients, weight: float) -> Gradients:
        """Natural gradients of the groups that are ready; `weight` times a squared gradient estimates F's diagonal."""

    @abstractmethod
    def quadratic(self, step: dict[str, Tensor]) -> float:
        """d^T F d for a step d by parameter name, in this preconditioner's own approximation of F."""

    @abstractmethod
    def _treatment(self, group: Group) -> str:
        """What is done with a group, in a few words."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Tensors and numbers that later steps depend on."""

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> None:
        """Take up a state."""
