"""From whatever the user has (loader, tensor, tuple, dict, list of these) to batches, inputs and counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tangentlab.errors import InputError

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
TARGET_KEYS = ("labels", "label", "targets", "target")


class Batches:
    """Batches that can be gone through several times.

    A tensor, a tuple whose first entry is a tensor, a mapping, or an object with `inputs` and `targets` (a
    `tangentlab.data.Dataset`) is one batch; anything else is iterated. Counts are
    never taken from the loader: they come from what was seen.
    """

    def __init__(self, data: Any, *, ordered: bool = False) -> None:
        if data is None:
            raise InputError(
                "No data: give a loader, a tensor, an (inputs, targets) tuple, a dict, or a list of these."
            )
        self._single = is_batch(data)
        self._data = [data] if self._single else data
        if ordered and self.shuffles:
            raise InputError(
                "The order of the examples matters here and this DataLoader shuffles: "
                "use shuffle=False, or pass list(loader) to fix one order."
            )
        if isinstance(self._data, Iterator):
            self._data = list(self._data)
        if not isinstance(self._data, Iterable):
            wrap = (
                "wrap it, as in DataLoader(data, batch_size=100)"
                if isinstance(data, Dataset)
                else "give a loader, tensor, tuple or dict"
            )
            raise InputError(f"Cannot take batches from a {type(data).__name__}: {wrap}.")
        _refuse_list_of_parts(self._data)

    @property
    def shuffles(self) -> bool:
        """Whether going through the data twice may give another order."""
        if not isinstance(self._data, DataLoader):
            return False
        samplers = [self._data.sampler, self._data.batch_sampler, getattr(self._data.batch_sampler, "sampler", None)]
        return any(isinstance(s, _RANDOM) or (isinstance(s, DistributedSampler) and s.shuffle) for s in samplers)

    def replayable(self) -> Batches:
        """The same batches in one fixed order, held in memory only when the loader shuffles."""
        return Batches(list(self._data)) if self.shuffles else self

    def __iter__(self) -> Iterator[Any]:
        """The batches. What a loader draws (seeds of its workers, transforms) is not taken from the caller's stream."""
        empty, batches, state = True, None, torch.get_rng_state()
        while True:
            outer = torch.get_rng_state()
            torch.set_rng_state(state)
            try:
                batches = iter(self._data) if batches is None else batches
                batch = next(batches)
            except StopIteration:
                break
            finally:
                state = torch.get_rng_state()
                torch.set_rng_state(outer)
            empty = False
            yield batch
        if empty:
            raise InputError("The loader is empty: there is no batch to compute anything from.")

    def tensors(self) -> list[Tensor]:
        """The tensors of a single batch given as such; what a loader yields is new every time."""
        return (
            [leaf for leaf in tree_flatten(plain_batch(self._data[0]))[0] if isinstance(leaf, Tensor)]
            if self._single
            else []
        )

    def __len__(self) -> int:
        """Number of batches if known, else 0."""
        try:
            return len(self._data)
        except TypeError:
            return 0


def _refuse_list_of_parts(data: Any) -> None:
    """A list is a list of batches; [inputs, targets], as loaders give it, would be taken for two batches."""
    if type(data) is list and data and all(isinstance(part, Tensor) for part in data):
        if len({(part.ndim, part.dtype) for part in data}) > 1:
            raise InputError(
                "A list is taken as a list of batches and this one holds tensors of different kinds: "
                "pass one batch as a tuple (inputs, targets)."
            )


def is_batch(data: Any) -> bool:
    """A tensor, a mapping, inputs with targets, or a (named) tuple that starts with a tensor and holds no batches."""
    if isinstance(data, Tensor | Mapping) or _has_parts(data):
        return True
    return isinstance(data, tuple) and len(data) > 0 and isinstance(data[0], Tensor)


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """The default forward: a tensor is the input; of a tuple or list the first entry; of a mapping all but the labels."""
    batch = plain_batch(batch)
    if isinstance(batch, Mapping):
        return model(**{key: value for key, value in batch.items() if key not in TARGET_KEYS})
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return model(batch[0])
    if isinstance(batch, Tensor):
        return model(batch)
    raise InputError(
        f"Do not know how to feed a {type(batch).__name__} to the model: pass forward=lambda model, batch: ..."
    )


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


def common_length(batch: Any) -> int | None:
    """Length of the first axis of every tensor of a batch, or None when there is none or they differ."""
    leaves = [leaf for leaf in tree_flatten(plain_batch(batch))[0] if isinstance(leaf, Tensor) and leaf.ndim > 0]
    lengths = {leaf.shape[0] for leaf in leaves}
    return lengths.pop() if len(lengths) == 1 else None


def take_examples(batch: Any, index: Sequence[int]) -> Any:
    """The entries `index` along the first axis of every tensor of a batch."""
    chosen = list(index)
    return tree_map(
        lambda leaf: leaf[chosen] if isinstance(leaf, Tensor) and leaf.ndim > 0 else leaf, plain_batch(batch)
    )


def plain_batch(batch: Any) -> Any:
    """The batch as tree functions need it: a dict in place of any other mapping, a pair in place of a `Dataset`."""
    if _has_parts(batch):
        return batch.inputs, batch.targets
    return dict(batch) if isinstance(batch, Mapping) else batch


def _has_parts(data: Any) -> bool:
    """Whether data are inputs and targets that travel together as attributes of one object."""
    return isinstance(getattr(data, "inputs", None), Tensor) and isinstance(getattr(data, "targets", None), Tensor)
