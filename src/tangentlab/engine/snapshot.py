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
    """Leave attributes, buffers and the random state exactly as they were, also after an exception."""
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)), same_attributes(model):
        yield


@contextmanager
def same_attributes(model: nn.Module) -> Iterator[None]:
    """The same for attributes and buffers only: every forward starts from the same ones.

    The forward works on copies of the buffers (and of other tensors that modules hold), so the model's own are never
    written and a graph may keep the copies. Attributes are put back by identity; lists, dicts and sets one level deep,
    which covers the modules' own tables of parameters, buffers and hooks. Cost: a copy of the buffers.
    """
    spaces = [vars(module) for module in model.modules()]
    saved = [_contents(space) for space in spaces]
    copies: dict[int, Tensor] = {}
    for space in spaces:
        for table in (space, space.get("_buffers", {})):
            for name, value in list(table.items()):
                if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                    table[name] = copies.setdefault(id(value), value.detach().clone())
    try:
        yield
    finally:
        for space, contents in zip(spaces, saved, strict=True):
            _restore(space, contents)


def _contents(space: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Every value with a shallow copy of it where it is a container."""
    return {name: (value, value.copy() if type(value) in _CONTAINERS else None) for name, value in space.items()}


def _restore(space: dict[str, Any], saved: dict[str, tuple[Any, Any]]) -> None:
    values = {name: value for name, (value, _) in saved.items()}
    if not _same(space, values):
        space.clear()
        space.update(values)
    for container, copy in saved.values():
        if copy is not None and not _same(container, copy):
            container.clear()
            container.extend(copy) if isinstance(container, list) else container.update(copy)


def _same(one: Any, two: Any) -> bool:
    """Whether two containers hold the same objects in the same order."""
    if isinstance(one, dict):
        return list(one) == list(two) and all(one[key] is two[key] for key in two)
    return len(one) == len(two) and (one == two if isinstance(one, set) else all(map(_is, one, two)))


def _is(one: Any, two: Any) -> bool:
    return one is two
