"""Blocks: symmetric matrices on a few parameters, from which the representations are put together.

A block needs a product and a spectrum; solves, powers, determinants and samples follow from F = Q diag(s) Q^T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tangentlab.linalg import sym_pow
from tangentlab.objects.pmat.basis import Stored
from tangentlab.objects.spectrum import Spectrum, require_positive, without_rounding

__all__ = ["Block", "Spectrum", "require_positive", "without_rounding"]


class Block(Stored, ABC):
    """A symmetric matrix on `dim` parameters; vectors are rows (B, dim) in flat order.

    Attributes:
        linear: those of the stored tensors in which the matrix is linear; by default all.
    """

    dim: int
    linear: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """F x."""

    @abstractmethod
    def _spectrum(self) -> Spectrum:
        """Eigendecomposition in whatever form is cheap."""

    def scaled(self, factor: Any) -> Self:
        """factor F."""
        result = copy(self)
        for name in self.linear or self.stored:
            setattr(result, name, getattr(self, name) * factor)
        return result

    def of_spectrum(self, function: Callable[[Tensor], Tensor]) -> Block:
        """Q f(s) Q^T for a function of all eigenvalues (r) -> (r); null directions outside of the basis stay null."""
        from tangentlab.objects.pmat.dense import DenseBlock

        values = function(self.spectrum.values)
        vectors = self.spectrum.back(torch.eye(len(values), dtype=values.dtype, device=values.device))
        return DenseBlock((vectors.t() * values) @ vectors)

    def power(self, exponent: float) -> Block:
        """F^exponent, null modes stay null."""
        return self.of_spectrum(partial(sym_pow, power=exponent))

    def inverse(self, damping: float) -> Block:
        """(F + damping I)^-1, or the pseudo-inverse for 0."""
        return self.of_spectrum(lambda values: 1 / (values + damping)) if damping else self.power(-1)

    def plus(self, other: Block) -> Block | None:
        """F + G if a block of the same kind can hold it."""
        return None

    def times(self, other: Block) -> Block | None:
        """F G if it is symmetric and a block of the same kind can hold it."""
        return None

    def less_outer(self, vector: Tensor) -> Block | None:
        """F - v v^T, v (dim), or the part of it that this kind of block stores; None if it stores no such part."""
        return None

    def inner(self, other: Block) -> Tensor:
        """Frobenius inner product tr(F G)."""
        return (self.dense() * other.dense()).sum()

    @property
    def spectrum(self) -> Spectrum:
        """Eigendecomposition, computed once."""
        if "_cached_spectrum" not in vars(self):
            self._cached_spectrum = self._spectrum()
        return self._cached_spectrum

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """(F + damping I)^-1 x."""
        return self.spectrum.solve(rows, damping)

    def inverse_root(self, rows: Tensor, damping: float) -> Tensor:
        """R x with R R^T = (F + damping I)^-1."""
        return self.spectrum.inverse_root(rows, damping)

    def logdet(self, damping: float) -> Tensor:
        """log det(F + damping I)."""
        return self.spectrum.logdet(damping)

    def dense(self) -> Tensor:
        """(dim, dim)."""
        example = self.tensors()[0]
        return self.product(torch.eye(self.dim, dtype=example.dtype, device=example.device))

    def diag(self) -> Tensor:
        """(dim)."""
        return self.dense().diagonal()

    def trace(self) -> Tensor:
        """Sum of the diagonal."""
        return self.diag().sum()

    def squared_norm(self) -> Tensor:
        """Squared Frobenius norm."""
        return self.spectrum.values.square().sum()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_cached")}
