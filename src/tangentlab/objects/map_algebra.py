"""PushForward and PullBack: what maps between parameters and functions can do, and their sums, multiples and centrings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor

from tangentlab.engine.frozen import all_frozen
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError
from tangentlab.objects.algebra import MatrixAlgebra
from tangentlab.objects.fvector import FVector, centred, check_centring
from tangentlab.objects.pvector import PVector
from tangentlab.objects.storage import Storable


class JacobianMap(Storable, MatrixAlgebra, ABC):
    """What PushForward and PullBack share: one Jacobian, as a map between parameters and functions."""

    layout: LayerCollection

    @property
    @abstractmethod
    def T(self) -> Any:
        """The transposed map."""

    @abstractmethod
    def mv(self, v: Any) -> Any:
        """The image of a vector. Also written with @."""

    @abstractmethod
    def tensor(self) -> Tensor:
        """The numbers themselves, the axes of the image first."""

    @abstractmethod
    def center(self, how: str = "per_output") -> Any:
        """The map of J less its mean row: "per_output" over the examples of each output, "global" over outputs too."""

    def frozen(self) -> AbstractContextManager[None]:
        """As `MatrixFree.frozen`; data that are stored have nothing to keep."""
        return nullcontext()

    def __matmul__(self, v: Any) -> Any:
        return self.mv(v)

    def _adds_to(self, other: Any) -> bool:
        if not isinstance(other, PushForward if isinstance(self, PushForward) else PullBack):
            return False
        if other.layout != self.layout:
            raise InputError(f"These Jacobians have different parameters: {self.layout!r} and {other.layout!r}.")
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(d = {self.layout.numel:,})"


class PushForward(JacobianMap):
    """v -> J v: PVector -> FVector (outputs, examples)."""

    @property
    @abstractmethod
    def T(self) -> PullBack:
        """The transposed map."""

    @abstractmethod
    def mv(self, v: PVector) -> FVector:
        """J v. Also written `J @ v`."""

    @abstractmethod
    def tensor(self) -> Tensor:
        """J itself, (outputs, examples, d)."""

    def scaled(self, factor: Any) -> PushForward:
        """factor J."""
        return PushForwardSum([(factor, None, self)])

    def plus(self, other: PushForward) -> PushForward:
        """J + J', kept as it is written."""
        return PushForwardSum([(1.0, None, self), (1.0, None, other)])

    def center(self, how: str = "per_output") -> PushForward:
        """J less its mean row: "per_output" over the examples of each output, "global" over outputs and examples."""
        return PushForwardSum([(1.0, check_centring(how), self)])

    def _check(self, v: PVector) -> None:
        if not isinstance(v, PVector):
            raise InputError(f"A Jacobian maps PVectors, not a {type(v).__name__}; its transpose J.T maps FVectors.")
        if v.layout != self.layout:
            raise InputError(f"The vector belongs to other parameters: {v.layout!r}, the Jacobian to {self.layout!r}.")


class PullBack(JacobianMap):
    """u -> J^T u: FVector -> PVector. Its algebra is that of J."""

    @property
    @abstractmethod
    def T(self) -> PushForward:
        """The Jacobian."""

    @abstractmethod
    def mv(self, u: FVector) -> PVector:
        """J^T u. Also written `J.T @ u`."""

    def tensor(self) -> Tensor:
        """J^T itself, (d, outputs, examples)."""
        return self.T.tensor().movedim(-1, 0)

    def scaled(self, factor: Any) -> PullBack:
        """factor J^T."""
        return self.T.scaled(factor).T

    def plus(self, other: PullBack) -> PullBack:
        """(J + J')^T."""
        return self.T.plus(other.T).T

    def center(self, how: str = "per_output") -> PullBack:
        """The transpose of J less its mean row, as `PushForward.center`."""
        return self.T.center(how).T

    @staticmethod
    def _check(u: FVector) -> None:
        if not isinstance(u, FVector):
            raise InputError(f"A transposed Jacobian maps FVectors, not a {type(u).__name__}; J maps PVectors.")


class _Combination:
    """sum_i factor_i C_i J_i with C_i one of: nothing (None), less the mean over examples, less the mean of everything."""

    def __init__(self, terms: Sequence[tuple[Any, str | None, PushForward]]) -> None:
        self.terms: list[tuple[Any, str | None, PushForward]] = []
        for factor, how, term in terms:
            inner = term.terms if isinstance(term, PushForwardSum) else [(1.0, None, term)]
            self.terms += [(factor * f, _both(how, h), t) for f, h, t in inner]
        self.layout = self.terms[0][2].layout

    def frozen(self) -> AbstractContextManager[None]:
        """All terms at once."""
        return all_frozen(term for _, _, term in self.terms)


def _both(first: str | None, second: str | None) -> str | None:
    """Two centrings in a row, in any order: the finer one has taken off what the coarser one would."""
    return "per_output" if "per_output" in (first, second) else first or second


class PushForwardSum(_Combination, PushForward):
    """Sums, multiples and centred versions of Jacobians that are not all stored: kept as they are written."""

    def mv(self, v: PVector) -> FVector:
        """sum_i factor_i C_i (J_i v)."""
        self._check(v)
        return _total(factor * (term.mv(v).center(how) if how else term.mv(v)) for factor, how, term in self.terms)

    def tensor(self) -> Tensor:
        """J itself, (outputs, examples, d)."""
        written = ((factor, how, term.tensor()) for factor, how, term in self.terms)
        return _total(factor * (centred(data, how, axis=1) if how else data) for factor, how, data in written)

    @property
    def T(self) -> PullBackSum:
        """The transposed map."""
        return PullBackSum(self.terms)


class PullBackSum(_Combination, PullBack):
    """The transpose of a `PushForwardSum`."""

    def mv(self, u: FVector) -> PVector:
        """sum_i factor_i J_i^T (C_i u)."""
        self._check(u)
        return _total(factor * term.T.mv(u.center(how) if how else u) for factor, how, term in self.terms)

    @property
    def T(self) -> PushForwardSum:
        """The Jacobian."""
        return PushForwardSum(self.terms)


def _total(parts: Iterable[Any]) -> Any:
    return reduce(add, parts)
