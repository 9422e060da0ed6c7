"""Leaving the model exactly as it was: whatever its forward writes is taken back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import Tensor, nn

from tangentlab.engine.randomness import RandomState
from tangentlab.engine.turns import TURN
from tangentlab.temporary import changed

_CONTAINERS = {dict, OrderedDict, list, set}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leave attributes, buffers and the random state exactly as they were, also after an exception."""
    with same_random_state(), same_attributes(model):
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module's own mode comes back afterwards."""
    with TURN:
        modes = [(module, module.training) for module in model.modules()]

        def back() -> None:
            for module, mode in modes:
                module.training = mode

        yield from changed(model.eval, back)


@contextmanager
def same_random_state() -> Iterator[None]:
    """The random states only: those of torch, of Python and of numpy."""
    with TURN:
        yield from changed(lambda: None, RandomState.now().restore)


@contextmanager
def same_attributes(model: nn.Module) -> Iterator[None]:
    """The same for attributes and buffers only: every forward starts from the same ones.

    The forward works on copies of the buffers (and of other tensors that modules hold), so the model's own are never
    written and a graph may keep the copies. Attributes are put back by identity; lists, dicts and sets one level deep,
    which covers the modules' own tables of parameters, buffers and hooks. Cost: a copy of the buffers.
    """
    with TURN:
        saved = [_Space(vars(module)) for module in model.modules()]

        def work_on_copies() -> None:
            copies: dict[int, Tensor] = {}
            for space in saved:
                space.work_on_copies(copies)

        def back() -> None:
            for space in saved:
                space.restore()

        yield from changed(work_on_copies, back)


class _Space:
    """The attributes of one module: names and values, and what is in the values that are containers."""

    def __init__(self, live: dict[str, Any]) -> None:
        self.live, self.names, self.values = live, tuple(live), tuple(live.values())
        containers = [value for value in self.values if type(value) in _CONTAINERS]
        self.empty = [container for container in containers if not container]
        self.filled = [(container, container.copy()) for container in containers if container]

    def work_on_copies(self, copies: dict[int, Tensor]) -> None:
        """Put copies in the place of tensors; those with a history stay, since gradients flow through them."""
        for table in (self.live, self.live.get("_buffers", {})):
            for name in [name for name, value in table.items() if isinstance(value, Tensor)]:
                value = table[name]
                if not value.requires_grad:
                    table[name] = copies.setdefault(id(value), value.clone())

    def restore(self) -> None:
        """Put back what has changed."""
        for container in self.empty:
            if container:
                container.clear()
        for container, copy in self.filled:
            if _same(container, copy):
                continue
            if isinstance(container, dict):
                _put_back(container, copy)
            else:
                container.clear()
                container.extend(copy) if isinstance(container, list) else container.update(copy)
        if tuple(self.live) != self.names or not all(map(is_, self.live.values(), self.values)):
            _put_back(self.live, dict(zip(self.names, self.values, strict=True)))


def _put_back(table: dict[str, Any], before: dict[str, Any]) -> None:
    """The entries that a table had, in their order. It is never empty on the way: other threads may be looking."""
    if list(table) == list(before):
        for name, value in before.items():
            if table[name] is not value:
                table[name] = value
    else:
        table.clear()
        table.update(before)


def _same(one: Any, two: Any) -> bool:
    """Whether two containers hold the same objects in the same order."""
    if len(one) != len(two) or isinstance(one, set):
        return isinstance(one, set) and one == two
    if isinstance(one, dict):
        return list(one) == list(two) and all(map(is_, one.values(), two.values()))
    return all(map(is_, one, two))
