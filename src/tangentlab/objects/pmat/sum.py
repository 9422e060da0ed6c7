"""PMatSum: a linear combination of matrices of any kind, kept as it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.frozen import all_frozen
from tangentlab.engine.rows import Rows
from tangentlab.errors import StructureError
from tangentlab.objects.pmat.base import PMat
from tangentlab.objects.pmat.blockwise import BlockwisePMat
from tangentlab.objects.pmat.diag import PMatEye
from tangentlab.objects.pmat.lowrank import LowRankBlock, PMatLowRank
from tangentlab.objects.pvector import PVector


class PMatSum(PMat):
    """sum_i factor_i F_i. Products, traces and diagonals are sums; solves go by conjugate gradients.

    One term with a closed-form solve plus matrices of low rank and multiples of the identity is solved directly (Woodbury).
    """

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

    def frozen(self) -> AbstractContextManager[None]:
        """All terms at once."""
        return all_frozen(term for _, term in self.terms)

    def _product(self, flat: Tensor) -> Tensor:
        return sum((factor * term._product(flat) for factor, term in self.terms), torch.zeros_like(flat))

    def tensor(self) -> Tensor:
        """Sum of the matrices written out."""
        self.require_dense_memory(self.layout, self._example())
        return sum((factor * term.tensor() for factor, term in self.terms), torch.zeros(()).to(self._example()))

    def _solve(self, flat: Tensor, damping: float) -> Tensor:
        """Directly if at most one term besides multiples of the identity and matrices of low rank is there, else by CG."""
        shift, thin, rest = damping, [], []
        for factor, term in self.terms:
            if isinstance(term, PMatEye):
                shift += float(factor * term._example()[0])
            elif isinstance(term, PMatLowRank):
                thin.append(term.block.scaled(factor))
            else:
                rest.append(term.scaled(factor))
        if shift <= 0 or len(rest) > 1 or not all(isinstance(term, BlockwisePMat) for term in rest):
            return super()._solve(flat, damping)

        def solve(x: Tensor) -> Tensor:
            return rest[0]._solve(x, shift) if rest else x / shift

        return _woodbury(solve, thin, flat) if thin else solve(flat)

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


def _woodbury(solve: Callable[[Tensor], Tensor], thin: list[LowRankBlock], flat: Tensor) -> Tensor:
    """(B + R^T W R)^-1 x = y - Z^T (W^-1 + R Z^T)^-1 R y with y = B^-1 x, Z = R B^-1, for rows x (B, d)."""
    rows, weights = torch.cat([block.rows for block in thin]), torch.cat([block.weights for block in thin])
    rows, weights = rows[weights != 0], weights[weights != 0]
    y, images = solve(flat), solve(rows)
    core, right = torch.diag(1 / weights) + rows @ images.t(), rows @ y.t()
    wide = torch.promote_types(core.dtype, torch.float32)
    return y - torch.linalg.solve(core.to(wide), right.to(wide)).to(core.dtype).t() @ images
