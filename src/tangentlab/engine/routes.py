"""A route: how the per-example gradients of one parameter group are computed, and the factors that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tangentlab.engine.capture import Call, output_gradients
from tangentlab.engine.groups import Group, Site
from tangentlab.layers import OuterSum, concatenate
from tangentlab.layers.registry import Inputs


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


def structured_factors(
    outputs: Tensor, routes: Sequence[Route], cotangents: Tensor, dtype: torch.dtype
) -> dict[Group, OuterSum]:
    """Gradients of sum(outputs[n] * cotangents[k, n]) for every k, n and every group that has uses.

    Args:
        cotangents: (K, N, ...).
        dtype: one type for all layers, so that what is made of them can be put together.
    """
    uses = {id(use.call): use for route in routes for use in route.uses}
    grads = output_gradients(outputs, [use.call for use in uses.values()], cotangents)
    by_call = dict(zip(uses, grads, strict=True))
    return {
        route.group: concatenate([_term(use, by_call[id(use.call)], dtype) for use in route.uses])
        for route in routes
        if route.uses
    }


def _term(use: Use, grads: Tensor, dtype: torch.dtype) -> OuterSum:
    """Bring a call to (N, ...) and (K, N, ...) and apply the layer's closed form."""
    site = use.site
    inputs, grads = site.rule.by_example(site.module, use.call.inputs, grads, use.axis)
    return site.outer(as_type(inputs, dtype), grads.to(dtype), use.call.part)


def as_type(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Floating-point inputs in one type; indices as they are."""
    return tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)
