"""KFRA: the Gauss-Newton matrix in pre-activations, batch-averaged and passed from layer to layer (Botev et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.network import Network, grad_mode, require_finite
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import StructureError
from tangentlab.layers.registry import by_rows, rule_of

OutputHessian = Callable[[Tensor, Any], Tensor]


@dataclass
class LayerStatistics:
    """Sums over examples for one linear layer, homogeneous inputs: a a^T, and s' s'^T of the activation behind it."""

    inputs: Tensor
    slopes: Tensor | None


def feed_forward_statistics(
    network: Network, batches: Any, output_hessian: OutputHessian
) -> tuple[dict[str, LayerStatistics], Tensor, int]:
    """Per linear layer in the order of the forward: its statistics; the summed output Hessian; the number of examples.

    The network must be a chain of linear layers with entrywise activations between them. This is verified on every batch:
    a random cotangent is pulled back by the chain rule g <- s' * (W^T g) and by autograd, and both must agree.
    """
    layers: dict[str, LayerStatistics] = {}
    total: Tensor | None = None
    examples = 0
    for batch in batches:
        names, calls, outputs = _linear_calls(network, batch)
        slopes = _slopes(calls)
        _require_chain(network, names, calls, slopes, outputs)
        for name, call, slope in zip(names, calls, [*slopes, None], strict=True):
            inputs = call[0].detach()
            if len(affine(network.model.get_submodule(name)) or ()) == 2:
                inputs = torch.cat([inputs, inputs.new_ones((len(inputs), 1))], 1)
            found = LayerStatistics(inputs.t() @ inputs, None if slope is None else slope.t() @ slope)
            layers[name] = found if name not in layers else _added(layers[name], found)
        hessian = output_hessian(outputs.detach(), batch).sum(0).to(outputs.dtype)
        total = hessian if total is None else total + hessian
        examples += outputs.shape[0]
    assert total is not None
    return layers, total, examples


def affine(module: nn.Module) -> dict[str, Tensor] | None:
    """Weight (units, inputs) and, where there is one, bias of a layer s = W a + b, by name, if its rule says so."""
    rule, _ = rule_of(module)
    names = [name for group in rule.groups for name in group] if rule is not None else []
    if rule is None or not rule.pointwise or len(rule.arguments) > 1 or not 1 <= len(names) <= 2:
        return None
    found = {name: value for name in names if (value := attrgetter(name)(module)) is not None}
    weight = found.get(names[0])
    matrix = None if weight is None or weight.ndim != 2 else rule.matrix(module, weight)
    return found if matrix is not None and matrix == by_rows(module, found[names[0]]) else None


def _weight(network: Network, name: str) -> Tensor:
    found = affine(network.model.get_submodule(name))
    assert found is not None
    return next(iter(found.values())).detach()


def _added(one: LayerStatistics, two: LayerStatistics) -> LayerStatistics:
    slopes = None if one.slopes is None or two.slopes is None else one.slopes + two.slopes
    return LayerStatistics(one.inputs + two.inputs, slopes)


def _linear_calls(network: Network, batch: Any) -> tuple[list[str], list[tuple[Tensor, Tensor]], Tensor]:
    """Names, and (input, output) with their graph, of the linear layers in the order of the forward; the outputs."""
    modules = {name: module for name, module in network.model.named_modules() if affine(module)}
    names: list[str] = []
    calls: list[tuple[Tensor, Tensor]] = []

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            names.append(name)
            calls.append((args[0], output))

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in modules.items()]
    try:
        with grad_mode(), untouched(network.model):
            outputs = network(batch)
    finally:
        for handle in handles:
            handle.remove()
    require_finite(outputs, "The outputs of the model")
    if len(set(names)) != len(names) or any(call[0].ndim != 2 for call in calls) or not calls:
        raise StructureError("KFRA needs linear layers that are each applied once per example. " + _INSTEAD)
    return names, calls, outputs


def _slopes(calls: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Derivative of the next layer's input in this layer's output, entry by entry, (N, units)."""
    slopes = []
    for (_, output), (following, _) in zip(calls, calls[1:], strict=False):
        if following.shape != output.shape:
            raise StructureError("KFRA needs entrywise activations between the linear layers. " + _INSTEAD)
        if following is output:
            slopes.append(torch.ones_like(output))
            continue
        (slope,) = torch.autograd.grad(
            following.sum(), output, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        slopes.append(slope)
    return slopes


def _require_chain(
    network: Network, names: list[str], calls: list[tuple[Tensor, Tensor]], slopes: list[Tensor], outputs: Tensor
) -> None:
    if outputs.shape != calls[-1][1].shape:
        raise StructureError("KFRA needs a linear layer as the last one. " + _INSTEAD)
    cotangent = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0), dtype=outputs.dtype).to(outputs)
    truth = torch.autograd.grad(
        outputs,
        [output for _, output in calls],
        cotangent,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    pulled = cotangent
    for place in range(len(calls) - 1, -1, -1):
        if place < len(calls) - 1:
            pulled = slopes[place] * (pulled @ _weight(network, names[place + 1]))
        scale = max(float(truth[place].abs().max()), float(pulled.abs().max()), torch.finfo(pulled.dtype).tiny)
        if float((pulled - truth[place]).abs().max()) > torch.finfo(pulled.dtype).eps ** 0.5 * scale:
            raise StructureError(
                f"The network is not a chain of linear layers and entrywise activations at {names[place]!r}. "
                + _INSTEAD
            )


def recursion(network: Network, layers: dict[str, LayerStatistics], output: Tensor, examples: int) -> dict[str, Tensor]:
    """G_l = (W^T G_{l+1} W) * mean(s' s'^T), from the mean Hessian in the outputs down; (units, units) per layer."""
    result: dict[str, Tensor] = {}
    names = list(layers)
    current = output / examples
    for place in range(len(names) - 1, -1, -1):
        slopes = layers[names[place]].slopes
        if slopes is not None:
            weight = _weight(network, names[place + 1])
            current = (weight.t() @ current @ weight) * (slopes / examples)
        result[names[place]] = current
    return result


_INSTEAD = "Take GGN(..., representation=PMatKFAC), which holds for any network."
