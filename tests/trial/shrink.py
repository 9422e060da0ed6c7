"""The smallest record that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

Record = dict[str, Any]


def shrunk(record: Record, still_fails: Callable[[Record], bool], most: int = 300) -> Record:
    """Drop blocks and decisions one at a time as long as the failure stays, `most` trials in all."""
    trials = 0
    progress = True
    while progress:
        progress = False
        for smaller in candidates(record):
            if trials >= most:
                return record
            trials += 1
            if still_fails(smaller):
                record, progress = smaller, True
                break
    return record


def candidates(record: Record) -> Iterator[Record]:
    """Simpler records: without one block, or with one decision left to the simplest option."""
    for index in range(len(record.get("network", {}).get("blocks", ()))):
        smaller = deepcopy(record)
        del smaller["network"]["blocks"][index]
        yield smaller
    for path in _decisions(record):
        smaller = deepcopy(record)
        place: Any = smaller
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        yield smaller


def _decisions(record: Record, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all single decisions, those about the kind of a block left out."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _decisions(value, (*prefix, key))
        elif key == "blocks":
            for index, part in enumerate(value):
                yield from _decisions(part, (*prefix, key, index))
        elif key not in ("kind", "name"):
            yield (*prefix, key)
