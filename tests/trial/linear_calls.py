"""Inputs and output-gradients of linear layers, noted call by call: what the definition of KFAC is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Calls = dict[str, tuple[Tensor, Tensor]]
"""By layer: inputs (positions, in) and gradients (factors, positions, out)."""


class NotOnce(Exception):
    """A layer is called more than once, or not for the outputs."""


def own_linear_layers(model: nn.Module) -> list[str]:
    """Names of plain linear layers, each under one name and with parameters of its own."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for p in module._parameters.values():
            owners[id(p)] = owners.get(id(p), 0) + 1
    return [
        name
        for name, m in model.named_modules()
        if type(m) is nn.Linear and "weight" in m._parameters and all(owners[id(p)] == 1 for p in m.parameters())
    ]


def linear_calls(
    model: nn.Module, layers: Iterable[str], run: Callable[[], Tensor], roots: Callable[[Tensor], Tensor]
) -> Calls:
    """The one call of every layer. `run` gives the outputs (N, ...), `roots` of them R (N, C, factors) with F_f = R R^T."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def note(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, out: Tensor) -> Tensor:
            seen[name].append(((args or (kwargs["input"],))[0].detach().clone(), out))
            return out.clone()  # so that nothing writes into the layer's own output

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(note(name), with_kwargs=True, prepend=True) for name in seen
    ]
    try:
        with torch.enable_grad():
            outputs = run()
    finally:
        for handle in handles:
            handle.remove()
    if any(len(calls) != 1 or not calls[0][1].requires_grad for calls in seen.values()):
        raise NotOnce
    tensors, weights = [calls[0][1] for calls in seen.values()], roots(outputs.detach())
    lines = [
        torch.autograd.grad(outputs.flatten(1), tensors, weights[:, :, k], retain_graph=True, allow_unused=True)
        for k in range(weights.shape[2])
    ]
    if any(grad is None for line in lines for grad in line):
        raise NotOnce
    return {
        name: (seen[name][0][0].flatten(0, -2), torch.stack([line[index] for line in lines]).flatten(1, -2))
        for index, name in enumerate(seen)
    }


def kronecker_factors(inputs: Tensor, grads: Tensor, examples: int, bias: bool) -> tuple[Tensor, Tensor]:
    """A = 1/n sum a a^T and B = 1/(n T) sum g g^T, the inputs with a homogeneous 1 where the layer has a bias."""
    if bias:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    return inputs.t() @ inputs / examples, torch.einsum("kpo,kpq->oq", grads, grads) / grads.shape[1]
