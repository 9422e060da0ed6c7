"""PMatSum: a linear combination of matrices of any kind, kept as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.rows import Rows
from tangentlab.errors import StructureError
from tangentlab.objects.pmat.base import PMat
from tangentlab.objects.pvector import PVector


class PMatSum(PMat):
    """sum_i factor_i F_i. Products, traces and diagonals are sums; solves go by conjugate gradients."""

    def __init__(self, terms: Sequence[tuple[Any, PMat]]) -> None:
        flat: list[tuple[Any, PMat]] = []
        for factor, term in terms:
            flat += [(factor * f, t) for f, t in term.terms] if isinstance(term, PMatSum) else [(factor, term)]
        self.terms: list[tuple[Any, PMat]] = flat
        first = flat[0][1]
        super().__init__(first.layout, examples=first.examples, likelihood=first.likelihood)

    @classmethod
    def from_rows(cls, rows: Rows) -> PMat:
        """A sum is made by +, not from data."""
        raise StructureError("PMatSum is the result of F + G; build its terms with FIM(...).")

    def _product(self, flat: Tensor) -> Tensor:
        return sum((factor * term._product(flat) for factor, term in self.terms), torch.zeros_like(flat))

    def to_dense(self) -> Tensor:
        """Sum of the matrices written out."""
        self.require_dense_memory(self.layout, self._example())
        return sum((factor * term.to_dense() for factor, term in self.terms), torch.zeros(()).to(self._example()))

    def trace(self) -> Tensor:
        """Sum of the traces."""
        return torch.stack([torch.as_tensor(factor * term.trace()) for factor, term in self.terms]).sum()

    def diag(self) -> PVector:
        """Sum of the diagonals."""
        return PVector(self.layout, sum(factor * term.diag().flat for factor, term in self.terms))  # type: ignore[arg-type]

    def scaled(self, factor: Any) -> PMat:
        """factor F."""
        return PMatSum([(factor * f, term) for f, term in self.terms])

    def _map(self, function: Any) -> PMatSum:
        return PMatSum([(factor, term._map(function)) for factor, term in self.terms])

    def tensors(self) -> list[Tensor]:
        """Stored tensors of all terms."""
        return [tensor for _, term in self.terms for tensor in term.tensors()]

    def _example(self) -> Tensor:
        return self.terms[0][1]._example()
