"""The tensors of a batch, however deep they lie in its mappings, tuples, lists and dataclasses: read, changed, cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Part = Tensor | PackedSequence


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
