"""Whether the observed calls explain a gradient: what they rebuild, against what autograd brought to the parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.layers import OuterSum
from tangentlab.layers.lookup import LookupSum
from tangentlab.optim.passes import PassObserver, SeenCall
from tangentlab.optim.sums import Sample
from tangentlab.parallel.processes import Processes

RTOL = {torch.float64: 1e-9, torch.float32: 3e-3}
"""Relative difference that is rounding, by the type of the activations; `HALF` for shorter ones."""
HALF = 5e-2
ROUNDING = 8.0
"""Errors of so many units in the last place of every example's part, adding up at random, are rounding too."""
EVERY = 50
"""Once in so many steps a gradient is verified again, and at steps 1, 2, 4, 8, ..."""

NOT_CALLED = "its module was never called although its gradient is not zero (functional use of the weight)"
OTHER_USE = (
    "the calls of its module do not explain its gradient (another use of the weight, a derivative taken inside the forward, "
    "or a hook or patched function that changes the layer)"
)


@dataclass(frozen=True)
class Brought:
    """A parameter, the sum of what backward brought to it, and how much of it through the model's outputs, where known."""

    parameter: Tensor
    gradient: Tensor | None
    through: Tensor | None


def brought_to(groups: Sequence[Group], observer: PassObserver) -> dict[Group, list[Brought]]:
    """What backward brought to every parameter; to those that were not followed, the gradient that is there.

    Hooks on a parameter stand between the model's outputs and its gradient: then nothing can be told apart.
    """
    found = {}
    for name, p in observer.parameters.items():
        leaf = observer.leaves.found.get(name)
        if leaf is None:
            found[name] = Brought(p, p.grad, None)
            continue
        through = torch.zeros_like(p) if leaf.through is None else leaf.through
        found[name] = Brought(p, leaf.brought, through if leaf.traced and not p._backward_hooks else None)
    return {group: [found[name] for name in group.names] for group in groups}


@dataclass
class Rebuilt:
    """sum_n g_n of one group with the squared lengths of its terms, and the coarsest type that went in."""

    gradient: Tensor
    square: float
    dtype: torch.dtype


