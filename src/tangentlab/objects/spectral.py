"""What follows from F = Q diag(s) Q^T: solves, cut-offs, norms, determinants and functions of a symmetric matrix."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import InputError, SolveError
from tangentlab.linalg import safe_eigh, sym_pow
from tangentlab.objects.algebra import MatrixAlgebra
from tangentlab.objects.matrix_free import MatrixFree, Vectors, check_damping
from tangentlab.objects.spectrum import Spectrum, cut_off, inverse_above, require_positive, without_rounding
from tangentlab.objects.storage import Storable


class Spectral(Storable, MatrixAlgebra, MatrixFree):
    """A symmetric matrix with its spectrum, on parameters or on functions.

    All goes by `_spectrum`, the eigendecomposition of the matrix written out by default, in a basis of blocks or of
    Kronecker products where there is one; whoever has a closed form for an operation replaces it.
    """

    @abstractmethod
    def _matrix(self) -> Tensor:
        """The matrix itself, (dim, dim)."""

    @abstractmethod
    def _of_spectrum(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Q f(s) Q^T as a matrix of the tightest class, for a function of eigenvalues with f(0) = 0."""

    def _spectrum(self) -> Spectrum:
        """Eigendecomposition of the whole; null directions may be left out of the basis, or stand in it as zeros."""
        return Spectrum.of_basis(*safe_eigh(self._matrix()))

    # ------------------------------------------------------------------ solves

    def solve(
        self,
        v: Vectors,
        damping: float | None = None,
        *,
        regul: float | None = None,
        atol: float | None = None,
        rtol: float | None = None,
    ) -> Vectors:
        """(F + damping I)^-1 v; without damping the pseudo-inverse, where a spectrum is at hand.

        With atol or rtol, modes with |s| <= max(atol, rtol max|s|) are left out, of v as well, by the spectrum of the
        whole matrix: sum_k <q_k, v> q_k / (s_k + damping) over the others; without damping `pinv(atol) @ v`.
        """
        value = check_damping(damping, regul)
        if not atol and rtol is None:
            return self._on_vectors(v, partial(self._solve, damping=value))

        def above(flat: Tensor) -> Tensor:
            spectrum = self._spectrum()
            cut = cut_off(spectrum.values, atol, rtol)
            return spectrum.apply(flat, inverse_above(spectrum.values, cut, value), 0.0)

        return self._on_vectors(v, above)

    def _solve(self, flat: Tensor, damping: float) -> Tensor:
        if damping == 0:
            raise SolveError(f"{type(self).__name__} has no spectrum at hand for a pseudo-inverse: give a damping > 0.")
        return self.solve_cg(self._as_vectors(flat), damping)[0].flat

    def pinv(self, atol: float | None = None, *, rtol: float | None = None) -> Any:
        """The pseudo-inverse, in which modes with |s| <= max(atol, rtol max|s|) are zero: `torch.linalg.pinv`.

        max|s| is that of the whole matrix. Without a cut-off, modes that are zero up to rounding are zero: `pow(-1)`.
        """
        if not atol and rtol is None:
            return self.pow(-1)
        return self._of_spectrum(partial(inverse_above, cut=cut_off(self._spectrum().values, atol, rtol)))

    def pow(self, exponent: float) -> Any:
        """F^exponent; null modes stay null for every exponent, so -1 is the pseudo-inverse."""
        return self._of_spectrum(partial(sym_pow, power=exponent))

    def __pow__(self, exponent: float) -> Any:
        return self.pow(exponent)

    # ------------------------------------------------------------------ numbers

    def eigvalsh(self) -> Tensor:
        """All eigenvalues, ascending."""
        return self._spectrum().eigenvalues().sort()[0]

    def logdet(self, damping: float | None = None, *, regul: float | None = None) -> Tensor:
        """log det(F + damping I); -inf for a singular matrix without damping."""
        value = check_damping(damping, regul)
        return without_rounding(require_positive(self.eigvalsh(), value), value).log().sum()

    def norm(self, ord: int | str = "fro") -> Tensor:
        """Frobenius norm; with ord=2 the largest |eigenvalue|, with ord=-2 the smallest."""
        if ord == "fro":
            return self._frobenius()
        if ord not in (2, -2):
            raise InputError(
                f"The argument ord must be 'fro', 2 (the largest |eigenvalue|) or -2 (the smallest), not {ord!r}."
            )
        return self._largest() if ord == 2 else self.eigvalsh().abs().min()

    def _frobenius(self) -> Tensor:
        return torch.linalg.vector_norm(self._matrix())

    def _largest(self) -> Tensor:
        """By Lanczos: products are enough."""
        found = self.top_eigenpairs(1, which="magnitude")
        if not found.converged:
            raise SolveError(f"The largest eigenvalue was not found ({found.message}): take F.eigvalsh().abs().max().")
        return found.values[0].abs()
