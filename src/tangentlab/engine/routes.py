"""Who may take the structured route: decided by looking at this model on this batch, never assumed.

Chains of torch's own layers are known (see `chain`); everything else is probed.

A group does if all its uses in the autograd graph are captured calls and if, in every call, the gradient of one example's
outputs lives exactly in that example's own slice. The example axis is found by comparing the shapes of the calls on the
batch with those on another number of its examples, so a sequence-first input with as many steps as examples is not
mistaken. A batch that cannot be cut by examples is searched for an axis along which the gradients separate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import common_length, take_examples
from tangentlab.engine.capture import Call, Captured, capture, output_gradients
from tangentlab.engine.chain import is_plain_chain
from tangentlab.engine.graph import GraphFacts, leaves_of_call, read_graph
from tangentlab.engine.groups import Group, Site
from tangentlab.engine.network import Network, require_finite
from tangentlab.engine.snapshot import same_attributes, same_random_state
from tangentlab.errors import ModelError
from tangentlab.layers.conv import expected_ndim

WHOLE = -1
"""Axis of a call that belongs to one example altogether (a batch of one)."""


@dataclass(frozen=True)
class Use:
    """A captured call that uses a group: the call, its site, and its example axis."""

    call: Call = field(repr=False)
    site: Site
    axis: int


@dataclass(frozen=True)
class Route:
    """How the gradients of a group are computed: from its uses, or by the exact fallback for the stated reason."""

    group: Group
    uses: tuple[Use, ...] = ()
    reason: str = ""

    @property
    def structured(self) -> bool:
        """True when the closed form applies."""
        return not self.reason


class Router:
    """Chooses routes batch by batch; the probe runs again when the number of examples or the pattern of calls changes."""

    def __init__(self, network: Network, groups: tuple[Group, ...]) -> None:
        self.network, self.groups = network, groups
        self._known: dict[tuple[Any, ...], list[int | None]] = {}

    def routes(self, captured: Captured, batch: Any) -> list[Route]:
        """One route per group."""
        facts = read_graph(captured.outputs)
        live = [call for call in captured.calls if call.edge.node in facts.nodes]
        axes = self._axes(captured, live, batch)
        parameters = self.network.parameters()
        return [self._route(group, live, axes, facts, parameters) for group in self.groups]

    def _route(
        self, group: Group, live: list[Call], axes: list[int | None], facts: GraphFacts, parameters: dict[str, Any]
    ) -> Route:
        if group.reason:
            return Route(group, reason=group.reason)
        sites = {id(site.module): site for site in group.sites}
        uses = [(call, axis) for call, axis in zip(live, axes, strict=True) if id(call.module) in sites]
        for name in group.names:
            consumers = facts.consumers.get(id(parameters[name]), 0)
            if consumers != len(uses):
                what = f"{consumers} operations of the graph use {name}, {len(uses)} calls of its module were seen"
                return Route(group, reason=f"used outside its module ({what})")
        own = {id(parameters[name]) for name in group.names}
        if not all(own <= leaves_of_call(call.edge.node, call.origin) for call, _ in uses):
            return Route(group, reason="a call of its module does not use it")
        if any(axis is None for _, axis in uses):
            return Route(group, reason="no axis of its input separates the examples")
        if not all(call.input_unchanged for call, _ in uses):
            return Route(group, reason="its input is modified in place after the call")
        return Route(group, tuple(Use(call, sites[id(call.module)], axis) for call, axis in uses if axis is not None))

    def _axes(self, captured: Captured, live: list[Call], batch: Any) -> list[int | None]:
        examples = captured.examples
        key = (examples, *((id(call.module), call.inputs.ndim) for call in live))
        axes = self._known.get(key)
        if axes is None or not all(_fits(call, axis, examples) for call, axis in zip(live, axes, strict=True)):
            axes = self._found_axes(captured, live, batch)
            self._known[key] = axes
        return axes

    def _found_axes(self, captured: Captured, live: list[Call], batch: Any) -> list[int | None]:
        plain = is_plain_chain(self.network, batch) and common_length(batch) == captured.examples
        if plain and all(_fits(call, 0, captured.examples) for call in live):
            return [0] * len(live)
        with same_attributes(self.network.model):  # activation checkpointing runs the forward again
            found = self._probe(captured, live, batch)
        return [self._admissible(call, axis) for call, axis in zip(live, found, strict=True)]

    def _admissible(self, call: Call, axis: int | None) -> int | None:
        """Only layers that act on each position alone may have their examples elsewhere than on the first axis."""
        site = next(site for group in self.groups for site in group.sites if site.module is call.module)
        if axis is None or site.rule.pointwise:
            return axis
        if axis == WHOLE:
            axis = 0 if call.inputs.shape[:1] == (1,) and call.output_shape[:1] == (1,) else None
        expected = expected_ndim(call.module)
        return axis if axis == 0 and expected in (None, call.inputs.ndim) else None

    def _probe(self, captured: Captured, live: list[Call], batch: Any) -> list[int | None]:
        """Example axis of every live call, or None."""
        examples = captured.examples
        other = self._other(captured, batch)
        if other is None:
            return [WHOLE] * len(live) if examples == 1 else _searched(captured, live)
        _require_independent(captured.outputs[:2], other.outputs[:2])
        if examples == 1:
            return [WHOLE] * len(live)
        nodes = read_graph(other.outputs).nodes
        calls = [call for call in other.calls if call.edge.node in nodes]
        if [id(call.module) for call in calls] != [id(call.module) for call in live]:
            return [None] * len(live)
        axes = [_changed_axis(a, b, examples, other.examples) for a, b in zip(live, calls, strict=True)]
        return _separated(other, calls, axes)

    def _other(self, captured: Captured, batch: Any) -> Captured | None:
        """The network on another number of examples, or None where the batch cannot be cut or has a fixed size.

        A single example runs again as it is. Cutting the batch may leave the outputs alone (sequences first), but not
        change another axis of them than the first, which is that of the examples.
        """
        length = common_length(batch)
        index = [0, 0] if length == 1 else [0, 1, 0] if length == 2 else [0, 1]
        if captured.examples > 1 and length is None:
            return None
        some = batch if captured.examples == 1 else take_examples(batch, index)
        try:
            with same_random_state():
                other = capture(self.network, some, self.groups)
        except Exception:  # whatever the model says about this number of examples, it accepts its own
            return None
        full, part = captured.outputs.shape, other.outputs.shape
        if full[0] == part[0] and full != part:
            raise ModelError(_MIXED)
        if captured.examples == 1:
            return other
        return other if length == captured.examples and part[0] == len(index) else None


def _fits(call: Call, axis: int | None, examples: int) -> bool:
    if axis is None or axis == WHOLE:
        return True
    shapes = call.inputs.shape, call.output_shape
    return all(len(shape) > axis and shape[axis] == examples for shape in shapes)


def _changed_axis(full: Call, small: Call, examples: int, count: int) -> int | None:
    """The axis, the same for input and output, along which one call has `examples` entries and the other `count`."""
    axes = set()
    for a, b in ((full.inputs.shape, small.inputs.shape), (full.output_shape, small.output_shape)):
        changed = [axis for axis, (i, j) in enumerate(zip(a, b, strict=False)) if i != j]
        if len(a) != len(b) or len(changed) != 1 or (a[changed[0]], b[changed[0]]) != (examples, count):
            return None
        axes.add(changed[0])
    return axes.pop() if len(axes) == 1 else None


def _separated(captured: Captured, calls: list[Call], axes: list[int | None]) -> list[int | None]:
    """Backpropagate one half of the examples at a time: nothing may arrive in the slices of the other half."""
    known = [index for index, axis in enumerate(axes) if axis is not None]
    result = list(axes)
    for index, grad in zip(known, _halves(captured, [calls[index] for index in known]), strict=True):
        own, foreign = _arrivals(grad, axes[index])  # type: ignore[arg-type]
        if own and foreign:
            raise ModelError(_MIXED)
        result[index] = None if foreign else axes[index]
    return result


def _searched(captured: Captured, calls: list[Call]) -> list[int | None]:
    """The one axis of every call along which the gradients of the two halves of the examples separate, or None."""
    result: list[int | None] = []
    for call, grad in zip(calls, _halves(captured, calls), strict=True):
        ranks = range(min(call.inputs.ndim, len(call.output_shape)))
        candidates = [axis for axis in ranks if _fits(call, axis, captured.examples)]
        clean = [axis for axis in candidates if _arrivals(grad, axis) == (True, False)]
        result.append(clean[0] if len(clean) == 1 else None)
    return result


def _halves(captured: Captured, calls: list[Call]) -> list[Tensor]:
    """Output-gradients (2, ...) at the calls, of the first and of the second half of the examples."""
    half = captured.examples // 2
    weights = torch.rand_like(captured.outputs) + 0.5
    cotangents = torch.stack([weights, weights])
    cotangents[0, half:], cotangents[1, :half] = 0, 0
    grads = output_gradients(captured.outputs, calls, cotangents)
    for grad in grads:
        require_finite(grad, "The gradients at the layers of the model")
    return grads


def _arrivals(grad: Tensor, axis: int) -> tuple[bool, bool]:
    """Whether anything of (2, ...) arrives in the own half of the axis, and in the other half."""
    moved = grad.movedim(axis + 1, 1)
    half = moved.shape[1] // 2
    own = moved[0, :half].any() or moved[1, half:].any()
    return bool(own), bool(moved[0, half:].any() or moved[1, :half].any())


def _require_independent(full: Tensor, small: Tensor) -> None:
    eps = torch.finfo(full.dtype).eps
    tolerance = 4 * eps**0.5 * max(float(full.detach().abs().max()), eps**0.4)
    if full.shape != small.shape or float((full - small).detach().abs().max()) > tolerance:
        raise ModelError(_MIXED)


_MIXED = (
    "The outputs of one example change with the other examples of the batch (or from call to call): the function of a single "
    "example is not defined. Put the model in eval mode, remove batch statistics or noise from the forward, or pass "
    "function=/forward= that evaluate examples independently with the example axis first."
)
