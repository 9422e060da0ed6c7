"""PMat: a symmetric matrix on parameter space. What every representation can do, given only its product with a vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.memory import human_bytes, require_memory
from tangentlab.errors import InputError, SolveError
from tangentlab.linalg import CGReport, conjugate_gradients, safe_eigh, sym_pow
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.rows import Rows

Vector = TypeVar("Vector", bound=Any)
Scalar = int | float | Tensor


class PMat(ABC):
    """A symmetric d x d matrix on the parameters of a layout: PVector -> PVector.

    Products and solves take a PVector (or a batch of them, or a PushForward, whose rows are the right-hand sides). A new
    representation needs `_product`, `from_rows` and `_map`; everything else has a correct default here, which a closed
    form should replace where there is one.
    """

    layout: LayerCollection
    examples: int
    likelihood: str

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

    def solve(self, v: Vector, damping: float | None = None, *, regul: float | None = None) -> Vector:
        """(F + damping I)^-1 v; without damping the pseudo-inverse, where a spectrum is at hand."""
        return self._on_vectors(v, partial(self._solve, damping=check_damping(damping, regul)))

    def _solve(self, flat: Tensor, damping: float) -> Tensor:
        if damping == 0:
            raise SolveError(f"{type(self).__name__} has no spectrum at hand for a pseudo-inverse: give a damping > 0.")
        return self.solve_cg(flat, damping)[0]

    def solve_cg(
        self,
        v: Vector,
        damping: float,
        *,
        preconditioner: PMat | None = None,
        rtol: float | None = None,
        max_iterations: int | None = None,
        on_failure: str = "raise",
    ) -> tuple[Vector, CGReport]:
        """(F + damping I)^-1 v by conjugate gradients on products alone, with a convergence report.

        preconditioner: any other PMat of the same parameters; its damped inverse is applied in every iteration.
        """
        damping = check_damping(damping, None)
        reports = []

        def precondition(x: Tensor) -> Tensor:
            assert preconditioner is not None
            return preconditioner._solve(x, damping)

        def run(flat: Tensor) -> Tensor:
            solution, report = conjugate_gradients(
                lambda x: self._product(x) + damping * x,
                flat,
                preconditioner=precondition if preconditioner is not None else None,
                rtol=rtol,
                max_iterations=max_iterations,
                on_failure=on_failure,  # type: ignore[arg-type]
            )
            reports.append(report)
            return solution

        return self._on_vectors(v, run), reports[0]

    def __matmul__(self, v: Vector) -> Vector:
        return self.mv(v)

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
            return function(v.reshape(-1, self.layout.numel)).reshape(v.shape)
        if hasattr(v, "map_rows"):
            return v.map_rows(self.layout, lambda x: self._on_vectors(x, function))
        raise InputError(f"Cannot multiply with a {type(v).__name__}: give a PVector or a PushForward.")

    # ------------------------------------------------------------------ numbers

    def to_dense(self) -> Tensor:
        """The matrix itself, (d, d), in flat order."""
        self.require_dense_memory(self.layout, self._example())
        return self._product(torch.eye(self.layout.numel, dtype=self._example().dtype, device=self._example().device))

    def trace(self) -> Tensor:
        """Sum of the diagonal."""
        return self.diag().flat.sum()

    def diag(self) -> PVector:
        """The diagonal."""
        return PVector(self.layout, self.to_dense().diagonal().clone())

    def norm(self) -> Tensor:
        """Frobenius norm."""
        return torch.linalg.matrix_norm(self.to_dense())

    def eigvalsh(self) -> Tensor:
        """All d eigenvalues, ascending."""
        return safe_eigh(self.to_dense())[0]

    def logdet(self, damping: float | None = None, *, regul: float | None = None) -> Tensor:
        """log det(F + damping I); -inf for a singular matrix without damping."""
        return self.eigvalsh().clamp_min(0).add(check_damping(damping, regul)).log().sum()

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
        """A root R of (F + damping I)^-1 applied to rows, R R^T = (F + damping I)^-1."""
        values, vectors = safe_eigh(self.to_dense())
        return (flat * (values.clamp_min(0) + damping).rsqrt()) @ vectors.t()

    def pow(self, exponent: float) -> PMat:
        """F^exponent; null modes stay null for every exponent, so -1 is the pseudo-inverse."""
        from tangentlab.objects.pmat.dense import PMatDense

        values, vectors = safe_eigh(self.to_dense())
        return PMatDense.from_dense(self.layout, (vectors * sym_pow(values, exponent)) @ vectors.t())

    def inverse(self, damping: float | None = None, *, regul: float | None = None) -> PMat:
        """(F + damping I)^-1 as a matrix of the tightest class; the pseudo-inverse without damping."""
        from tangentlab.objects.pmat.dense import PMatDense

        return PMatDense.from_dense(self.layout, self.to_dense()).inverse(check_damping(damping, regul))

    def __pow__(self, exponent: float) -> PMat:
        return self.pow(exponent)

    # ------------------------------------------------------------------ algebra

    def scaled(self, factor: Scalar) -> PMat:
        """factor * F."""
        from tangentlab.objects.pmat.sum import PMatSum

        return PMatSum([(factor, self)])

    def plus(self, other: PMat) -> PMat:
        """F + G, in the tightest class that can hold it; else a lazy sum."""
        from tangentlab.objects.pmat.sum import PMatSum

        return PMatSum([(1.0, self), (1.0, other)])

    def __add__(self, other: PMat) -> PMat:
        if not isinstance(other, PMat):
            return NotImplemented
        if other.layout != self.layout:
            raise InputError(f"These matrices belong to different parameters: {self.layout!r} and {other.layout!r}.")
        return self.plus(other)

    def __sub__(self, other: PMat) -> PMat:
        return self + (-1.0) * other if isinstance(other, PMat) else NotImplemented

    def __mul__(self, factor: Scalar) -> PMat:
        return self.scaled(factor) if isinstance(factor, int | float | Tensor) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, factor: Scalar) -> PMat:
        return self.scaled(1 / factor) if isinstance(factor, int | float | Tensor) else NotImplemented

    def __neg__(self) -> PMat:
        return self.scaled(-1.0)

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


class Representation:
    """A PMat class together with options; anything with `from_rows` can be passed as `representation=`."""

    def __init__(self, kind: type[PMat], options: dict[str, Any]) -> None:
        self.kind, self.options = kind, options

    def from_rows(self, rows: Rows) -> PMat:
        """Build with the options."""
        return self.kind.from_rows(rows, **self.options)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}.with_options({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


def check_damping(damping: float | None, regul: float | None) -> float:
    """One value from damping= and its other name regul=; it may not be negative."""
    value = damping if damping is not None else regul if regul is not None else 0.0
    if not float(value) >= 0:
        raise InputError(f"The damping must be a number >= 0, not {value}.")
    return float(value)
