"""Discrete tables: the information is a finite sum."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.information.tasks.task import Pair, Task


class DiscreteTable(Task):
    """x and z are row and column of a table of probabilities, as one-hot vectors or as one number each.

    Args:
        table: `(rows, columns)`, entries of 0 or more; divided by their sum.
        one_hot: False gives the numbers of row and column.
        name: for tables of results.
    """

    def __init__(self, table: Tensor, *, one_hot: bool = True, name: str = "discrete table") -> None:
        if table.ndim != 2 or not bool((table >= 0).all()) or not 0 < float(table.double().sum()) < torch.inf:
            raise InputError(f"{name}: a matrix of entries of 0 or more, with a positive finite sum, is needed.")
        self.table, self.one_hot, self.name = table.double() / table.double().sum(), one_hot, name
        self.x_features, self.z_features = tuple(table.shape) if one_hot else (1, 1)
        rows, columns = self.table.sum(1, keepdim=True), self.table.sum(0, keepdim=True)
        self._ratios = self.table.log() - (rows * columns).log()
        self.value = float((self.table * self._ratios)[self.table > 0].sum())

    @classmethod
    def random(cls, rows: int, columns: int, generator: Generator, *, one_hot: bool = True) -> DiscreteTable:
        """A table drawn uniformly from all tables of this shape (Dirichlet with parameters 1)."""
        table = -torch.rand(rows, columns, generator=generator, dtype=torch.float64).log()
        return cls(table, one_hot=one_hot, name=f"random table {rows} x {columns}")

    def draw(self, count: int, generator: Generator) -> Pair:
        cells = torch.multinomial(self.table.flatten(), count, replacement=True, generator=generator)
        places = (cells // self.table.shape[1], cells % self.table.shape[1])
        x, z = (self._shown(place, size) for place, size in zip(places, self.table.shape, strict=True))
        return x, z

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        row, column = (points.argmax(1) if self.one_hot else points[:, 0].long() for points in (x, z))
        return self._ratios[row, column]

    def _shown(self, places: Tensor, size: int) -> Tensor:
        shown = torch.nn.functional.one_hot(places, size) if self.one_hot else places[:, None]
        return shown.double()
