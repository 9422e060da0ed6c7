"""One batch, swept: outputs, and for any cotangents the gradients of every group in their tightest form."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.capture import capture, output_gradients
from tangentlab.engine.fallback import Verdicts, fallback_rows
from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import common_dtype
from tangentlab.engine.memory import keep_freed_memory
from tangentlab.engine.network import Network, grad_mode
from tangentlab.engine.routes import WHOLE, Route, Router, Use
from tangentlab.engine.snapshot import same_random_state, untouched
from tangentlab.layers import OuterSum, concatenate


class Engine:
    """Sweeps batches of one network; keeps what it learnt about the model from batch to batch."""

    def __init__(self, network: Network) -> None:
        keep_freed_memory()
        self.network = network
        self.groups = parameter_groups(network.model, network.layout)
        self.router = Router(network, self.groups)
        self.verdicts: Verdicts = {}

    def sweep(self, batch: Any) -> Sweep:
        """Forward one batch and decide the routes."""
        with same_random_state():
            captured = capture(self.network, batch, self.groups)
            routes = self.router.routes(captured, batch)
        return Sweep(self, batch, captured.outputs, routes)


class Sweep:
    """The linear view of a network on one batch. The graph lives as long as this object does."""

    def __init__(self, engine: Engine, batch: Any, outputs: Tensor, routes: list[Route]) -> None:
        self.engine, self.batch, self.outputs, self.routes = engine, batch, outputs, routes

    @property
    def examples(self) -> int:
        """N."""
        return self.outputs.shape[0]

    @property
    def output_size(self) -> int:
        """C, the number of outputs per example."""
        return self.outputs[0].numel()

    def identity_cotangents(self, outputs: range | None = None) -> Tensor:
        """(len(outputs), N, ...): the c-th has a 1 at output c of every example."""
        chosen = range(self.output_size) if outputs is None else outputs
        eye = torch.eye(self.output_size, dtype=self.outputs.dtype, device=self.outputs.device)[list(chosen)]
        return eye[:, None, :].expand(-1, self.examples, -1).reshape(len(chosen), *self.outputs.shape)

    def factors(self, cotangents: Tensor, only: Collection[Group] | None = None) -> dict[Group, OuterSum]:
        """Gradients of sum(outputs[n] * cotangents[k, n]) for every k, n and group (or only some of the groups).

        cotangents: (K, N, ...).
        """
        cotangents = cotangents.reshape(cotangents.shape[0], *self.outputs.shape).to(self.outputs.dtype)
        routes = [route for route in self.routes if only is None or route.group in only]
        uses = {id(use.call): use for route in routes for use in route.uses}
        with grad_mode(), untouched(self.engine.network.model):  # activation checkpointing runs the forward again
            grads = output_gradients(self.outputs, [use.call for use in uses.values()], cotangents)
            rows = self._fallback(cotangents, routes)
        by_call = dict(zip(uses, grads, strict=True))
        # one type for all layers, so that what is made of them can be put together
        dtype = common_dtype(self.engine.network.parameters().values())
        result = {}
        for route in routes:
            if route.uses:
                terms = [_term(use, by_call[id(use.call)], dtype) for use in route.uses]
                result[route.group] = concatenate(terms)
            else:
                result[route.group] = OuterSum.explicit(rows[route.group].to(dtype))
        return result

    def _fallback(self, cotangents: Tensor, routes: list[Route]) -> dict[Group, Tensor]:
        """Rows (K, N, numel) of the groups without a structured route; zeros for parameters that are never used."""
        layout = self.engine.network.layout
        routes = [route for route in routes if not route.uses]
        exact = [route for route in routes if not route.structured]
        sizes = [sum(layout.specs[layout.names.index(n)].numel for n in route.group.names) for route in routes]
        shape = cotangents.shape[0], self.examples
        result = {r.group: cotangents.new_zeros((*shape, size)) for r, size in zip(routes, sizes, strict=True)}
        if exact:
            names = tuple(name for route in exact for name in route.group.names)
            network, verdicts = self.engine.network, self.engine.verdicts
            rows = fallback_rows(network, self.batch, self.outputs, names, cotangents, verdicts)
            widths = [result[route.group].shape[-1] for route in exact]
            result |= dict(zip([route.group for route in exact], rows.split(widths, -1), strict=True))
        return result


def _term(use: Use, grads: Tensor, dtype: torch.dtype) -> OuterSum:
    """Bring a call to (N, ...) and (K, N, ...) and apply the layer's closed form."""
    call = use.call
    if use.axis == WHOLE:
        inputs, grads = call.inputs[None], grads[:, None]
    else:
        inputs, grads = call.inputs.movedim(use.axis, 0), grads.movedim(use.axis + 1, 1)
    if inputs.is_floating_point():
        inputs = inputs.to(dtype)
    return use.site.rule.factors(use.site.module, inputs, grads.to(dtype), use.site.local)
