"""A disk that fails: system calls that raise what a full or read-only disk makes them raise, from the n-th call on."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def failing_disk(call: str, after: int = 0, number: int = errno.ENOSPC) -> Iterator[list[int]]:
    """From its ``after``-th time on the call raises; the list it yields counts how often it did."""
    module = __import__(call.partition(".")[0])
    real, calls, failed = getattr(module, call.partition(".")[2]), 0, []

    def broken(*words: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        reading = call == "os.open" and not words[1] & (os.O_WRONLY | os.O_RDWR)
        if calls <= after or reading:
            return real(*words, **options)
        failed.append(calls)
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, call.partition(".")[2], broken)
        yield failed


@contextmanager
def half_a_write(after: int = 0) -> Iterator[None]:
    """From its ``after``-th time on `os.write` takes only a part, as on a disk that becomes full meanwhile."""
    real, calls = os.write, 0

    def short(file: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        return real(file, data if calls <= after else data[: len(data) // 2])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", short)
        yield
