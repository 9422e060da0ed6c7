"""Kernels and values in function space, as columns: the shapes of users on one side, linear algebra on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.matrix import kernel_matrix
from tangentlab.linalg import rounding_rtol, safe_eigh
from tangentlab.objects.fmat import FMat
from tangentlab.objects.fvector import FVector
from tangentlab.objects.matrix_free import Eigenpairs


@dataclass(frozen=True)
class Eigensystem:
    """Eigenvalues descending (k,), orthonormal eigenvectors as columns (dim, k); complete when k = dim."""

    values: Tensor
    vectors: Tensor

    @property
    def complete(self) -> bool:
        """Whether all modes are there."""
        return len(self.values) == len(self.vectors)


def eigensystem(kernel: Any) -> Eigensystem:
    """The spectrum of a kernel matrix, of a kernel `FMat`, or the part of it that `top_eigenpairs` has found.

    Eigenvalues within rounding of zero are set to zero. Cost: 9 dim^3 for a kernel, nothing for eigenpairs.
    """
    if isinstance(kernel, Eigenpairs):
        values, vectors = kernel.values, kernel.vectors.flat.t()
    else:
        values, vectors = safe_eigh(kernel_matrix(kernel))
    order = values.argsort(descending=True)
    values, vectors = values[order], vectors[:, order]
    noise = rounding_rtol(values.dtype, len(vectors)) * float(values.abs().max())
    if float(values.min()) < -10 * noise:
        raise InputError(f"A kernel is positive semi-definite, this one has the eigenvalue {float(values.min()):.3g}.")
    return Eigensystem(torch.where(values > noise, values, torch.zeros_like(values)), vectors)


@dataclass(frozen=True)
class Columns:
    """How values of a function on n examples are laid out as columns (dim, m) next to a kernel of size dim.

    `(n,)` and `(n, c)` next to a kernel of n examples: its outputs share it, one column each. `(n, c)` next to a kernel of
    n c: one column, output after output, as in `FMat.matrix()`.
    """

    shape: tuple[int, ...]
    stacked: bool

    @classmethod
    def of(cls, values: Tensor, dim: int) -> Columns:
        """Checks that the values belong to a kernel of this size."""
        if values.ndim in (1, 2) and len(values) == dim:
            return cls(tuple(values.shape[1:]), False)
        if values.ndim == 2 and values.numel() == dim:
            return cls(tuple(values.shape[1:]), True)
        raise InputError(
            f"Values of shape {tuple(values.shape)} do not belong to a kernel of size {dim}: "
            "(examples,) or (examples, outputs) is expected."
        )

    def lay_out(self, values: Tensor) -> Tensor:
        """(n,) or (n, c) to (dim, m)."""
        if tuple(values.shape[1:]) != self.shape:
            raise InputError(f"Values of {self.shape} per example are expected, got {tuple(values.shape[1:])}.")
        return values.t().reshape(-1, 1) if self.stacked else values.reshape(len(values), -1)

    def restore(self, columns: Tensor) -> Tensor:
        """(dim, m) to (n,) or (n, c)."""
        if self.stacked:
            return columns.reshape(self.shape[0], -1).t()
        return columns.reshape(len(columns), *self.shape)


def require_shape(values: Tensor, like: Tensor, what: str) -> None:
    """Refuse values that would broadcast against those of the function, such as (m, 1) against (m,)."""
    if values.shape != like.shape:
        raise InputError(
            f"{what} has the shape {tuple(values.shape)}, the function {tuple(like.shape)} on these points."
        )


def times(kernel: Any, columns: Tensor) -> Tensor:
    """K c for a kernel or cross kernel, dense or implicit, and columns (dim, m)."""
    if isinstance(kernel, FMat):
        vectors = FVector(columns.t().unflatten(-1, kernel.sizes[2:]))
        return kernel.mv(vectors).flat.t()
    if kernel.ndim != 2 or kernel.shape[1] != len(columns):
        raise InputError(f"A kernel with {len(columns)} columns is expected, got the shape {tuple(kernel.shape)}.")
    return kernel @ columns
