"""`Curves`: one curve per seed, with their mean and spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Curves:
    """One curve per seed over common places `x`: `y` is `(seeds, points)`."""

    x: Array
    y: Array

    @property
    def mean(self) -> Array:
        """Mean over the seeds."""
        mean: Array = self.y.mean(axis=0)
        return mean

    @property
    def low(self) -> Array:
        """The lowest seed at every place."""
        low: Array = self.y.min(axis=0)
        return low

    @property
    def high(self) -> Array:
        """The highest seed at every place."""
        high: Array = self.y.max(axis=0)
        return high
