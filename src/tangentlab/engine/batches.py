"""Data as batches: from whatever the user has (loader, tensor, tuple, dict, list of these) to batches, and to their tensors.

The tensors of a batch are its parts, however deep they lie in its mappings, tuples, lists and dataclasses: they are read,
changed and cut here.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _InfiniteConstantSampler

from tangentlab.engine.snapshot import RandomState, same_random_state
from tangentlab.errors import InputError

Part = Tensor | PackedSequence
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_KNOWN = (SequentialSampler, BatchSampler, _InfiniteConstantSampler)
TARGET_KEYS = ("labels", "label", "targets", "target")


class Batches:
    """Batches that can be gone through several times.

    A tensor, a tuple, a mapping, a list of tensors as a DataLoader yields it, or an object with `inputs` and `targets` (a
    `tangentlab.data.Dataset`) is one batch; anything else is iterated, lists of tuples, lists or mappings among it. Counts
    are never taken from the loader: they come from what was seen.
    """

    def __init__(self, data: Any, *, ordered: bool = False) -> None:
        self._data = _read(data)
        if ordered and self.shuffles:
            raise InputError(
                "The order of the examples matters here and this DataLoader shuffles: use shuffle=False, or fix one order "
                "by list(loader), by [(x,) for x in loader] where it yields tensors."
            )
        if isinstance(self._data, Iterator):
            with same_random_state():
                self._data = list(self._data)

    @property
    def shuffles(self) -> bool:
        """Whether going through the data twice may give another order."""
        if not isinstance(self._data, DataLoader):
            return False
        samplers = [self._data.sampler, self._data.batch_sampler, getattr(self._data.batch_sampler, "sampler", None)]
        return any(_draws(sampler) for sampler in samplers if sampler is not None)

    def replayable(self) -> Batches:
        """The same batches in one fixed order, held in memory only when the loader shuffles."""
        return self.stored() if self.shuffles else self

    def stored(self) -> Batches:
        """The same batches, held in memory."""
        return Batches(iter(list(self)))

    def __iter__(self) -> Iterator[Any]:
        """The batches. What a loader draws (seeds of its workers, transforms) is not taken from the caller's stream."""
        if type(self._data) is list and self._data:  # draws nothing
            yield from self._data
            return
        batches, seen, end, state = None, 0, object(), RandomState.now()
        while True:
            with same_random_state():
                state.restore()
                batches = iter(self._data) if batches is None else batches
                batch = next(batches, end)
                state = RandomState.now()
            if batch is end:
                break
            seen += 1
            yield batch
        if not seen:
            raise InputError("The loader is empty: there is no batch to compute anything from.")

    def __len__(self) -> int:
        """Number of batches if known, else 0."""
        try:
            return len(self._data)
        except TypeError:
            return 0


def _draws(sampler: Any) -> bool:
    """Whether a sampler may give another order next time; one of an unknown class is asked twice, from different seeds."""
    if isinstance(sampler, _RANDOM):
        return True
    if isinstance(sampler, DistributedSampler):
        return sampler.shuffle
    if isinstance(sampler, Sequence) or type(sampler) in _KNOWN:
        return False
    orders = []
    for seed in (0, 1):
        with same_random_state():
            for use in (torch.manual_seed, random.seed, np.random.seed):
                use(seed)
            orders.append(list(islice(sampler, 10_000)))
    return orders[0] != orders[1]


def _read(data: Any) -> Any:
    """Data as an iterable of batches."""
    if isinstance(data, Batches):
        return data._data
    if is_batch(data):
        return [data]
    if data is None:
        raise InputError("No data: give a loader, a tensor, an (inputs, targets) tuple, a dict, or a list of these.")
    if isinstance(data, Dataset):
        raise InputError(
            f"Cannot take batches from a {type(data).__name__}: wrap it, as in DataLoader(data, batch_size=100) "
            "(batch_size=None where it yields batches)."
        )
    if isinstance(data, set | frozenset):
        raise InputError("A set has no order: give the batches as a list.")
    if isinstance(data, np.ndarray):
        raise InputError("Cannot take batches from an array of numpy: give a tensor, as from torch.from_numpy(array).")
    if not isinstance(data, Iterable):
        raise InputError(
            f"Cannot take batches from a {type(data).__name__}: give a loader, tensor, tuple or dict, or [batch] with "
            "forward=lambda model, batch: ..."
        )
    return data


