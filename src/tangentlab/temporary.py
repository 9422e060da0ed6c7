"""Changes that last for a `with` block and are taken back whenever an exception or an interrupt comes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


def changed(change: Callable[[], object], back: Callable[[], object]) -> Generator[None, Any, None]:
    """The middle of a context manager, `yield from changed(change, back)`: `change()` before its block and `back()` after it.

    Ctrl-C may come in the middle of either, so `back` runs twice, and also after half a change: it has to set things to what
    they were beforehand, whatever they are now, and must not take apart what is right already.
    """
    try:
        try:
            change()
            yield
        finally:
            back()
    finally:
        back()


temporarily = contextmanager(changed)
"""The same as a context manager of its own."""
