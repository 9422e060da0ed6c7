"""Where the time of a snapshot goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


def now() -> float:
    """Wall-clock seconds, with the accelerator's work finished."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class Clock:
    """Seconds by what they were spent on; what runs inside something else counts only as itself."""

    read: Callable[[], float] = now
    seconds: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the time of the block as time for `what`."""
        self._count()
        self._open.append(what)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        moment = self.read()
        if self._open:
            what = self._open[-1]
            self.seconds[what] = self.seconds.get(what, 0.0) + moment - self._since
        self._since = moment
