"""PMat: a symmetric matrix on parameter space. What every representation can do, given only its product with a vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from tangentlab.engine.frozen import frozen_inside
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.memory import human_bytes, memory_budget, require_memory
from tangentlab.errors import InputError, StructureError
from tangentlab.linalg.krylov_function import KRYLOV_STEPS, krylov_function
from tangentlab.linalg.orthonormalize import completed_rows
from tangentlab.objects.algebra import Scalar
from tangentlab.objects.matrix_free import check_damping
from tangentlab.objects.pmat.block import require_positive
from tangentlab.objects.pvector import PVector
from tangentlab.objects.spectral import Spectral

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian
    from tangentlab.engine.rows import Rows
    from tangentlab.objects.pmat.product import PMatProduct

Vector = TypeVar("Vector", bound=Any)


class PMat(Spectral):
    """A symmetric d x d matrix on the parameters of a layout: PVector -> PVector.

    Products and solves take a PVector (or a batch of them, or a PushForward, whose rows are the right-hand sides). A new
    representation needs `_product`, `from_rows` and `_map`; everything else has a correct default here, which a closed
    form should replace where there is one.
    """

    layout: LayerCollection
    examples: int
    likelihood: str
    meets_any = False
    """Whether `inner` has a closed form with every other matrix."""

    def __init__(self, layout: LayerCollection, *, examples: int = 0, likelihood: str = "given") -> None:
        self.layout, self.examples, self.likelihood = layout, examples, likelihood

    @classmethod
    @abstractmethod
    def from_rows(cls, rows: Rows) -> PMat:
        """Build from weighted Jacobian rows, F = 1/n sum r r^T."""

    @classmethod
    def with_options(cls, **options: Any) -> Representation:
        """This representation with options of its `from_rows`, to be passed as `representation=`."""
        return Representation(cls, options)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMat:
        """The nearest matrix of this kind to a ready one, (d, d) in flat order."""
        raise StructureError(f"{cls.__name__} cannot be made from a matrix alone: it needs a model and data, or terms.")

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMat:
        """Build from second derivatives of a loss, see `tangentlab.Hessian`."""
        raise StructureError(
            f"{cls.__name__} stores second moments and cannot hold a Hessian, which may be indefinite: use PMatImplicit, "
            "PMatDense, PMatBlockDiag, PMatDiag, PMatQuasiDiag, PMatKFAC, PMatEKFAC, PMatKronSum or "
            "PMatLowRank.with_options(rank=...), or GGN(...)."
        )

    @abstractmethod
    def _product(self, flat: Tensor) -> Tensor:
        """F x for rows x (B, d)."""

    @abstractmethod
    def _map(self, function: Any) -> Self:
        """The same matrix with `function` applied to every stored tensor."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """The stored tensors."""

    # ------------------------------------------------------------------ products

    def mv(self, v: Vector) -> Vector:
        """F v. Also written `F @ v`."""
        return self._on_vectors(v, self._product)

    def vTMv(self, v: PVector) -> Tensor:
        """v^T F v, one number per vector of the batch."""
        return v.dot(self.mv(v))

    def mm(self, other: PMat) -> PMat | PMatProduct:
        """F G. Also written `F @ G`.

        A product of symmetric matrices is symmetric only if they commute: then it is a PMat of the tightest class
        (diagonals, one eigenbasis), else the map v -> F (G v).
        """
        from tangentlab.objects.pmat.product import PMatProduct

        self._require_same_parameters(other)
        return PMatProduct([self, other])

    def __matmul__(self, v: Any) -> Any:
        from tangentlab.objects.pmat.product import PMatProduct

        if isinstance(v, PMatProduct):
            return NotImplemented
        return self.mm(v) if isinstance(v, PMat) else self.mv(v)

    def inner(self, other: PMat) -> Tensor:
        """Frobenius inner product <F, G> = tr(F G)."""
        self._require_same_parameters(other)
        if other.meets_any and not self.meets_any:
            return other.inner(self)
        return (self.tensor() * other.tensor()).sum()

    def _require_same_parameters(self, other: PMat) -> None:
        if other.layout != self.layout:
            raise InputError(f"These matrices belong to different parameters: {self.layout!r} and {other.layout!r}.")

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return self.layout.numel

    def _as_vectors(self, flat: Tensor) -> PVector:
        return PVector(self.layout, flat)

    def _on_vectors(self, v: Vector, function: Any) -> Vector:
        """Apply a function of rows (B, d) to a PVector, a PushForward or a tensor (..., d)."""
        if isinstance(v, PVector):
            if v.layout != self.layout:
                raise InputError(
                    f"The vector belongs to other parameters: {v.layout!r}, the matrix to {self.layout!r}."
                )
            return PVector(self.layout, self._on_vectors(v.flat, function))  # type: ignore[return-value]
        if isinstance(v, Tensor):
            if v.shape[-1:] != (self.layout.numel,):
                raise InputError(
                    f"The matrix acts on {self.layout.numel} parameters, the tensor has shape {tuple(v.shape)}."
                )
            if v.dtype != self._example().dtype:
                raise InputError(
                    f"The matrix is {self._example().dtype}, the vector {v.dtype}: convert one with .to(dtype)."
                )
            return function(v.reshape(-1, self.layout.numel)).reshape(v.shape)
        if hasattr(v, "map_rows"):
            return v.map_rows(self.layout, lambda x: self._on_vectors(x, function))
        raise InputError(f"Cannot multiply with a {type(v).__name__}: give a PVector or a PushForward.")

    # ------------------------------------------------------------------ numbers

    def to_dense(self) -> Tensor:
        """`tensor()` by its other name."""
        return self.tensor()

    def tensor(self) -> Tensor:
        """The numbers themselves, (d, d) in flat order."""
        self.require_dense_memory(self.layout, self._example())
        return self._product(torch.eye(self.layout.numel, dtype=self._example().dtype, device=self._example().device))

    def trace(self) -> Tensor:
        """Sum of the diagonal."""
        return self.diag().flat.sum()

    def diag(self) -> PVector:
        """The diagonal."""
        return PVector(self.layout, self.tensor().diagonal().clone())

    @frozen_inside
    def sample(
        self, damping: float, *, samples: int | None = None, generator: torch.Generator | None = None
    ) -> PVector:
        """Draws from N(0, (F + damping I)^-1), `samples` of them as a batch."""
        if check_damping(damping, None) == 0:
            raise InputError("Sampling needs a damping > 0, or the covariance is infinite along null directions.")
        example = self._example()
        shape = (samples or 1, self.layout.numel)
        noise = torch.randn(shape, generator=generator, dtype=example.dtype, device=example.device)
        flat = self._inverse_root(noise, damping)
        return PVector(self.layout, flat if samples is not None else flat[0])

    def _inverse_root(self, flat: Tensor, damping: float) -> Tensor:
        """A root R of (F + damping I)^-1 applied to rows, R R^T = (F + damping I)^-1: by products where they are few."""
        fits = self.dim**2 * flat.element_size() <= memory_budget()
        if len(flat) * KRYLOV_STEPS >= self.dim and fits:
            return self._spectrum().inverse_root(flat, damping)
        return krylov_function(self._product, flat, lambda values: require_positive(values, damping).rsqrt())

    # ------------------------------------------------------------------ eigenbasis

    def eigh(self) -> tuple[Tensor, PVector]:
        """All d eigenvalues, ascending, and their eigenvectors as a batch (d, d): F = sum_k values_k v_k v_k^T.

        Null directions that a thin basis leaves out are completed. Memory d^2.
        """
        self.require_dense_memory(self.layout, self._example())
        spectrum = self._spectrum()
        vectors = spectrum.back(torch.eye(len(spectrum.values), **self._kind()))
        values, order = spectrum.values.sort()
        return values, PVector(self.layout, completed_rows(vectors)[order])

    def project_to_diag(self, v: Vector) -> Vector:
        """Coordinates of v in the eigenbasis, Q^T v; F v = project_from_diag(diag_in_eigenbasis() * coordinates).

        A thin basis (PMatLowRank) fills the first places, and the part of v outside of it is dropped.
        """
        return self._on_vectors(v, lambda flat: self._spectrum().into(flat))

    def project_from_diag(self, coordinates: Vector) -> Vector:
        """The vector with these coordinates in the eigenbasis, Q c."""
        return self._on_vectors(coordinates, lambda flat: self._spectrum().back(flat))

    def diag_in_eigenbasis(self) -> PVector:
        """The eigenvalues, in the order of the coordinates of `project_to_diag`."""
        return PVector(self.layout, self._spectrum().values)

    def _matrix(self) -> Tensor:
        return self.tensor()

    def _of_spectrum(self, function: Callable[[Tensor], Tensor]) -> PMat:
        from tangentlab.objects.pmat.dense import DenseBlock, PMatDense

        return PMatDense(self.layout, {self.layout.names: DenseBlock(self.tensor()).of_spectrum(function)})

    def inverse(self, damping: float | None = None, *, regul: float | None = None) -> PMat:
        """(F + damping I)^-1 as a matrix of the tightest class; the pseudo-inverse without damping."""
        from tangentlab.objects.pmat.dense import PMatDense

        return PMatDense.from_dense(self.layout, self.tensor()).inverse(check_damping(damping, regul))

    # ------------------------------------------------------------------ algebra

    def scaled(self, factor: Scalar) -> PMat:
        """factor * F."""
        from tangentlab.objects.pmat.sum import PMatSum

        return PMatSum([(factor, self)])

    def plus(self, other: PMat) -> PMat:
        """F + G, in the tightest class that can hold it; else a lazy sum."""
        from tangentlab.objects.pmat.sum import PMatSum

        return PMatSum([(1.0, self), (1.0, other)])

    def _adds_to(self, other: Any) -> bool:
        if isinstance(other, PMat):
            self._require_same_parameters(other)
        return isinstance(other, PMat)

    # ------------------------------------------------------------------ housekeeping

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Another dtype or device, as `torch.Tensor.to`."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    @property
    def shape(self) -> tuple[int, int]:
        """(d, d)."""
        return self.layout.numel, self.layout.numel

    def numel(self) -> int:
        """Numbers stored."""
        return sum(tensor.numel() for tensor in self.tensors())

    def nbytes(self) -> int:
        """Memory of what is stored, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def _example(self) -> Tensor:
        return self.tensors()[0]

    @staticmethod
    def require_dense_memory(layout: LayerCollection, example: Tensor) -> None:
        """Refuse a d x d matrix that would not fit."""
        require_memory(
            layout.numel**2 * example.element_size(),
            f"A dense matrix over {layout.numel:,} parameters",
            "PMatKFAC, PMatEKFAC or PMatDiag need far less, PMatImplicit stores nothing; layers= selects fewer parameters.",
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(d = {self.layout.numel:,}, {len(self.layout.layers)} layers, "
            f"{human_bytes(self.nbytes())}, {self.examples} examples, {self.likelihood})"
        )


def require_square(layout: LayerCollection, matrix: Tensor) -> None:
    """A ready matrix must be over the parameters of the layout."""
    if matrix.shape != (layout.numel, layout.numel):
        raise InputError(f"A {layout.numel} x {layout.numel} matrix is expected, got {tuple(matrix.shape)}.")
    if bool((matrix - matrix.t()).abs().max() > 1e-3 * matrix.abs().max()):
        raise InputError("A symmetric matrix is expected: this one differs from its transpose.")


def refuse_options(form: str, options: Mapping[str, Any]) -> None:
    """Another form of a solve takes none of the options of the plain one."""
    if options:
        raise InputError(f"{form} is another inverse, which takes no {', '.join(options)}.")


class Representation:
    """A PMat class together with options; anything with `from_rows` can be passed as `representation=`."""

    def __init__(self, kind: type[PMat], options: dict[str, Any]) -> None:
        self.kind, self.options = kind, options

    def from_rows(self, rows: Rows) -> PMat:
        """Build with the options."""
        return self.kind.from_rows(rows, **self.options)

    def from_hessian(self, hessian: LossHessian) -> PMat:
        """Build with the options."""
        return self.kind.from_hessian(hessian, **self.options)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}.with_options({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"
