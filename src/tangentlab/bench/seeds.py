"""Deterministic randomness: every stream has a name, so no stream depends on how often another one was used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from tangentlab.temporary import changed


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream with these names; the same on every machine and in every Python."""
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """A fresh torch generator for the named stream."""
    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A fresh numpy generator for the named stream."""
    return np.random.default_rng(derive(seed, *names))


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Inside, torch's global generator (which initializes layers) runs the named stream; afterwards it is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, *names))
        yield


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread and deterministic kernels: the numbers then do not depend on the number of cores."""
    threads = torch.get_num_threads()
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def switch(threads: int, strict: bool, warn: bool) -> None:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=warn)

    yield from changed(lambda: switch(1, True, True), lambda: switch(threads, strict, warn))
