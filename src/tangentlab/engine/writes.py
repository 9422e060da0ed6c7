"""Forwards that write to parameters: seen, and taken back before they are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import nn

from tangentlab.engine.memory import memory_budget


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