def is_batch(data: Any) -> bool:
    """A tensor, a tuple, a mapping, inputs with targets, or a list of tensors as a DataLoader yields it.

    A list of tensors of one shape and type could as well be a list of batches, and is refused.
    """
    if isinstance(data, Tensor | Mapping | tuple) or has_parts(data):
        return True
    if not isinstance(data, list) or not any(isinstance(part, Tensor) for part in data):
        return False
    kinds = {(part.shape, part.dtype) if isinstance(part, Tensor) else type(part) for part in data}
    if len(data) > 1 and (len(kinds) == 1 or not all(isinstance(part, Tensor) for part in data)):
        held = "tensors of one shape and type" if len(kinds) == 1 else "tensors beside other things"
        raise InputError(
            f"A list of {held} may be one batch or several: write one batch as a tuple, (x, y), and several as a list "
            "of tuples, [(a,), (b,)]."
        )
    return True


def targets_of(batch: Any) -> Tensor:
    """The targets of a batch: second entry of a tuple, 'labels' of a mapping."""
    batch = plain_batch(batch)
    if isinstance(batch, Mapping):
        for key in TARGET_KEYS:
            if key in batch:
                return batch[key]
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[1]
    raise InputError("This needs targets: batches must be (inputs, targets, ...) or a dict with 'labels'.")


def labels_in(batch: Any) -> Tensor | None:
    """The targets of a batch, if it has some with an axis of examples."""
    try:
        found = targets_of(batch)
    except InputError:
        return None
    return found if isinstance(found, Tensor) and found.ndim > 0 else None


def with_parts(batch: Any, change: Callable[[Part], Any]) -> Any:
    """The batch with every tensor and packed sequence replaced, in a container of its own kind; itself if nothing changes."""
    if isinstance(batch, Part):
        return change(batch)
    if isinstance(batch, tuple | list):
        entries = [with_parts(value, change) for value in batch]
        if _same(entries, batch):
            return batch
        return (
            type(batch)(*entries)
            if hasattr(batch, "_fields")
            else (tuple if isinstance(batch, tuple) else list)(entries)
        )
    if isinstance(batch, Mapping):
        changed = {key: with_parts(value, change) for key, value in batch.items()}
        return batch if _same(changed.values(), batch.values()) else _refilled(batch, changed)
    names = _attributes(batch)
    changed = {name: with_parts(getattr(batch, name), change) for name in names}
    if all(changed[name] is getattr(batch, name) for name in names):
        return batch
    twin = copy.copy(batch)
    for name, value in changed.items():
        object.__setattr__(twin, name, value)
    return twin


def parts_of(batch: Any) -> list[Part]:
    """The tensors and packed sequences of a batch, in the order in which `with_parts` changes them."""
    found: list[Part] = []

    def note(part: Part) -> Part:
        found.append(part)
        return part

    with_parts(batch, note)
    return found


def tensor_of(part: Part) -> Tensor:
    """The part, or the values of all steps of a packed sequence."""
    return part if isinstance(part, Tensor) else part.data


def has_parts(data: Any) -> bool:
    """Whether data are inputs and targets that travel together as attributes of one object."""
    return isinstance(getattr(data, "inputs", None), Tensor) and isinstance(getattr(data, "targets", None), Tensor)


def plain_batch(batch: Any) -> Any:
    """A dict in place of any other mapping, a pair in place of inputs and targets in one object, else the batch itself."""
    if isinstance(batch, Mapping):
        return dict(batch)
    return (batch.inputs, batch.targets) if has_parts(batch) else batch


def common_length(batch: Any) -> int | None:
    """Length of the first axis of every tensor of a batch, or None when there is none, they differ, or cannot be cut."""
    lengths = {len(part) if can_be_cut(part) else None for part in parts_of(batch) if not _is_number(part)}
    return lengths.pop() if len(lengths) == 1 else None


def take_examples(batch: Any, index: Sequence[int]) -> Any:
    """The entries `index` along the first axis of every tensor of a batch."""
    chosen = list(index)
    return with_parts(batch, lambda part: part[chosen] if can_be_cut(part) else part)


def can_be_cut(part: Part) -> TypeGuard[Tensor]:
    """Whether a part has a first axis along which examples can be taken."""
    return isinstance(part, Tensor) and part.ndim > 0 and part.layout == torch.strided and not part.is_nested


def _is_number(part: Part) -> bool:
    return isinstance(part, Tensor) and part.ndim == 0


def _same(found: Any, given: Any) -> bool:
    return all(one is other for one, other in zip(found, given, strict=True))


def _refilled(batch: Mapping[Any, Any], entries: dict[Any, Any]) -> Mapping[Any, Any]:
    if not isinstance(batch, MutableMapping):
        return entries
    twin = copy.copy(batch)
    for key, value in entries.items():
        twin[key] = value
    return twin


def _attributes(batch: Any) -> list[str]:
    if is_dataclass(batch) and not isinstance(batch, type):
        return [field.name for field in fields(batch) if hasattr(batch, field.name)]
    return ["inputs", "targets"] if has_parts(batch) else []
