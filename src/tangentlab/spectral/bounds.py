"""Bounds: the Lipschitz chain of eq. 7, spectral norms by power iteration, and weights kept in a ball.

    L_f = max_eps |W_eps|  <=  prod_k |W^(k)|_2  <=  |theta|_inf^(L+1) sqrt(d_0 d_{L+1}) prod_{k=1..L} d_k

for a network of L hidden layers of widths d_k with activations of slope at most 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError, ModelError, NumericsError
from tangentlab.spectral.partition import Partition

ONE_LIPSCHITZ = (nn.ReLU, nn.Hardtanh, nn.ReLU6, nn.Identity, nn.Flatten, nn.Softshrink)


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
    if not bool(weight.isfinite().all()):
        raise NumericsError("The weight has entries that are not finite.")
    matrix = weight.detach().flatten(1)
    matrix = matrix if matrix.is_floating_point() else matrix.double()
    largest = float(matrix.abs().max()) or 1.0
    matrix = matrix / largest  # W^T W of very large or small entries leaves the range of the dtype
    source = generator if generator is not None else torch.Generator(device=matrix.device).manual_seed(0)
    vector = torch.randn(matrix.shape[1], generator=source, dtype=matrix.dtype, device=matrix.device)
    size = vector.norm()
    for _ in range(iterations):
        vector = matrix.T @ (matrix @ (vector / size))
        size = vector.norm()
        if float(size) == 0:
            return 0.0
    return largest * float((matrix @ (vector / size)).norm())


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
        model: linear layers one after the other, with modules of slope at most 1 between them. A forward pass tells their
            order, and that nothing happens besides them (residual connections, factors, functional activations).
        partition: regions of this model, for the exact constant on their domain.
    """
    layers = _chain(model)
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    weights = [layer.weight.detach().to(torch.float64) for layer in layers]
    norms = tuple(float(torch.linalg.matrix_norm(weight, 2)) for weight in weights)
    largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    bound = largest ** len(layers) * sqrt(widths[0] * widths[-1]) * prod(widths[1:-1])
    return LipschitzChain(None if partition is None else partition.lipschitz, prod(norms), bound, norms)


def _chain(model: nn.Module) -> list[nn.Linear]:
    """The linear layers in the order in which they are called, each as often as it is."""
    leaves = [module for module in model.modules() if not any(module.children())]
    for module in leaves:
        if not isinstance(module, nn.Linear) and not _one_lipschitz(module):
            raise ModelError(
                f"The Lipschitz chain is for linear layers and activations of slope at most 1, not for {module}."
            )
    first = next((module for module in leaves if isinstance(module, nn.Linear)), None)
    if first is None:
        raise ModelError("The Lipschitz chain needs at least one linear layer.")
    called: list[nn.Module] = []
    in_line: list[bool] = []
    seen: list[Any] = [first.weight.new_zeros(1, first.in_features)]

    def record(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        called.append(module)
        in_line.append(arguments[0] is seen[-1])
        seen.append(output)

    handles = [module.register_forward_hook(record) for module in leaves]
    try:
        with untouched(model), torch.no_grad():
            output = model(seen[0])
    except RuntimeError as error:
        raise ModelError(
            f"The Lipschitz chain needs linear layers one after the other; a forward pass failed: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if output is not seen[-1] or not all(in_line):
        raise ModelError("The Lipschitz chain needs modules one after the other, and nothing besides them in forward.")
    return [module for module in called if isinstance(module, nn.Linear)]


def _one_lipschitz(module: nn.Module) -> bool:
    if isinstance(module, nn.LeakyReLU):
        return abs(module.negative_slope) <= 1
    if isinstance(module, nn.Dropout):
        return not module.training
    return isinstance(module, ONE_LIPSCHITZ)


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
