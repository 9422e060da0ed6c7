"""Changes that last for a `with` block and are taken back whenever an exception or an interrupt comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def temporarily(change: Callable[[], object], back: Callable[[], object]) -> Iterator[None]:
    """`change()` inside the block and `back()` after it, also if Ctrl-C comes in the middle of either.

    `back` runs twice, and also after half a change: it must set things to what they were before `temporarily` was called,
    and must not depend on how far `change` came.
    """
    try:
        try:
            change()
            yield
        finally:
            back()
    finally:
        back()
