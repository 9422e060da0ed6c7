"""Spectra: eigenvalues with a basis, and functions of eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
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


def cut_off(values: Tensor, atol: float | None, rtol: float | None) -> float:
    """max(atol, rtol max|s|), after checking that both are numbers from 0 up."""
    for name, given in (("atol", atol), ("rtol", rtol)):
        if given is not None and not float(given) >= 0:
            raise InputError(f"{name} must be a number >= 0, not {given}.")
    largest = float(values.abs().max()) if values.numel() else 0.0
    return max(float(atol or 0.0), float(rtol or 0.0) * largest)


def inverse_above(values: Tensor, cut: float, damping: float = 0.0) -> Tensor:
    """1 / (s + damping) for eigenvalues with |s| > cut, and 0 for the others."""
    kept = values.abs() > cut
    return torch.where(kept, 1 / torch.where(kept, values + damping, 1.0), 0.0)
