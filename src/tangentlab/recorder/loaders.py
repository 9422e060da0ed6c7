"""Reading examples from the loaders of a training without moving them on: their random states and their workers stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tangentlab.engine.snapshot import same_random_state
from tangentlab.recorder.isolation import same_python_randomness
from tangentlab.temporary import changed


@contextmanager
def unmoved(sources: Iterable[Any]) -> Iterator[None]:
    """Afterwards, also after an exception, the next pass over the loaders gives what it would have given before.

    Random states come back: the global ones, and those of generators that a loader, its samplers and its dataset hold as
    attributes. Persistent workers are those of the training; reading starts workers of its own.
    """
    found = list(sources)
    loaders = [source for source in found if isinstance(source, DataLoader)]
    restore = [back for source in found for owner in _owners(source) for back in _states(owner)]
    iterators = [(loader, loader._iterator) for loader in loaders]

    def set_aside() -> None:
        for loader in loaders:
            loader._iterator = None

    def back() -> None:
        for loader, iterator in iterators:
            loader._iterator = iterator
        for one in restore:
            one()

    with same_random_state(), same_python_randomness():
        yield from changed(set_aside, back)


def _owners(source: Any) -> list[Any]:
    """What may hold random states: a loader, what it is made of, and datasets inside datasets."""
    if isinstance(source, DataLoader):
        inner = getattr(source.batch_sampler, "sampler", None)
        return [source, source.sampler, source.batch_sampler, inner, *_owners(source.dataset)]
    return [source, *_owners(getattr(source, "dataset", None))] if isinstance(source, Dataset) else []


def _states(owner: Any) -> list[Callable[[], Any]]:
    """What puts the generators among the attributes back to where they are now."""
    found: list[Callable[[], Any]] = []
    for value in vars(owner).values() if hasattr(owner, "__dict__") else ():
        if isinstance(value, torch.Generator):
            found.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            found.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.RandomState):
            found.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, np.random.Generator):
            found.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
    return found
