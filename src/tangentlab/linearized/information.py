"""Information and nuisance space: what a network learns fast from its data, and what it learns slowly.

`J = sum_s s_s u_s v_s^T` `(n c, p)` is the Jacobian on n examples with c outputs; the information space is spanned by the left
singular vectors u_1 ... u_r above a cutoff, the nuisance space by the rest. To first order gradient descent on the squared
loss shrinks the residual along u_s by `1 - rate s_s^2` per step: fast in the one, slowly in the other. After slides of
Soltanolkotabi (2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tangentlab.engine.memory import memory_budget
from tangentlab.errors import InputError
from tangentlab.linearized.eigenfunctions import Eigenfunctions, eigenfunctions
from tangentlab.linearized.streamed import streamed_eigenpairs
from tangentlab.metrics import NTK
from tangentlab.objects.fmat_implicit import FMatImplicit


@dataclass(frozen=True)
class Split:
    """Norms of vectors and of their parts, `(...)`: `information^2 + nuisance^2 = total^2`."""

    total: Tensor
    information: Tensor
    nuisance: Tensor

    @property
    def shares(self) -> tuple[Tensor, Tensor]:
        """`|P_I v| / |v|` and `|P_N v| / |v|`."""
        return self.information / self.total, self.nuisance / self.total


@dataclass(frozen=True)
class Diffuseness:
    """How far unit vectors spread over the examples.

    With `m_a = sum_c u_ca^2` the share of example a:

    Attributes:
        largest: `(r,)` the largest share of one example; 1/n for a vector that is spread evenly.
        participation: `(r,)` `1 / (n sum_a m_a^2)`: 1 for an even spread, 1/n for a vector on one example.
    """

    largest: Tensor
    participation: Tensor


@dataclass(frozen=True)
class InformationSpace:
    """The span of r left singular vectors of a Jacobian.

    Vectors v on the data are `(..., outputs * n)`, output-major (`stacked` makes them from `(n, outputs)`); of a trace kernel,
    `outputs = 1`, every output is such a vector of its own.

    Attributes:
        basis: the singular vectors, as eigenvectors of the tangent kernel `J J^T`.
    """

    basis: Eigenfunctions

    def __len__(self) -> int:
        return len(self.basis)

    @property
    def singular_values(self) -> Tensor:
        """s_1 >= ... >= s_r of the Jacobian, `(r,)`."""
        return self.basis.eigenvalues.clamp_min(0).sqrt()

    @property
    def relative_residuals(self) -> Tensor:
        """`|K u - s^2 u| / s^2`, `(r,)`."""
        return self.basis.residual_norms / self.basis.eigenvalues

    def leading(self, r: int) -> InformationSpace:
        """The span of the first r."""
        return replace(self, basis=self.basis.leading(r))

    def above(self, cutoff: float) -> InformationSpace:
        """The span of those with a singular value of at least `cutoff`."""
        r = int((self.singular_values >= cutoff).sum())
        if r == 0:
            raise InputError(
                f"No singular value reaches the cutoff {cutoff:g}: the largest is {float(self.singular_values[0]):.4g}."
            )
        return self.leading(r)

    def information(self, values: Tensor) -> Tensor:
        """P_I v, `(..., outputs * n)`."""
        return self._coordinates(values) @ self.basis.vectors

    def nuisance(self, values: Tensor) -> Tensor:
        """P_N v = v - P_I v."""
        return values.to(self.basis.vectors) - self.information(values)

    def split(self, values: Tensor) -> Split:
        """Norms of v and of both of its parts."""
        own = values.to(self.basis.vectors)
        return Split(own.norm(dim=-1), self._coordinates(own).norm(dim=-1), self.nuisance(own).norm(dim=-1))

    def pseudo_inverse_ratio(self, values: Tensor) -> Tensor:
        """`|J_I^+ v| / |v|`, `(...)`: how far the parameters have to move for v, `sqrt(sum_s <u_s, v>^2 / s_s^2) / |v|`."""
        return self.basis.norm_squared(values, truncated=True).sqrt() / values.to(self.basis.vectors).norm(dim=-1)

    def diffuseness(self) -> Diffuseness:
        """Of every singular vector."""
        shares = self.basis.vectors.unflatten(1, (self.basis.outputs, -1)).square().sum(1)
        return Diffuseness(shares.amax(1), 1 / (shares.shape[1] * shares.square().sum(1)))

    def _coordinates(self, values: Tensor) -> Tensor:
        """<u_s, v>, `(..., r)`."""
        return self.basis.coefficients(values) * self.basis.examples**0.5


def stacked(values: Tensor) -> Tensor:
    """Values `(n, outputs)` (outputs, one-hot labels, residuals) as one vector on the data, `(outputs * n,)`."""
    if values.ndim != 2:
        raise InputError(f"Values on the data are (n, outputs), not {tuple(values.shape)}.")
    return values.T.flatten()


Method = Literal["auto", "gram", "krylov"]


def information_space(
    model: nn.Module,
    loader: Any,
    r: int | None = None,
    *,
    cutoff: float | None = None,
    abar: float | None = None,
    method: Method = "auto",
    tolerance: float = 1e-2,
    folder: str | Path | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> InformationSpace:
    """The information space of a model on data.

    Args:
        model: in evaluation mode.
        loader: the data in a fixed order and in batches, as for `tangentlab.NTK`.
        r: its dimension; with a cutoff, the most that it may have (needed by "krylov", which finds no more).
        cutoff: of the singular values.
        abar: the cutoff as the theorems have it, `alpha = sqrt(n outputs) abar`.
        method: "gram" holds the tangent kernel, `(n outputs)^2` numbers, exact to rounding; "krylov" streams the rows of the
            Jacobian (see `streamed_eigenpairs`), with residuals below `tolerance`; "auto" is "gram" where it fits in memory.
        tolerance: largest `|K u - s^2 u| / s^2` of "krylov".
        folder: where "krylov" keeps its passes, so that it goes on after an interruption.
        generator: of random starts.
        options: as in `tangentlab.NTK`; `outputs="trace"` takes the kernel summed over outputs (by "gram").

    Cost: of "gram" the kernel, and 9 (n outputs)^3 for all pairs or about 8 r (n outputs)^2 for r; of "krylov" some four
    passes over the data.
    """
    if (cutoff is None and abar is None and r is None) or (cutoff is not None and abar is not None):
        raise InputError("Give r=, the dimension of the space, or one of cutoff= and abar=.")
    if method not in ("auto", "gram", "krylov"):
        raise InputError(f"The argument method is 'auto', 'gram' or 'krylov', not {method!r}.")
    kernel: FMatImplicit = NTK(model, loader, representation=FMatImplicit, **options)
    if method == "auto":
        method = (
            "gram" if kernel.gram_bytes() <= memory_budget() or options.get("outputs", "all") != "all" else "krylov"
        )
    if method == "krylov":
        if r is None:
            raise InputError(
                "Streamed rows give the r largest singular values: give r= with the cutoff, as an upper limit."
            )
        if options.pop("outputs", "all") != "all":
            raise InputError("Streamed rows are those of all outputs: use method='gram', or function= to choose some.")
        pairs = streamed_eigenpairs(
            model, loader, r, tolerance=tolerance, folder=folder, generator=generator, **options
        )
        space = InformationSpace(Eigenfunctions.of_pairs(pairs, kernel.outputs))
    else:
        most = kernel.dim if r is None else min(r, kernel.dim)
        space = InformationSpace(eigenfunctions(model, loader, most, method="gram", generator=generator, **options))
    if abar is not None:
        cutoff = abar * sqrt(kernel.dim)
    return space if cutoff is None else _cut(space, cutoff, r, kernel.dim)


def _cut(space: InformationSpace, cutoff: float, r: int | None, dim: int) -> InformationSpace:
    """By value; refused where singular values that were not computed may be above the cutoff as well."""
    if r is not None and len(space) < dim and float(space.singular_values[-1]) >= cutoff:
        raise InputError(
            f"All {len(space)} singular values that were computed are above the cutoff {cutoff:g}: give a larger r."
        )
    return space.above(cutoff)
