"""The exact slow route: gradients of any parameter, whatever the model does with it.

A loop over examples over the one graph that the user's forward built. `vmap` over functional calls is only an accelerator:
it is used after it agrees with the loop on two examples of this very model and batch, because it is silently wrong for some
operations (PReLU) and fails on others (GRU, data-dependent control flow).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from tangentlab.engine.batches import take_examples
from tangentlab.engine.capture import batched_grad
from tangentlab.engine.network import Network
from tangentlab.engine.snapshot import untouched


def loop_rows(outputs: Tensor, parameters: dict[str, nn.Parameter], cotangents: Tensor, examples: range) -> Tensor:
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
        """Outputs with the given parameters (names as in the model) in place of the model's own."""
        return functional_call(self, {f"model.{name}": tensor for name, tensor in parameters.items()}, (batch,))


def vmapped_rows(network: Network, batch: Any, names: tuple[str, ...], cotangents: Tensor) -> Tensor | None:
    """The same rows by vmap over single examples, or None when this model or batch does not allow it."""
    examples = cotangents.shape[1]
    plain = take_examples(batch, examples, examples)
    if plain is None or isinstance(plain, list):
        return None
    own = network.parameters()
    parameters = {name: own[name].detach() for name in names}
    caller = Caller(network)

    def rows_of_one(example: Any, cotangent: Tensor) -> Tensor:
        single = torch.utils._pytree.tree_map(lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf, example)
        _, pull = vjp(lambda values: caller.call(values, single)[0], parameters)  # type: ignore[misc]
        grads = vmap(lambda c: pull(c)[0])(cotangent)
        return torch.cat([grads[name].reshape(len(cotangent), -1) for name in names], 1)

    try:
        with warnings.catch_warnings(), untouched(network.model):
            warnings.simplefilter("ignore")
            return vmap(rows_of_one, in_dims=(0, 1), out_dims=1)(plain, cotangents)
    except Exception:  # any failure of the accelerator means: take the loop
        return None


def fallback_rows(
    network: Network, batch: Any, outputs: Tensor, names: tuple[str, ...], cotangents: Tensor, accelerate: bool | None
) -> tuple[Tensor, bool]:
    """Rows (K, N, d) for the named parameters in that order, and whether the accelerator may be trusted.

    `accelerate` None: try and compare on two examples; True / False: what an earlier comparison said.
    """
    own = network.parameters()
    parameters = {name: own[name] for name in names}
    examples = cotangents.shape[1]
    if accelerate is not False and examples > 2:
        fast = vmapped_rows(network, batch, names, cotangents)
        if fast is not None:
            if accelerate:
                return fast, True
            truth = loop_rows(outputs, parameters, cotangents, range(2))
            tolerance = torch.finfo(truth.dtype).eps ** 0.5 * max(float(truth.abs().max()), 1e-30)
            if bool(((fast[:, :2] - truth).abs() <= tolerance).all()):
                return fast, True
    return loop_rows(outputs, parameters, cotangents, range(examples)), False
