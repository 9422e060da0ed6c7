"""The exact slow route: gradients of any parameter, whatever the model does with it.

A loop over examples over the one graph that the user's forward built. `vmap` over functional calls is only an accelerator:
it is silently wrong for some operations (PReLU, on some examples only) and fails on others (GRU, data-dependent control
flow), so its rows are used after one backward pass of a random combination of all of them has proved them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from tangentlab.engine.batches import can_be_cut, common_length, parts_of, with_parts
from tangentlab.engine.capture import batched_grad
from tangentlab.engine.certificate import differs, plain_gradient, random_weights
from tangentlab.engine.functional import call_with
from tangentlab.engine.network import Network
from tangentlab.engine.snapshot import untouched


def loop_rows(
    outputs: Tensor, parameters: dict[str, nn.Parameter], cotangents: Tensor, examples: Iterable[int]
) -> Tensor:
    """Rows (K, len(examples), sum of numels) of the Jacobian for cotangents (K, N, ...), one example after the other."""
    columns = []
    for n in examples:
        grads = batched_grad(outputs[n], list(parameters.values()), cotangents[:, n])
        parts = [
            cotangents.new_zeros((cotangents.shape[0], p.numel()), dtype=p.dtype)
            if g is None
            else g.reshape(len(g), -1)
            for g, p in zip(grads, parameters.values(), strict=True)
        ]
        columns.append(torch.cat(parts, 1))
    return torch.stack(columns, 1)


class Caller(nn.Module):
    """The network's forward as a module, so that parameters can be replaced for the time of one call."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.model, self._network = network.model, network

    def forward(self, batch: Any) -> Tensor:
        """Outputs (N, ...)."""
        return self._network(batch)

    def call(self, parameters: dict[str, Tensor], batch: Any) -> Tensor:
        """Outputs with the given parameters (names as in the model) in place of the model's own.

        Every place that holds a parameter is named once: a tied parameter has several, a module under two parents one.
        """
        own = self._network.parameters()
        values = {id(own[name]): tensor for name, tensor in parameters.items()}
        places = {
            f"{name}.{local}": values[id(parameter)]
            for name, module in self.named_modules()
            for local, parameter in module._parameters.items()
            if parameter is not None and id(parameter) in values
        }
        return call_with(self, places, (batch,))


def vmapped_rows(network: Network, batch: Any, names: tuple[str, ...], cotangents: Tensor) -> Tensor | None:
    """The same rows by vmap over single examples, or None when this model or batch does not allow it."""
    if common_length(batch) != cotangents.shape[1]:
        return None
    own = network.parameters()
    parameters = {name: own[name].detach() for name in names}
    caller = Caller(network)

    parts = parts_of(batch)
    axes = [0 if can_be_cut(part) else None for part in parts]

    def rows_of_one(example: list[Any], cotangent: Tensor) -> Tensor:
        singles = iter(part if axis is None else part[None] for part, axis in zip(example, axes, strict=True))
        single = with_parts(batch, lambda _: next(singles))
        _, pull = vjp(lambda values: caller.call(values, single)[0], parameters)  # type: ignore[misc]
        grads = vmap(lambda c: pull(c)[0])(cotangent)
        if any(grads[name].shape != (len(cotangent), *parameters[name].shape) for name in names):
            raise ValueError("An operation gives gradients of another shape than its parameter.")
        return torch.cat([grads[name].reshape(len(cotangent), -1) for name in names], 1)

    try:
        with warnings.catch_warnings(), untouched(network.model), torch.no_grad():
            warnings.simplefilter("ignore")
            return vmap(rows_of_one, in_dims=(axes, 1), out_dims=1)(parts, cotangents)
    except Exception:  # any failure of the accelerator means: take the loop
        return None


Verdicts = dict[tuple[Any, ...], bool]
"""Whether vmap was right, by the names of the parameters and the shape of the cotangents."""


def fallback_rows(
    network: Network, batch: Any, outputs: Tensor, names: tuple[str, ...], cotangents: Tensor, verdicts: Verdicts
) -> Tensor:
    """Rows (K, N, d) for the named parameters in that order.

    What the accelerator gives is verified every time, and not asked for again in a shape in which it has failed.
    """
    own = network.parameters()
    parameters = {name: own[name] for name in names}
    key = (names, *cotangents.shape)
    if cotangents.shape[1] > 2 and verdicts.get(key, True):
        fast = vmapped_rows(network, batch, names, cotangents)
        verdicts[key] = fast is not None and _verified(fast, outputs, parameters, cotangents)
        if fast is not None and verdicts[key]:
            return fast
    return loop_rows(outputs, parameters, cotangents, range(cotangents.shape[1]))


def _verified(rows: Tensor, outputs: Tensor, parameters: dict[str, nn.Parameter], cotangents: Tensor) -> bool:
    """Whether a random combination of all rows is the gradient of that combination: one backward proves every row."""
    weights = random_weights(rows.shape[:2], cotangents)
    truth = plain_gradient(outputs, parameters, torch.einsum("kn,kn...->n...", weights, cotangents))
    found = torch.einsum("kn,knd->d", weights.to(rows.dtype), rows).split([p.numel() for p in parameters.values()])
    return not any(differs(own, gradient) for own, gradient in zip(found, truth.values(), strict=True))
