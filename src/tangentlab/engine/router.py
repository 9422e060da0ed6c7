"""Who may take the structured route: proposed by looking at this model on this batch, and proved before it is used.

A group may if all its uses in the autograd graph are captured calls and every call has an axis of the examples. The axis is
found by comparing the shapes of the calls on the batch with those on another number of its examples, so a sequence-first
input with as many steps as examples is not mistaken; chains of torch's own layers are known (`plain_chain`), and a batch
that cannot be cut by examples is searched for an axis along which the gradients separate. Whatever was found is then proved by
one plain gradient (see `certificate`); what is not proved takes the exact fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import common_length, take_examples
from tangentlab.engine.capture import Call, Captured, Route, RouteUse, capture, output_gradients
from tangentlab.engine.certificate import Proof, examples_depend_on_each_other, proof, verifies
from tangentlab.engine.graph import GraphFacts, coarsest_type, is_one_operation, leaves_of_call, read_graph
from tangentlab.engine.groups import Group, Site
from tangentlab.engine.independence import Unknown, example_runs, has_hooks
from tangentlab.engine.network import Network, grad_mode, require_finite
from tangentlab.engine.plain_chain import is_plain_chain
from tangentlab.engine.snapshot import same_random_state, untouched
from tangentlab.engine.standing import ChainStanding
from tangentlab.errors import ModelError
from tangentlab.layers.registry import WHOLE


@dataclass(frozen=True)
class Settled:
    """What is known about a pattern of calls: the example axis of every call, and why some groups are not proved.

    `final` is False where gradients were zero, rounding could hide a difference, examples have other outputs among others, or
    a matrix that mixes none of them in this batch may do so in the next: then that is proved too.
    """

    axes: list[int | None]
    unproved: dict[Group, str]
    final: bool = True

    @property
    def proved(self) -> bool:
        """Whether this holds for every batch of its pattern, for all groups."""
        return self.final and not self.unproved


@dataclass(frozen=True)
class Pattern:
    """Proved routes without their batch: for every group, its sites and axes by the number of the call that uses it."""

    uses: tuple[tuple[Group, tuple[tuple[int, Site, int], ...]], ...]

    @classmethod
    def of(cls, routes: list[Route], live: list[Call]) -> Pattern:
        """That of routes which are all structured."""
        number = {id(call): n for n, call in enumerate(live)}
        return cls(tuple((r.group, tuple((number[id(u.call)], u.site, u.axis) for u in r.uses)) for r in routes))

    def routes(self, live: list[Call]) -> list[Route]:
        """The same for the calls of another batch."""
        return [Route(g, tuple(RouteUse(live[n], site, axis) for n, site, axis in uses)) for g, uses in self.uses]


class Router:
    """Chooses routes batch by batch; they are found and proved anew when the shapes or the graph of the calls change."""

    def __init__(self, network: Network, groups: tuple[Group, ...]) -> None:
        self.network, self.groups = network, groups
        self._known: dict[tuple[Any, ...], Settled] = {}
        self._part: Captured | None = None  # the network on some examples of the batch that is being looked at

    def routes(self, captured: Captured, batch: Any, known: ChainStanding | None = None) -> list[Route]:
        """One route per group. What was proved of a chain that stands is known from earlier calls."""
        facts = read_graph(captured.outputs)
        live = [call for call in captured.calls if call.edge.node in facts.nodes]
        key = (facts.signature, captured.outputs.shape, *((id(c.module), *c.shapes) for c in live))
        if known is None or not verifies(self.network):
            return self._routes(captured, live, facts, batch, key)
        if key in known.settled:
            return known.settled[key].routes(live)
        routes = self._routes(captured, live, facts, batch, key)
        if self._known[key].proved and all(route.structured for route in routes):
            known.keep(key, Pattern.of(routes, live))
        return routes

    def _routes(
        self, captured: Captured, live: list[Call], facts: GraphFacts, batch: Any, key: tuple[Any, ...]
    ) -> list[Route]:
        if key not in self._known or not self._known[key].final:
            with grad_mode(), untouched(self.network.model):  # activation checkpointing runs the forward again
                self._known[key] = self._settled(captured, live, facts, batch)
        settled = self._known[key]
        return [
            Route(route.group, reason=settled.unproved[route.group]) if route.group in settled.unproved else route
            for route in self._proposed(live, settled.axes, facts)
        ]

    def _settled(self, captured: Captured, live: list[Call], facts: GraphFacts, batch: Any) -> Settled:
        self._part = None
        axes = self._found_axes(captured, live, batch)
        if not verifies(self.network):
            self._part = None
            return Settled(axes, {})
        routes = self._proposed(live, axes, facts)
        unproved: dict[Group, str] = {}
        of_a_part = self._proof_of_a_part(captured, routes, axes, facts)
        verdict = of_a_part or proof(self.network, captured.outputs, routes)
        if verdict.failed and examples_depend_on_each_other(self.network, batch, captured.outputs):
            raise ModelError(f"{MIXED} (Seen in the gradient of {next(iter(verdict.failed.values()))!r}.).")
        while (
            verdict.failed
        ):  # a hook on a gradient acts before or after torch reads it, depending on what else is asked for
            unproved |= {group: _UNPROVED.format(name) for group, name in verdict.failed.items()}
            verdict = proof(self.network, captured.outputs, [route for route in routes if route.group not in unproved])
        half = captured.outputs.dtype.itemsize == 2  # where a softmax over the examples may be exactly 0 and 1
        speaks = verdict.complete and verdict.apart and not half
        speaks = speaks and (
            of_a_part is not None or is_plain_chain(self.network, batch) or _are_apart(captured.outputs, routes)
        )
        return Settled(axes, unproved, speaks and self._parts_are_alike(captured, batch))

    def _proof_of_a_part(
        self, captured: Captured, routes: list[Route], axes: list[int | None], facts: GraphFacts
    ) -> Proof | None:
        """A proof on some of the examples, which holds for all where every operation keeps them apart; else None.

        The graph shows that the examples do not mix, that the others went through the same operations, and that every layer
        is one operation on its own input, parameters and attributes: a patched one may happen to compute what its class
        says on some examples.
        """
        part, self._part = self._part, None
        if part is None or captured.examples < _WORTH_CUTTING * part.examples or captured.outputs.dtype.itemsize == 2:
            return None
        own = read_graph(part.outputs)
        uses = [use for route in routes for use in route.uses]
        if own.signature != facts.signature or captured.hooked or has_hooks(facts.nodes):
            return None
        if not all(is_one_operation(c.edge.node, c.module, c.inputs, c.origins) for c in (use.call for use in uses)):
            return None
        try:
            found = example_runs(captured.outputs, [use.call.edge for use in uses])
        except Unknown:
            return None
        expected = [prod(use.call.output_shape[use.axis + 1 :]) if use.axis >= 0 else None for use in uses]
        if found != expected or None in found:
            return None
        live = [call for call in part.calls if call.edge.node in own.nodes]
        verdict = proof(self.network, part.outputs, self._proposed(live, axes, own), known_apart=True)
        return None if verdict.failed else verdict

    def _proposed(self, live: list[Call], axes: list[int | None], facts: GraphFacts) -> list[Route]:
        parameters = self.network.parameters()
        return [self._route(group, live, axes, facts, parameters) for group in self.groups]

    def _route(
        self, group: Group, live: list[Call], axes: list[int | None], facts: GraphFacts, parameters: dict[str, Any]
    ) -> Route:
        if group.reason:
            return Route(group, reason=group.reason)
        sites = {id(site.module): site for site in group.sites}
        uses = [
            (call, axis)
            for call, axis in zip(live, axes, strict=True)
            if id(call.module) in sites and sites[id(call.module)].uses(call.part)
        ]
        seen = sum(call.part is None or call.part.counts for call, _ in uses)
        for name in group.names:
            consumers = facts.consumers.get(id(parameters[name]), 0)
            if consumers != seen:
                what = f"{consumers} operations of the graph use {name}, {seen} calls of its module were seen"
                return Route(group, reason=f"used outside its module ({what})")
        own = {id(parameters[name]) for name in group.names}
        if not all(own <= leaves_of_call(call.edge.node, call.origins) for call, _ in uses):
            return Route(group, reason="a call of its module does not use it")
        if any(axis is None for _, axis in uses):
            return Route(group, reason="no axis of its input separates the examples")
        if not all(call.input_unchanged for call, _ in uses):
            return Route(group, reason="its input is modified in place after the call")
        return Route(
            group, tuple(RouteUse(call, sites[id(call.module)], axis) for call, axis in uses if axis is not None)
        )

    def _found_axes(self, captured: Captured, live: list[Call], batch: Any) -> list[int | None]:
        plain = is_plain_chain(self.network, batch) and common_length(batch) == captured.examples
        if plain and all(_fits(call, 0, captured.examples) for call in live):
            return [0] * len(live)
        found = self._probe(captured, live, batch)
        return [self._admissible(call, axis) for call, axis in zip(live, found, strict=True)]

    def _admissible(self, call: Call, axis: int | None) -> int | None:
        """Only layers that act on each position alone may have their examples elsewhere than on the first axis."""
        site = next(site for group in self.groups for site in group.sites if site.module is call.module)
        if axis is None or site.rule.pointwise:
            return axis
        if axis == WHOLE:
            axis = 0 if all(shape[:1] == (1,) for shape in call.shapes) else None
        expected = site.rule.ndim(site.module)
        return axis if axis == 0 and expected in (None, call.inputs[0].ndim) else None

    def _probe(self, captured: Captured, live: list[Call], batch: Any) -> list[int | None]:
        """Example axis of every live call, or None."""
        examples = captured.examples
        other = self._other(captured, batch)
        if other is None:
            return [WHOLE] * len(live) if examples == 1 else _searched(captured, live)
        if examples == 1:
            return [WHOLE] * len(live)
        nodes = read_graph(other.outputs).nodes
        calls = [call for call in other.calls if call.edge.node in nodes]
        if [id(call.module) for call in calls] != [id(call.module) for call in live]:
            return [None] * len(live)
        self._part = other
        return [_changed_axis(a, b, examples, other.examples) for a, b in zip(live, calls, strict=True)]

    def _other(self, captured: Captured, batch: Any) -> Captured | None:
        """The network on another number of examples, or None where the batch cannot be cut or has a fixed size.

        Refused are outputs that are others there than in the batch. A single example runs again as it is. Cutting the batch
        may leave the outputs alone (sequences first), but not change another axis of them than the first, which is that of
        the examples.
        """
        length = common_length(batch)
        if captured.examples > 1 and length is None:
            return None
        index = [0, 0] if length == 1 else [0, 1, 0] if length == 2 else [0, 1]
        some = batch if captured.examples == 1 else take_examples(batch, index)
        try:
            with same_random_state():
                other = capture(self.network, some, self.groups)
        except Exception:  # whatever the model says about this number of examples, it accepts its own
            return None
        full, part = captured.outputs.shape, other.outputs.shape
        if full[0] == part[0] and full != part:
            raise ModelError(MIXED)
        if captured.examples == 1:
            if not _alike(captured.outputs, other.outputs):
                raise ModelError(MIXED)
            return other
        if length != captured.examples or part[0] != len(index):
            return None
        if not _alike(captured.outputs[index], other.outputs):
            raise ModelError(MIXED)
        return other

    def _parts_are_alike(self, captured: Captured, batch: Any) -> bool:
        """Whether the last two examples alone, or each of two, have the outputs that they have in the batch.

        Where they have not, something in the batch decides about all: the first example, or a matrix beside the inputs. A
        proof says nothing about the next batch then.
        """
        if captured.examples < 2 or common_length(batch) != captured.examples or is_plain_chain(self.network, batch):
            return True
        parts = [[-2, -1]] if captured.examples > 2 else [[0], [1]]
        try:
            with same_random_state(), untouched(self.network.model):
                return all(_alike(captured.outputs[part], self.network(take_examples(batch, part))) for part in parts)
        except Exception:  # whatever the model says about this number of examples
            return True


def _are_apart(outputs: Tensor, routes: list[Route]) -> bool:
    """Whether the graph keeps the examples apart; else only numbers part them, which the next batch may have otherwise."""
    try:
        runs = example_runs(outputs, [use.call.edge for route in routes for use in route.uses if use.axis >= 0])
    except Unknown:
        return False
    return None not in runs


def _fits(call: Call, axis: int | None, examples: int) -> bool:
    if axis is None or axis == WHOLE:
        return True
    return all(len(shape) > axis and shape[axis] == examples for shape in call.shapes)


def _changed_axis(full: Call, small: Call, examples: int, count: int) -> int | None:
    """The axis, the same for inputs and output, along which one call has `examples` entries and the other `count`."""
    axes = set()
    for a, b in zip(full.shapes, small.shapes, strict=True):
        changed = [axis for axis, (i, j) in enumerate(zip(a, b, strict=False)) if i != j]
        if len(a) != len(b) or len(changed) != 1 or (a[changed[0]], b[changed[0]]) != (examples, count):
            return None
        axes.add(changed[0])
    return axes.pop() if len(axes) == 1 else None


def _searched(captured: Captured, calls: list[Call]) -> list[int | None]:
    """The one axis of every call along which the gradients of the two halves of the examples separate, or None."""
    result: list[int | None] = []
    for call, grad in zip(calls, _halves(captured, calls), strict=True):
        ranks = range(min(map(len, call.shapes)))
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


def _alike(full: Tensor, small: Tensor) -> bool:
    """Whether the outputs of some examples are the same in two batches, up to rounding."""
    eps = torch.finfo(coarsest_type(full)).eps
    tolerance = 4 * eps**0.5 * max(float(full.detach().abs().max()), eps**0.4)
    return full.shape == small.shape and float((full - small).detach().abs().max()) <= tolerance


_WORTH_CUTTING = 3
"""How many times as many examples as a part has make its proof worth the look at the graph."""
MIXED = (
    "The outputs of one example depend on other examples of the batch (or change from call to call): the function of a single "
    "example is not defined. Put the model in eval mode, remove batch statistics or noise from the forward, or pass "
    "function=/forward= that evaluate examples independently with the example axis first."
)
_UNPROVED = (
    "its closed form is not the gradient that plain autograd has for {} (the forward mixes rows of the batch, takes "
    "derivatives itself, or computes something else than the layer)"
)
