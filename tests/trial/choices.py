"""Named decisions: every case is the record of what was decided while it was built, so it can be replayed and shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any


class NoSuchCase(Exception):
    """These decisions do not fit together, or the network they give has no finite truth."""


class Choices:
    """Decisions by name: taken from the record where it has them, else drawn at random, else (without a source) the first.

    Options are given in order of simplicity: a record from which decisions were taken out means the simplest ones.
    """

    def __init__(self, record: dict[str, Any], source: Random | None) -> None:
        self.record, self.source = record, source

    def pick(self, name: str, options: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        """One of the options."""
        if name not in self.record:
            drawn = self.source.choices(options, weights)[0] if self.source else options[0]
            self.record[name] = drawn
        if self.record[name] not in options:
            raise NoSuchCase(f"{name}={self.record[name]!r} is none of {list(options)!r}")
        return self.record[name]

    def number(self, name: str, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return self.pick(name, range(low, high + 1))

    def chance(self, name: str, probability: float = 0.5) -> bool:
        """True with a probability; False is simpler."""
        return self.pick(name, [False, True], [1 - probability, probability])

    def within(self, name: str) -> Choices:
        """The decisions of a part."""
        return Choices(self.record.setdefault(name, {}), self.source)

    def parts(self, name: str, low: int, high: int, weights: Sequence[float] | None = None) -> list[Choices]:
        """The decisions of several parts in a row: as many as the record has, else drawn (else the least)."""
        if name not in self.record:
            counts = range(low, high + 1)
            self.record[name] = [{} for _ in range(self.source.choices(counts, weights)[0] if self.source else low)]
        return [Choices(part, self.source) for part in self.record[name]]
