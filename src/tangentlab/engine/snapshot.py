"""Leaving the model exactly as it was: whatever its forward writes is taken back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (dict, OrderedDict, list, set)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leave attributes, buffers and the random state exactly as they were, also after an exception.

    Attributes are compared by identity, lists, dicts and sets one level deep (which covers the modules' own tables of
    parameters, buffers and hooks); buffers and other tensors by version. Cost: a copy of the buffers.
    """
    modules = list(model.modules())
    attributes = [(vars(module), _contents(vars(module))) for module in modules]
    held = {id(tensor): tensor for module in modules for tensor in _tensors(module)}.values()
    values = [(tensor, tensor._version, tensor.detach().clone()) for tensor in held if not tensor.is_inference()]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        try:
            yield
        finally:
            for live, saved in attributes:
                _restore(live, saved)
            with torch.no_grad():
                for tensor, version, value in values:
                    if tensor._version != version:
                        tensor.copy_(value)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Buffers and plain tensor attributes."""
    own = [*module._buffers.values(), *vars(module).values()]
    return [value for value in own if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)]


def _contents(namespace: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Every value with a shallow copy of it where it is a container."""
    return {name: (value, value.copy() if type(value) in _CONTAINERS else None) for name, value in namespace.items()}


def _restore(live: dict[str, Any], saved: dict[str, tuple[Any, Any]]) -> None:
    values = {name: value for name, (value, _) in saved.items()}
    if not _same(live, values):
        live.clear()
        live.update(values)
    for container, copy in saved.values():
        if copy is not None and not _same(container, copy):
            container.clear()
            container.extend(copy) if isinstance(container, list) else container.update(copy)


def _same(one: Any, two: Any) -> bool:
    """Whether two containers hold the same objects."""
    if isinstance(one, dict):
        return list(one) == list(two) and all(one[key] is two[key] for key in two)
    return len(one) == len(two) and (one == two if isinstance(one, set) else all(map(_is, one, two)))


def _is(one: Any, two: Any) -> bool:
    return one is two