class Verification:
    """Rebuilds `sum_n g_n` from the calls that were seen and compares it with what arrives at the parameters.

    The backward pass of the user brings every parameter the sum of all its uses, whatever is done to `parameter.grad`
    afterwards (clipping, averaging over processes). What the calls of its module do not explain comes from elsewhere:
    functional uses, the output projection of MultiheadAttention, compiled forwards, derivatives taken inside the forward,
    hooks, function modes and patched functions. A penalty on the weight, added to the loss outside of the model, does not use
    the layer: a multiple of w (L2) or of sign w (L1) may come beside what comes through the model's outputs. Cost: one
    gradient and a walk through the graph, at steps 0, 1, 2, 4, 8, ... and once in every 50 steps.
    """

    def __init__(self) -> None:
        self.done: set[Group] = set()
        self.last = 0
        self._rebuilt: dict[Group, Rebuilt] = {}
        self._partly: set[Group] = set()

    def due(self, step: int, groups: Sequence[Group]) -> bool:
        """Whether a step is verified, if its statistics are measured at all."""
        return not self.done.issuperset(groups) or step.bit_count() == 1 or step // EVERY > self.last // EVERY

    def add(self, group: Group, calls: Sequence[SeenCall], samples: Sequence[Sample]) -> None:
        """Add the gradient that calls explain, given as samples too."""
        if any(call.inputs is None or call.grads is None for call in calls):  # of a forward that was not observed
            self._partly.add(group)
            return
        tensors = [tensor for call in calls for tensor in (*(call.inputs or ()), call.grads)]
        types = [tensor.dtype for tensor in tensors if tensor is not None and tensor.is_floating_point()]
        dtype = max(types, key=lambda kind: torch.finfo(kind).eps)
        for sample in samples:
            for outer in sample.chunks(sample.cells_per_example()):
                like = outer.gradient_factors
                ones = torch.ones((1, outer.examples), dtype=like.dtype, device=like.device)
                part, square = outer.pull(ones), _square_of_terms(outer)
                if group in self._rebuilt:
                    known = self._rebuilt[group]
                    part, square = known.gradient + part, known.square + square
                    dtype = max(known.dtype, dtype, key=lambda kind: torch.finfo(kind).eps)
                self._rebuilt[group] = Rebuilt(part, square, dtype)

    def clear(self) -> None:
        """Forget what was rebuilt."""
        self._rebuilt.clear()
        self._partly.clear()

    def verdicts(
        self, step: int, brought: Mapping[Group, Sequence[Brought]], processes: Processes, interrupted: bool = False
    ) -> dict[Group, str]:
        """Reasons of the groups that fail in any process; the others, if anything can be said of them, are done.

        Args:
            interrupted: whether passes may have gone unobserved on purpose; then a difference says nothing.
        """
        found = {group: self._verdict(group, parts) for group, parts in brought.items()}
        if interrupted:
            found = {group: None if reason else reason for group, reason in found.items()}
        failed = processes.totals([float(bool(reason)) for reason in found.values()])
        agreed = processes.totals([float(reason == "") for reason in found.values()])
        reasons = {}
        for (group, reason), bad, good in zip(found.items(), failed, agreed, strict=True):
            if bad:
                reasons[group] = reason or OTHER_USE
            elif good:
                self.done.add(group)
        self.last = step
        self.clear()
        return reasons

    def _verdict(self, group: Group, parts: Sequence[Brought]) -> str | None:
        """A reason, '' for agreement, None where there is nothing but rounding to compare."""
        rebuilt = self._rebuilt.get(group)
        if group in self._partly or (rebuilt is None and all(part.gradient is None for part in parts)):
            return None
        kind = torch.promote_types(parts[0].parameter.dtype, torch.float32)
        total = _flat([part.gradient for part in parts], parts, kind)
        if rebuilt is None:
            return NOT_CALLED if bool(total.any()) else None
        noise = ROUNDING * torch.finfo(rebuilt.dtype).eps * rebuilt.square**0.5
        rtol, own = RTOL.get(rebuilt.dtype, HALF), rebuilt.gradient.to(kind)
        if _length(total - own) <= rtol * _length(total) + noise:
            return "" if _length(total) > noise else None
        if any(part.through is None for part in parts):
            return OTHER_USE
        through = _flat([part.through for part in parts], parts, kind)
        beside = (total - through).split([part.parameter.numel() for part in parts])
        left = torch.cat([_without_penalty(rest, part.parameter) for rest, part in zip(beside, parts, strict=True)])
        explained = _length(through - own) <= rtol * _length(through) + noise
        return "" if explained and _length(left) <= rtol * _length(total) + noise else OTHER_USE


def _flat(tensors: Sequence[Tensor | None], parts: Sequence[Brought], kind: torch.dtype) -> Tensor:
    """All in one vector, zeros for what is missing."""
    found = [torch.zeros_like(p.parameter) if x is None else x for x, p in zip(tensors, parts, strict=True)]
    return torch.cat([x.detach().flatten().to(kind) for x in found])


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _square_of_terms(outer: OuterSum) -> float:
    """sum over examples and positions of |g_t|^2 |a_t|^2."""
    if isinstance(outer, LookupSum):
        return float(outer.right.square().sum())
    return float((outer.left.square().sum(-1) * (outer.right.square().sum(-1) + outer.bias)).sum())


def _without_penalty(rest: Tensor, parameter: Tensor) -> Tensor:
    """What no combination of w and sign w explains."""
    weight = parameter.detach().flatten().to(rest.dtype)
    penalties = torch.stack([weight, weight.sign()])
    return rest - (torch.linalg.pinv(penalties @ penalties.T) @ (penalties @ rest)) @ penalties
