"""The algebra that vectors share, and that matrices and maps share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.objects.storage import Storable

Scalar = int | float | Tensor


def is_scalar(factor: Any) -> bool:
    """A number or a tensor: what may stand beside a vector or a matrix in a product."""
    return isinstance(factor, Real | Tensor)


def one_number(factor: Any) -> Any:
    """A scale for a matrix: one number; a tensor with more entries would not scale it as a whole."""
    if isinstance(factor, Tensor):
        if factor.numel() != 1:
            raise InputError(f"A matrix is scaled by one number, not by a tensor of shape {tuple(factor.shape)}.")
        return factor.reshape(())
    return float(factor)


class MatrixAlgebra:
    """+, -, and * and / by a number, written once for matrices and maps with `scaled` and `plus`."""

    __array_ufunc__ = None  # numpy numbers on the left leave the product to this class

    def scaled(self, factor: Any) -> Any:
        """factor times this."""
        raise NotImplementedError

    def plus(self, other: Any) -> Any:
        """The sum with what `_adds_to` accepts."""
        raise NotImplementedError

    def _adds_to(self, other: Any) -> bool:
        """Whether the other is of a kind that adds to this one; raises InputError if it is on another space."""
        return False

    def __add__(self, other: Any) -> Any:
        return self.plus(other) if self._adds_to(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self.plus(other.scaled(-1.0)) if self._adds_to(other) else NotImplemented

    def __mul__(self, factor: Scalar) -> Any:
        return self.scaled(one_number(factor)) if is_scalar(factor) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, factor: Scalar) -> Any:
        return self.scaled(1 / one_number(factor)) if is_scalar(factor) else NotImplemented

    def __neg__(self) -> Any:
        return self.scaled(-1.0)


class VectorAlgebra(Storable, ABC):
    """+, -, scalar *, /, **, dot and norms, written once on a flat tensor (*batch, dim)."""

    __array_ufunc__ = None  # numpy numbers on the left leave the product to this class

    @property
    @abstractmethod
    def flat(self) -> Tensor:
        """Entries as one tensor (*batch, dim)."""

    @abstractmethod
    def tensor(self) -> Tensor:
        """The numbers themselves; what is written to it in place is written to the vector."""

    @abstractmethod
    def _like(self, flat: Tensor) -> Self:
        """The same kind of vector with other entries."""

    @abstractmethod
    def _require_same_space(self, other: Self) -> None:
        """Raise InputError unless both vectors live in one space."""

    def _combine(self, other: Any, operation: Callable[[Tensor, Tensor], Tensor]) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        self._require_same_space(other)
        return self._like(operation(self.flat, other.flat))

    def _scale(self, factor: Any, operation: Callable[[Tensor, Any], Tensor]) -> Self:
        if not is_scalar(factor):
            return NotImplemented
        if not isinstance(factor, Tensor):
            factor = float(factor)
        elif factor.ndim:
            factor = factor[..., None]
        return self._like(operation(self.flat, factor))

    def __add__(self, other: Self) -> Self:
        return self._combine(other, torch.add)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, torch.sub)

    def __mul__(self, factor: Scalar) -> Self:
        return self._scale(factor, torch.mul)

    __rmul__ = __mul__

    def __truediv__(self, factor: Scalar) -> Self:
        return self._scale(factor, torch.div)

    def __pow__(self, exponent: float) -> Self:
        """Entrywise power."""
        return self._like(self.flat**exponent)

    def __neg__(self) -> Self:
        return self._like(-self.flat)

    def __abs__(self) -> Self:
        return self._like(self.flat.abs())

    def add_(self, other: Self, alpha: Scalar = 1.0) -> Self:
        """self += alpha * other, in the memory of this vector; alpha is one number."""
        if not isinstance(other, type(self)):
            raise InputError(f"Only a {type(self).__name__} adds to another, not a {type(other).__name__}.")
        self._require_same_space(other)
        factor, step = one_number(alpha), other.tensor()
        if isinstance(factor, Tensor):  # autograd may flow through it
            factor, step = 1.0, factor * step
        return self._written(lambda mine: mine.add_(step, alpha=factor))

    def _written(self, operation: Callable[[Tensor], Tensor]) -> Self:
        """Apply an in-place operation to the numbers."""
        try:
            operation(self.tensor())
        except RuntimeError as error:
            raise InputError(
                f"This {type(self).__name__} of shape {tuple(self.tensor().shape)} cannot be changed in place ({error}): "
                "write v = v + w instead of v += w, or take v.detach().clone() first."
            ) from error
        return self

    def _rescaled(self, factor: Any, operation: Callable[[Tensor, Any], Tensor]) -> Self:
        if not is_scalar(factor):
            return NotImplemented
        if isinstance(factor, Tensor) and factor.ndim:
            factor = factor.reshape(*factor.shape, *(1,) * (self.tensor().ndim - self.flat.ndim + 1))
        return self._written(lambda mine: operation(mine, factor))

    def __iadd__(self, other: Self) -> Self:
        return self.add_(other) if isinstance(other, type(self)) else NotImplemented

    def __isub__(self, other: Self) -> Self:
        return self.add_(other, alpha=-1.0) if isinstance(other, type(self)) else NotImplemented

    def __imul__(self, factor: Scalar) -> Self:
        return self._rescaled(factor, Tensor.mul_)

    def __itruediv__(self, factor: Scalar) -> Self:
        return self._rescaled(factor, Tensor.div_)

    def dot(self, other: Self) -> Tensor:
        """Inner product over the last axis; a scalar for single vectors."""
        if not isinstance(other, type(self)):
            raise InputError(f"The inner product is with another {type(self).__name__}, not a {type(other).__name__}.")
        self._require_same_space(other)
        return (self.flat * other.flat).sum(-1)

    def norm(self, p: float = 2) -> Tensor:
        """l_p norm, p = 1, 2, ... or inf."""
        if not p > 0:
            raise InputError(f"A norm needs p > 0 (or inf), not {p}.")
        return torch.linalg.vector_norm(self.flat, ord=math.inf if math.isinf(p) else p, dim=-1)

    def cosine(self, other: Self) -> Tensor:
        """Cosine of the angle between two vectors."""
        return self.dot(other) / (self.norm() * other.norm())

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Another dtype or device, as `torch.Tensor.to`."""
        return self._like(self.flat.to(*args, **kwargs))

    def clone(self) -> Self:
        """A copy with its own memory."""
        return self._like(self.flat.clone())

    def detach(self) -> Self:
        """The same without autograd history."""
        return self._like(self.flat.detach())

    @property
    def dtype(self) -> torch.dtype:
        """Type of the entries."""
        return self.flat.dtype

    @property
    def device(self) -> torch.device:
        """Where the entries live."""
        return self.flat.device
