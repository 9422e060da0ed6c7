"""What products with vectors alone can tell about a symmetric matrix, on parameters or on functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeVar

import torch
from torch import Tensor

from tangentlab.engine.frozen import all_frozen, frozen_inside
from tangentlab.errors import InputError, StructureError
from tangentlab.linalg import (
    CGReport,
    Estimate,
    SpectralDensity,
    conjugate_gradients,
    hutchinson_trace,
    hutchpp,
    lanczos,
    slq_logdet,
    spectral_density,
    xdiag,
    xtrace,
)

Vectors = TypeVar("Vectors", bound=Any)


@dataclass(frozen=True)
class Eigenpairs(Generic[Vectors]):
    """Some eigenpairs of a matrix, the most wanted first.

    Attributes:
        values: `(k,)`.
        vectors: a batch of k orthonormal vectors of the matrix's space.
        residual_norms: `(k,)` true `|F v - s v|`: an eigenvalue of F lies within this distance of s.
        matvecs: products with the matrix that were spent; 0 when another route gave the pairs.
        converged: whether every residual is below the tolerance.
        message: how the pairs were found.
    """

    values: Tensor
    vectors: Vectors
    residual_norms: Tensor
    matvecs: int
    converged: bool
    message: str


def check_damping(damping: float | None, regul: float | None = None) -> float:
    """One value from damping= and its other name regul=; it may not be negative."""
    if damping is not None and regul is not None and float(damping) != float(regul):
        raise InputError(f"The arguments damping={damping} and regul={regul} are two names of one argument: give one.")
    value = damping if damping is not None else regul if regul is not None else 0.0
    if not float(value) >= 0:
        raise InputError(f"The damping must be a number >= 0, not {value}.")
    return float(value)


class HoldsModel:
    """A multiple of a matrix that is products with a model, and stores no tensor of its own."""

    _factor: Any = 1.0

    def scaled(self, factor: Any) -> Self:
        """factor F."""
        result = object.__new__(type(self))
        vars(result).update(vars(self), _factor=self._factor * factor)
        return result

    def tensors(self) -> list[Tensor]:
        """Nothing is stored."""
        return []

    def _map(self, function: Any) -> Self:
        raise StructureError(f"{type(self).__name__} holds the model itself: move the model and build the matrix anew.")

    def __getstate__(self) -> dict[str, Any]:
        raise StructureError(
            f"{type(self).__name__} holds the model itself and can be neither pickled nor saved: use a representation that "
            "stores its numbers."
        )


class MatrixFree(ABC):
    """Solves, eigenpairs, traces, determinants and densities of any symmetric matrix that can be multiplied.

    Every estimate carries an estimate of its error, and a `generator` makes it reproducible. Representations with a closed
    form have the exact `trace`, `diag`, `logdet`, `eigvalsh` besides; these methods are for those without, and for sizes at
    which the closed form is out of reach.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of rows of the flattened matrix."""

    @abstractmethod
    def _product(self, flat: Tensor) -> Tensor:
        """The matrix times rows (B, dim)."""

    @abstractmethod
    def _example(self) -> Tensor:
        """A tensor with the dtype and device of the matrix."""

    @abstractmethod
    def _as_vectors(self, flat: Tensor) -> Any:
        """Rows (B, dim) as a batch of vectors of the matrix's space."""

    @abstractmethod
    def _on_vectors(self, v: Any, function: Any) -> Any:
        """Apply a function of rows (B, dim) to whatever kind of vector the matrix accepts."""

    def frozen(self) -> AbstractContextManager[None]:
        """A block in which products with an implicit matrix keep what they compute for the next.

        Inside you promise that the model (parameters, buffers, attributes, modes, hooks) and the data stay as they are. Every
        method does this for its own duration. A matrix that stores its numbers has nothing to keep.
        """
        return nullcontext()

    def _kind(self) -> dict[str, Any]:
        example = self._example()
        return {"dtype": example.dtype, "device": example.device}

    def solve_cg(
        self,
        v: Vectors,
        damping: float | None = None,
        *,
        preconditioner: Any = None,
        start: Vectors | None = None,
        rtol: float | None = None,
        max_iterations: int | None = None,
        on_failure: Literal["raise", "report"] = "raise",
    ) -> tuple[Vectors, CGReport]:
        """(F + damping I)^-1 v by conjugate gradients on products alone, with a convergence report.

        preconditioner: any other matrix on the same space; its damped inverse is applied in every iteration.
        start: a first guess of the solution, of the kind and shape of v, such as the solution of a nearby system; zero by
        default.
        """
        damping = check_damping(damping)
        layouts = getattr(self, "layout", None), getattr(preconditioner, "layout", None)
        if preconditioner is not None and (preconditioner.dim != self.dim or layouts[0] != layouts[1]):
            raise InputError(f"The preconditioner {preconditioner!r} does not act on the space of {self!r}.")
        if start is not None and type(start) is not type(v):
            raise InputError(f"A first guess is of the kind of the right-hand side: {start!r} is not as {v!r}.")
        first = None if start is None else self._as_rows(start)
        reports = []

        def precondition(x: Tensor) -> Tensor:
            return preconditioner._solve(x, damping)

        def run(flat: Tensor) -> Tensor:
            solution, report = conjugate_gradients(
                lambda x: self._product(x) + damping * x,
                flat,
                preconditioner=precondition if preconditioner is not None else None,
                start=first,
                rtol=rtol,
                max_iterations=max_iterations,
                on_failure=on_failure,
            )
            reports.append(report)
            return solution

        with all_frozen([self, preconditioner]):
            return self._on_vectors(v, run), reports[0]

    def _as_rows(self, v: Vectors) -> Tensor:
        """Whatever kind of vectors the matrix accepts as rows (B, dim)."""
        found: list[Tensor] = []

        def keep(rows: Tensor) -> Tensor:
            found.append(rows)
            return rows

        self._on_vectors(v, keep)
        return found[0]

    @frozen_inside
    def top_eigenpairs(
        self,
        k: int = 10,
        *,
        which: Literal["top", "bottom", "magnitude"] = "top",
        tol: float | None = None,
        max_restarts: int = 300,
        generator: torch.Generator | None = None,
    ) -> Eigenpairs[Any]:
        """The k largest eigenpairs (or smallest, or largest in magnitude) by block Lanczos on products alone.

        Cost: a few k products; memory about max(4 k, 64) vectors. `tol` is relative to the largest eigenvalue.
        """
        options: dict[str, Any] = {"which": which, "tol": tol, "max_restarts": max_restarts, "generator": generator}
        found = lanczos(self._product, self.dim, k, **options, **self._kind())
        vectors = self._as_vectors(found.eigenvectors)
        facts = found.residual_norms, found.matvecs, found.converged, found.message
        return Eigenpairs(found.eigenvalues, vectors, *facts)

    @frozen_inside
    def estimate_trace(
        self,
        matvecs: int = 60,
        *,
        method: Literal["hutch++", "xtrace", "hutchinson"] = "hutch++",
        generator: torch.Generator | None = None,
    ) -> Estimate:
        """Unbiased estimate of the trace with its standard error, from `matvecs` products.

        "hutch++" (Meyer et al. 2021) and "xtrace" (Epperly et al. 2024) take the dominant part exactly; "hutchinson" needs
        no memory for it.
        """
        options: dict[str, Any] = {"generator": generator, **self._kind()}
        if method == "hutch++":
            return hutchpp(self._product, self.dim, matvecs, **options)
        if method == "xtrace":
            return xtrace(self._product, self.dim, max(matvecs // 2, 2), **options)
        if method == "hutchinson":
            return hutchinson_trace(self._product, self.dim, matvecs, **options)
        raise InputError(f"The argument method must be 'hutch++', 'xtrace' or 'hutchinson', not {method!r}.")

    @frozen_inside
    def estimate_diag(self, matvecs: int = 60, *, generator: torch.Generator | None = None) -> Estimate:
        """Unbiased estimate of the diagonal, flat (dim), with one standard error per entry (XDiag)."""
        return xdiag(self._product, self.dim, max(matvecs // 2, 2), generator=generator, **self._kind())

    @frozen_inside
    def estimate_logdet(
        self,
        damping: float | None = None,
        *,
        regul: float | None = None,
        probes: int = 16,
        steps: int = 32,
        generator: torch.Generator | None = None,
    ) -> Estimate:
        """log det(F + damping I) by stochastic Lanczos quadrature: probes * steps products, with the standard error."""
        value = check_damping(damping, regul)
        options: dict[str, Any] = {"probes": probes, "steps": steps, "generator": generator, **self._kind()}
        return slq_logdet(self._product, self.dim, damping=value, **options)

    @frozen_inside
    def spectral_density(
        self,
        *,
        probes: int = 16,
        steps: int = 64,
        points: int = 512,
        width: float | None = None,
        grid: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> SpectralDensity:
        """Density of the eigenvalues, smoothed by Gaussians of the given width, with its standard error on the grid."""
        options: dict[str, Any] = {"probes": probes, "steps": steps, "points": points, "width": width, "grid": grid}
        return spectral_density(self._product, self.dim, generator=generator, **options, **self._kind())
