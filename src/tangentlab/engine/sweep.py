"""One batch, swept: outputs, and for any cotangents the gradients of every group in their tightest form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from tangentlab.engine.capture import capture
from tangentlab.engine.fallback import Verdicts, fallback_rows
from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import common_dtype
from tangentlab.engine.memory import keep_freed_memory
from tangentlab.engine.network import Network, grad_mode
from tangentlab.engine.router import Router
from tangentlab.engine.routes import Route, structured_factors
from tangentlab.engine.snapshot import same_random_state, untouched
from tangentlab.engine.turns import TURN
from tangentlab.layers import OuterSum


class Engine:
    """Sweeps batches of one network; keeps what it learnt about the model from batch to batch."""

    def __init__(self, network: Network) -> None:
        keep_freed_memory()
        self.network = network
        with TURN:
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
        return unit_cotangents(self.outputs, chosen)

    def factors(self, cotangents: Tensor, only: Collection[Group] | None = None) -> dict[Group, OuterSum]:
        """Gradients of sum(outputs[n] * cotangents[k, n]) for every k, n and group (or only some of the groups).

        cotangents: (K, N, ...).
        """
        cotangents = cotangents.reshape(cotangents.shape[0], *self.outputs.shape).to(self.outputs.dtype)
        routes = [route for route in self.routes if only is None or route.group in only]
        dtype = common_dtype(self.engine.network.parameters().values())
        with grad_mode(), untouched(self.engine.network.model):  # activation checkpointing runs the forward again
            found = structured_factors(self.outputs, routes, cotangents, dtype)
            rows = self._fallback(cotangents, routes)
        found |= {group: OuterSum.explicit(own.to(dtype)) for group, own in rows.items()}
        return {route.group: found[route.group] for route in routes}

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


def unit_cotangents(outputs: Tensor, chosen: Sequence[int]) -> Tensor:
    """(len(chosen), N, ...) for outputs (N, ...): the k-th has a 1 at output chosen[k] of every example, counted flat."""
    units = outputs.new_zeros((len(chosen), outputs[0].numel()))
    units[range(len(chosen)), list(chosen)] = 1
    return units[:, None].expand(-1, outputs.shape[0], -1).reshape(len(chosen), *outputs.shape)
