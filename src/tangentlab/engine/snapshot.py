"""Leaving model and process exactly as they were: whatever a forward writes or draws is seen, and taken back.

A measured forward or backward works on copies of the model's buffers, with hooks on its layers and with the random state and
some switches of torch set for a moment. All of these belong to the process, so threads take turns: whoever finds another one
at work waits for it. A turn lasts one pass, not one call, and may be taken again by the thread that has it.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.memory import memory_budget
from tangentlab.temporary import changed

TURN = RLock()
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


@dataclass(frozen=True)
class RandomState:
    """Where the random generators of torch, of Python and of numpy stand. Cost: some ten microseconds."""

    torch_states: list[Tensor]
    python_state: tuple[Any, ...]
    numpy_state: Any

    @classmethod
    def now(cls) -> RandomState:
        """The states as they are; those of CUDA and of numpy once somebody has used them."""
        on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = sys.modules.get("numpy.random")
        return cls([torch.get_rng_state(), *on_cuda], random.getstate(), numpy.get_state() if numpy else None)

    def drawn(self) -> str:
        """Whose generator has been used since, or ''."""
        now = RandomState.now()
        if not all(map(torch.equal, self.torch_states, now.torch_states)):
            return "torch"
        if self.python_state != now.python_state:
            return "Python"
        if self.numpy_state is None:
            return ""
        keys = self.numpy_state[1], now.numpy_state[1]
        return "" if self.numpy_state[2:] == now.numpy_state[2:] and (keys[0] == keys[1]).all() else "numpy"

    def restore(self) -> None:
        """Set the generators back."""
        torch.set_rng_state(self.torch_states[0])
        if len(self.torch_states) > 1:
            torch.cuda.set_rng_state_all(self.torch_states[1:])
        random.setstate(self.python_state)
        if self.numpy_state is not None:
            sys.modules["numpy.random"].set_state(self.numpy_state)


def worth_copying(model: nn.Module, selected: Collection[str]) -> Iterator[str]:
    """Names of parameters of which a copy is kept: the selected ones, and of the others as many as fit in memory with ease.

    Writes to the rest are still seen by address and version, and refused, but cannot be taken back.
    """
    chosen = set(selected)
    others = {name: p for name, p in model.named_parameters() if name not in chosen and not p.is_meta}
    room = _ALWAYS
    if sum(p.nbytes for p in others.values()) > room:
        room = max(room, memory_budget() // 8)
    yield from selected
    for name, parameter in others.items():
        room -= parameter.nbytes
        if room >= 0:
            yield name


_ALWAYS = 64 * 2**20
"""Bytes of parameters that are copied without a look at the memory there is."""


class Parameters:
    """All parameters of a model as they are before a forward.

    Addresses and versions tell of most writes. Those through `parameter.data` are told by values, and in-place writes can be
    taken back by values only: `copied` names the parameters of which a copy is kept. Inside a functional transform nothing is
    looked at, because its tensors have no address.
    """

    def __init__(self, model: nn.Module, copied: Iterable[str]) -> None:
        inside = torch._C._functorch.peek_interpreter_stack() is not None
        self._all = {} if inside else dict(model.named_parameters())
        self._memory = {name: parameter.data for name, parameter in self._all.items()}
        self._stamps = self._read()
        names = set(copied)
        own = {name: parameter for name, parameter in self._all.items() if name in names and not parameter.is_meta}
        self.copies = {name: parameter.detach().clone() for name, parameter in own.items()}

    def _read(self) -> dict[str, tuple[int, int]]:
        return {name: (parameter.data_ptr(), parameter._version) for name, parameter in self._all.items()}

    def written(self) -> str:
        """The first parameter that was written to since, or ''."""
        now = self._read()
        return next((n for n in self._all if now[n] != self._stamps[n] or not self._has_its_value(n)), "")

    def _has_its_value(self, name: str) -> bool:
        now, before = self._all[name].detach(), self.copies.get(name)
        if before is None:
            return True
        alike = now.dtype == before.dtype and now.shape == before.shape
        return alike and (torch.equal(now, before) or torch.allclose(now, before, rtol=0, atol=0, equal_nan=True))

    @torch.no_grad()
    def restore(self) -> None:
        """Put memory and values back."""
        for name, parameter in self._all.items():
            if parameter.data_ptr() != self._memory[name].data_ptr():
                parameter.data = self._memory[name]
            if not self._has_its_value(name):
                parameter.copy_(self.copies[name])
