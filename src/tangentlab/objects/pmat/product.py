"""PMatProduct: a product of symmetric matrices, which is symmetric only if they commute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from tangentlab.engine.frozen import all_frozen
from tangentlab.objects.pmat.base import PMat
from tangentlab.objects.pvector import PVector
from tangentlab.objects.storage import Storable


class PMatProduct(Storable):
    """The map v -> F (G (... v)) on parameter space, kept as it is written.

    It is not a PMat: spectra, solves and samples of a PMat assume symmetry. `tensor()` is the matrix, `T` the transposed map.
    Memory: that of the factors. Product: one product with each of them.
    """

    def __init__(self, factors: Sequence[PMat]) -> None:
        self.factors = list(factors)
        self.layout = self.factors[0].layout

    def frozen(self) -> AbstractContextManager[None]:
        """All factors at once."""
        return all_frozen(self.factors)

    def mv(self, v: Any) -> Any:
        """F (G v). Also written `(F @ G) @ v`."""
        for factor in reversed(self.factors):
            v = factor.mv(v)
        return v

    def mm(self, other: PMat | PMatProduct) -> PMatProduct:
        """One more factor on the right."""
        more = other.factors if isinstance(other, PMatProduct) else [other]
        for factor in more:
            self.factors[0]._require_same_parameters(factor)
        return PMatProduct([*self.factors, *more])

    def __matmul__(self, other: Any) -> Any:
        return self.mm(other) if isinstance(other, PMat | PMatProduct) else self.mv(other)

    def __rmatmul__(self, other: PMat) -> PMatProduct:
        return PMatProduct([other]).mm(self)

    @property
    def T(self) -> PMatProduct:
        """The transposed map: the factors in reverse order."""
        return PMatProduct(self.factors[::-1])

    def vTMv(self, v: PVector) -> Tensor:
        """v^T F G v."""
        return v.dot(self.mv(v))

    def trace(self) -> Tensor:
        """tr(F G) = <F, G>, by closed form where the factors have one; more than two factors are written out."""
        if len(self.factors) == 2:
            return self.factors[0].inner(self.factors[1])
        return self.tensor().diagonal().sum()

    def to_dense(self) -> Tensor:
        """`tensor()` by its other name."""
        return self.tensor()

    def tensor(self) -> Tensor:
        """The numbers (d, d), not symmetric in general."""
        return (
            self.factors[0].mv(PMatProduct(self.factors[1:]).tensor().t()).t()
            if len(self.factors) > 1
            else (self.factors[0].tensor())
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(d, d)."""
        return self.factors[0].shape

    def numel(self) -> int:
        """Numbers stored."""
        return sum(factor.numel() for factor in self.factors)

    def nbytes(self) -> int:
        """Memory of what is stored, in bytes."""
        return sum(factor.nbytes() for factor in self.factors)

    def __repr__(self) -> str:
        return f"PMatProduct({' @ '.join(type(factor).__name__ for factor in self.factors)}, d = {self.layout.numel:,})"
