"""Bounds: the Lipschitz chain of eq. 7, spectral norms by power iteration, and weights kept in a ball.

    L_f = max_eps |W_eps|  <=  prod_k |W^(k)|_2  <=  |theta|_inf^(L+1) sqrt(d_0 d_{L+1}) prod_{k=1..L} d_k

for a network of L hidden layers of widths d_k with activations of slope at most 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlab.errors import InputError, ModelError
from tangentlab.spectral.partition import Partition

ONE_LIPSCHITZ = (nn.ReLU, nn.LeakyReLU, nn.Hardtanh, nn.ReLU6, nn.Identity, nn.Flatten, nn.Dropout, nn.Softshrink)


def spectral_norm(weight: Tensor, iterations: int = 10, generator: torch.Generator | None = None) -> float:
    """`|W|_2` by power iteration on `W^T W`, from below: the paper's measure, with its 10 iterations.

    Args:
        weight: `(outputs, inputs)`; further axes are flattened into the inputs.
        iterations: products with W and W^T.
        generator: of the start; default a fixed one, so that a training is measured from the same start every time.

    Returns:
        A lower bound that grows with `iterations` and converges as `(sigma_2 / sigma_1)^(2 iterations)`. Iterating W itself
        would find an eigenvalue of a square matrix, which is something else.
    """
    if weight.ndim < 2 or weight.numel() == 0 or iterations < 1:
        raise InputError(f"A spectral norm needs a matrix and at least one iteration, got shape {tuple(weight.shape)}.")
    matrix = weight.detach().flatten(1)
    source = generator if generator is not None else torch.Generator(device=matrix.device).manual_seed(0)
    vector = torch.randn(matrix.shape[1], generator=source, dtype=matrix.dtype, device=matrix.device)
    size = vector.norm()
    for _ in range(iterations):
        vector = matrix.T @ (matrix @ (vector / size))
        size = vector.norm()
        if float(size) == 0:
            return 0.0
    return float((matrix @ (vector / size)).norm())


@dataclass(frozen=True)
class LipschitzChain:
    """The terms of eq. 7, each at most the next.

    Args:
        slopes: L_f on a domain; None without a partition.
        norms: product of the layers' spectral norms.
        parameters: the bound by the largest parameter.
        layers: the spectral norm of every layer.
    """

    slopes: float | None
    norms: float
    parameters: float
    layers: tuple[float, ...]


def lipschitz_chain(model: nn.Module, partition: Partition | None = None) -> LipschitzChain:
    """The Lipschitz constant of a fully connected network and its bounds (Prop. A.4); norms are exact, from an SVD.

    Args:
        model: linear layers one after the other, with activations of slope at most 1 between them.
        partition: regions of this model, for the exact constant on their domain.
    """
    layers = list(_linear_layers(model))
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    if any(first.out_features != second.in_features for first, second in pairwise(layers)):
        raise ModelError("The Lipschitz chain needs linear layers one after the other; their widths do not fit.")
    weights = [layer.weight.detach().to(torch.float64) for layer in layers]
    norms = tuple(float(torch.linalg.matrix_norm(weight, 2)) for weight in weights)
    largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    bound = largest ** len(layers) * sqrt(widths[0] * widths[-1]) * prod(widths[1:-1])
    return LipschitzChain(None if partition is None else partition.lipschitz, prod(norms), bound, norms)


def _linear_layers(model: nn.Module) -> Iterator[nn.Linear]:
    found = False
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            found = True
            yield module
        elif not any(module.children()) and not isinstance(module, ONE_LIPSCHITZ):
            raise ModelError(
                f"The Lipschitz chain is for linear layers and activations of slope at most 1; {name or 'the model'} is "
                f"{type(module).__name__}."
            )
    if not found:
        raise ModelError("The Lipschitz chain needs at least one linear layer.")


def clip_weights(optimizer: torch.optim.Optimizer, bound: float) -> RemovableHandle:
    """Keep every parameter of an optimizer in `[-bound, bound]`: now, and after each of its steps until `remove()`.

    This makes the parameter space the ball `|theta|_inf <= K` of the bounds.
    """
    if not bound > 0:
        raise InputError(f"The argument bound is a positive number, got {bound}.")

    def clip(*_: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(-bound, bound)

    clip()
    return optimizer.register_step_post_hook(clip)
