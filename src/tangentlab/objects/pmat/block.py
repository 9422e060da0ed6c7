"""Blocks: symmetric matrices on a few parameters, from which the representations are put together.

A block needs a product and a spectrum; solves, powers, determinants and samples follow from F = Q diag(s) Q^T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tangentlab.errors import NumericsError
from tangentlab.linalg import sym_pow


def require_positive(values: Tensor, damping: float) -> Tensor:
    """Eigenvalues of F + damping I, with rounding below zero taken as zero; refuses what is not positive semi-definite."""
    if values.numel() == 0:
        return values
    rounding = 100 * torch.finfo(values.dtype).eps * values.numel() ** 0.5 * values.abs().max()
    damped = torch.where(values > -rounding, values.clamp_min(0), values) + damping
    if bool((damped < 0).any()):
        raise NumericsError(
            f"The matrix has the negative eigenvalue {float(values.min()):.3g}, so this is not defined: give a damping "
            f"above {-float(values.min()):.3g}, or use a matrix that is positive semi-definite by construction (FIM, GGN)."
        )
    return damped


def without_rounding(values: Tensor, damping: float) -> Tensor:
    """Zero modes of an undamped spectrum as exact zeros, by the rule of `sym_pow`."""
    if damping > 0 or values.numel() == 0:
        return values
    cut = torch.finfo(values.dtype).eps * values.numel() * values.abs().max()
    return torch.where(values.abs() <= cut, 0.0, values)


@dataclass(frozen=True)
class Spectrum:
    """F = Q diag(values) Q^T with orthonormal columns Q (dim, r); null on the complement when r < dim.

    values: (r); into: rows (B, dim) -> (B, r), i.e. x Q; back: (B, r) -> (B, dim), i.e. y Q^T.
    """

    values: Tensor
    dim: int
    into: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]

    @classmethod
    def of_basis(cls, values: Tensor, vectors: Tensor) -> Spectrum:
        """From eigenvalues (r) and eigenvectors as columns (dim, r)."""
        return cls(values, len(vectors), lambda x: x @ vectors, lambda y: y @ vectors.t())

    @property
    def complement(self) -> int:
        """Number of null directions outside the basis."""
        return self.dim - self.values.shape[-1]

    def apply(self, rows: Tensor, scale: Tensor, outside: float) -> Tensor:
        """Q diag(scale) Q^T x + outside (I - Q Q^T) x."""
        inside = self.into(rows)
        if not self.complement or outside == 0:
            return self.back(inside * scale)
        return self.back(inside * (scale - outside)) + outside * rows

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """Damped inverse, or pseudo-inverse for damping 0."""
        if damping == 0:
            return self.apply(rows, sym_pow(self.values, -1), 0.0)
        return self.apply(rows, 1 / (self.values + damping), 1 / damping)

    def inverse_root(self, rows: Tensor, damping: float) -> Tensor:
        """(F + damping I)^-1/2 x."""
        return self.apply(rows, require_positive(self.values, damping).rsqrt(), damping**-0.5)

    def logdet(self, damping: float) -> Tensor:
        """log det(F + damping I); without damping -inf if a mode is zero up to rounding, as in the pseudo-inverse."""
        inside = without_rounding(require_positive(self.values, damping), damping).log().sum()
        return inside + self.complement * torch.log(torch.full_like(inside, damping)) if self.complement else inside

    def eigenvalues(self) -> Tensor:
        """All dim eigenvalues, unsorted."""
        values = self.values.flatten()
        return torch.cat([values, values.new_zeros(self.complement)]) if self.complement else values


class Block(ABC):
    """A symmetric matrix on `dim` parameters; vectors are rows (B, dim) in flat order."""

    dim: int

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """F x."""

    @abstractmethod
    def _spectrum(self) -> Spectrum:
        """Eigendecomposition in whatever form is cheap."""

    @abstractmethod
    def scaled(self, factor: Any) -> Self:
        """factor F."""

    @abstractmethod
    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same with a function applied to every stored tensor."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Stored tensors."""

    @abstractmethod
    def power(self, exponent: float) -> Block:
        """F^exponent, null modes stay null."""

    @abstractmethod
    def inverse(self, damping: float) -> Block:
        """(F + damping I)^-1, or the pseudo-inverse for 0."""

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
