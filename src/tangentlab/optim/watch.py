"""First mistakes in a training loop that change nothing visible: each is told once."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from tangentlab.errors import InputError

PATIENCE = 10
"""Steps in a row after which weights that nobody has written to are worth a word."""

NOTHING_SEEN = (
    "No forward and backward pass of this model was seen since the last step: make the preconditioner before the forward "
    "pass, call the model itself and loss.backward(), or pass batch_size=."
)
HOOKS_OFF = (
    "This preconditioner does not observe its model any more: its hooks were taken off by remove() or paused(). Step "
    "outside of paused(), or make a new preconditioner."
)
CLEARED = (
    "The gradients that loss.backward() brought are gone: zero_grad() was called between backward and this step. Call it "
    "before backward, or after the optimizer's step."
)

Stamp = tuple[tuple[int, ...], tuple[float, ...]]


class LoopWatch:
    """Looks at weights and gradients between steps: whether they are written to, and cleared, where they should be.

    Weights are compared by torch's counters of in-place writes, then by their values, so that an optimizer with a learning
    rate of 0 counts as one. The first write between a step and the next forward pass ends the comparison for good.

    Args:
        model: the network, whose mode is looked at.
        parameters: what is preconditioned.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self.model, self.parameters = model, tuple(parameters)
        self.comparing = True
        self.still = self.early = 0
        self._left: Stamp | None = None
        self._seen_forward = False
        self._grad: tuple[nn.Parameter, Callable[[], Any], int] | None = None
        self._told: set[str] = set()

    def driven(self, optimizer: torch.optim.Optimizer) -> None:
        """This optimizer makes its step right after the preconditioner's: no need to look at weights."""
        require_overlap(optimizer, self.parameters)
        self.comparing = False

    def forward_begins(self) -> None:
        """A forward pass: the optimizer's step should lie between it and the step before."""
        if self._left is not None and not self._seen_forward:
            self._seen_forward = True
            self.comparing = self._left == self._stamp()

    def gradient_arrives(self) -> None:
        """The first gradient since a step: those that the step left should be gone."""
        if self._grad is not None:
            parameter, left, version = self._grad
            self._grad = None
            if parameter.grad is not None and parameter.grad is left() and parameter.grad._version == version:
                self._tell(
                    "zero_grad() was not called since the last step, so new gradients are added to the last natural ones. "
                    "Call optimizer.zero_grad() before loss.backward()."
                )

    def step_begins(self, training: bool) -> None:
        """A call of the preconditioner's step, on passes that ran in train mode or did not."""
        if not training and any(_depends_on_mode(module) for module in self.model.modules()):
            self._tell(
                "The model is in eval mode, where batch norm does not learn its statistics and dropout is off. Call "
                "model.train() before training, or filter this warning if that is meant."
            )
        if self._left is None or not self.comparing or not self._seen_forward:
            return
        moved, self._left = self._left != self._stamp(), None
        self.early, self.still = self.early + moved, self.still + (not moved)
        if self.early + self.still < PATIENCE:
            return
        self.comparing = False
        if moved:
            self._tell(
                f"In {PATIENCE} steps the weights changed between loss.backward() and the preconditioner's step, and never "
                "after it: optimizer.step() comes too early and uses plain gradients. The order is loss.backward(), "
                "preconditioner.step(), optimizer.step(); preconditioner.attach(optimizer) takes care of it."
            )
        else:
            self._tell(
                f"In {PATIENCE} steps no weight has changed: a preconditioner changes gradients only. Call optimizer.step() "
                "after preconditioner.step(), use attach(optimizer), or NaturalSGD in place of both."
            )

    def step_ends(self) -> None:
        """Remember weights and one gradient as the step leaves them."""
        self._left, self._seen_forward = self._stamp() if self.comparing else None, False
        with_grad = [p for p in self.parameters if p.grad is not None]
        if with_grad:
            smallest = min(with_grad, key=torch.Tensor.numel)
            assert smallest.grad is not None
            self._grad = smallest, weakref.ref(smallest.grad), smallest.grad._version

    def _stamp(self) -> Stamp:
        norms = torch.stack([norm.to(torch.float64) for norm in torch._foreach_norm(self.parameters)])
        return tuple(p._version for p in self.parameters), tuple(norms.tolist())

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            tell(message)


def tell(message: str) -> None:
    """A RuntimeWarning that points to the user's own line."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("tangentlab", "torch"):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, RuntimeWarning, stacklevel=depth)


def require_overlap(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Refuse an optimizer none of whose parameters is among these."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in updated for p in parameters):
        raise InputError(
            f"None of the parameters of this {type(optimizer).__name__} is preconditioned: it was made for another model, or "
            "for a copy of this one. Give it model.parameters() of the model that the preconditioner has."
        )


def _depends_on_mode(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return module.track_running_stats
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
