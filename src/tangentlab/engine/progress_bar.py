"""A progress bar for anything that takes longer than two seconds, and nothing for what does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from tangentlab.temporary import changed

T = TypeVar("T")
Listener = Callable[[str, int, int | None], None]
_PATIENCE = 2.0
_listener: ContextVar[Listener | None] = ContextVar("progress listener", default=None)


@contextmanager
def progress_told_to(listener: Listener) -> Iterator[None]:
    """Inside, `listener(description, done, total)` hears of every step of `track` in place of a bar."""
    before = _listener.get()
    yield from changed(lambda: _listener.set(listener), lambda: _listener.set(before))


def track(items: Iterable[T], description: str, total: int | None = None, progress: bool | None = None) -> Iterator[T]:
    """Iterate with a bar. progress: True shows it at once, False never, None after two seconds in a terminal."""
    listener = _listener.get()
    if listener is not None and progress is not False:
        for count, item in enumerate(items):
            listener(description, count, total)
            yield item
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield from items
        return
    start, bar, task = time.monotonic(), None, None
    try:
        for count, item in enumerate(items):
            if bar is None and (progress or time.monotonic() - start > _PATIENCE):
                bar = _bar()
                bar.start()
                task = bar.add_task(description, total=total, completed=count)
            yield item
            if bar is not None and task is not None:
                bar.update(task, completed=count + 1)
    finally:
        if bar is not None:
            bar.stop()


def _bar():  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
