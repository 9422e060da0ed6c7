"""Chains of torch's own layers that keep the examples on the first axis, by their types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from tangentlab.engine.network import Network
from tangentlab.engine.standing import HOOKS
from tangentlab.layers.registry import expected_ndim

_ENTRYWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh,
    nn.Dropout, nn.Dropout2d,
)  # fmt: skip
_SPATIAL = (
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d,
)  # fmt: skip
_KNOWN = {nn.Sequential, nn.Linear, nn.Flatten, *_ENTRYWISE, *_SPATIAL}


def is_plain_chain(network: Network, batch: Any) -> bool:
    """Whether the network is an `nn.Sequential` of such layers and the batch a tensor, with nothing in between.

    Exact types, so no subclass, parametrization or compiled module; no hooks, no replaced `forward`. Modes that mix examples
    (batch statistics, active dropout) are refused before this is asked.
    """
    model, x = network.model, _input(batch)
    if network.forward or network.function or type(model) is not nn.Sequential or type(x) is not Tensor or x.ndim < 2:
        return False
    if any(getattr(hooks, f"_global{name}") for name in HOOKS):
        return False
    return all(map(_is_plain, model.modules())) and _keeps_examples_first(model, x.ndim)


def _is_plain(module: nn.Module) -> bool:
    own = vars(module)
    replaced = "forward" in own or any(isinstance(value, Tensor) for value in own.values())  # a weight that is computed
    return type(module) in _KNOWN and not replaced and not any(own[name] for name in HOOKS)


def _keeps_examples_first(model: nn.Sequential, ndim: int | None) -> bool:
    """Whether no layer takes the examples for channels: a convolution would, of an input that lacks an axis.

    ndim: axes of the input; None once it was flattened.
    """
    for module in _steps(model):
        if isinstance(module, nn.Flatten):
            if module.start_dim < 1:
                return False
            ndim = None
        elif expected_ndim(module) not in (None, ndim):
            return False
    return True


def _steps(model: nn.Sequential) -> Iterator[nn.Module]:
    """The layers in the order in which they run, each as often as it does."""
    for module in model:
        if isinstance(module, nn.Sequential):
            yield from _steps(module)
        else:
            yield module


def _input(batch: Any) -> Any:
    """What the model is called with."""
    return batch[0] if isinstance(batch, list | tuple) and batch else batch
