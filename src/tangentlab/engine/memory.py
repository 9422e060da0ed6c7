"""How much memory there is, and refusing what would not fit before computing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic

import torch

from tangentlab.engine.free_memory import available_bytes
from tangentlab.errors import MemoryBudgetError
from tangentlab.temporary import changed

_FRACTION = 0.5
_LOOK_SECONDS = 0.02
_seen = (-1.0, 0)
_budget: int | None = None


def memory_budget() -> int:
    """Bytes that one result or one chunk of work may take: what was set, else half of what is free.

    What is free is looked up at most every `_LOOK_SECONDS`: a kernel of a small network asks several times in less.
    """
    global _seen
    if _budget is not None:
        return _budget
    now = monotonic()
    if now - _seen[0] > _LOOK_SECONDS:
        _seen = now, available_bytes()
    return int(_FRACTION * _seen[1])


def set_memory_budget(nbytes: int | None) -> None:
    """Set the budget in bytes; None goes back to a fraction of what is free."""
    global _budget
    _budget = nbytes


@contextmanager
def memory_limit(nbytes: int | None) -> Iterator[None]:
    """The budget for the time of a `with` block; None leaves it as it is."""
    before = _budget
    yield from changed(
        lambda: set_memory_budget(before if nbytes is None else nbytes), lambda: set_memory_budget(before)
    )


_LARGEST_LESSON = (1 << 25) - (1 << 16)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed blocks for the next allocation; asked once per process.

    glibc maps large blocks anew each time until it has seen one freed, and a fresh page costs more to touch than to
    compute on (a kernel of a small network took 1.6 times as long). It learns from one block of the largest size that it
    adapts to, 32 MB, which is never touched and costs nothing; from then on it keeps up to 64 MB.
    """
    torch.empty(_LARGEST_LESSON, dtype=torch.uint8, device="cpu")


def human_bytes(nbytes: float) -> str:
    """12.3 GB, 2.3 PB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2g} PB"


def require_memory(nbytes: int, what: str, instead: str) -> None:
    """Refuse a result that would not fit, saying what it needs, what there is and what would fit."""
    budget = memory_budget()
    if nbytes > budget:
        raise MemoryBudgetError(
            f"{what} needs {human_bytes(nbytes)} and the memory budget is {human_bytes(budget)} "
            f"(tangentlab.set_memory_budget changes it). {instead}"
        )
