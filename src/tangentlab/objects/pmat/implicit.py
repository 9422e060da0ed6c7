"""PMatImplicit: the exact matrix, never stored; every product streams over the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.forward_mode import Linearization
from tangentlab.engine.network import untouched
from tangentlab.engine.progress import track
from tangentlab.engine.rows import Rows
from tangentlab.errors import StructureError
from tangentlab.objects.pmat.base import PMat, Scalar
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian


class PMatImplicit(PMat):
    """F v = 1/n sum_n J_n^T W_n J_n v: one Jacobian-vector and one vector-Jacobian product per batch.

    Memory: the activations of one batch. Trace and diagonal are exact sums over streamed gradients; `solve` runs conjugate
    gradients, `solve_cg` takes a preconditioner and returns the convergence report. It holds the model, so it cannot be
    pickled or moved; it always speaks of the model as it is now.
    """

    def __init__(self, rows: Rows, factor: Any = 1.0) -> None:
        self._rows, self._factor, self._rung = rows, factor, 0
        super().__init__(rows.network.layout, examples=0, likelihood=rows.weighting.name)
        for number, batch in enumerate(rows.batches):
            if number == 0:
                outputs = rows.engine.sweep(batch).outputs.detach()
            else:
                with torch.no_grad(), untouched(rows.network.model):
                    outputs = rows.network(batch)
            rows.weighting.prepare(outputs, number)
            self.examples += outputs.shape[0]

    @classmethod
    def from_rows(cls, rows: Rows) -> PMatImplicit:
        """Keep the rows' description; one forward counts the examples, draws labels and checks the first batch."""
        return cls(rows)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMat:
        """The implicit Hessian."""
        from tangentlab.objects.pmat.hessian import PMatImplicitHessian

        return PMatImplicitHessian(hessian)

    def _linearizations(self, what: str) -> Iterator[Linearization]:
        batches = track(self._rows.batches, what, len(self._rows.batches) or None, self._rows.progress)
        for batch in batches:
            yield Linearization(self._rows.network, batch, self._rung)

    def _product(self, flat: Tensor) -> Tensor:
        total = torch.zeros_like(flat)
        for number, linear in enumerate(self._linearizations("products")):
            for row, vector in enumerate(flat):
                tangent = linear.jvp(vector)
                weighted = self._rows.weighting.weigh(linear.outputs.detach(), linear.batch, number, tangent)
                total[row] += linear.vjp(weighted)
            self._rung = linear.rung
        return total * (self._factor / self.examples)

    def vTMv(self, v: PVector) -> Tensor:
        """1/n sum |Jt_n v|^2: one Jacobian-vector product per batch and vector, no backward."""
        flat = v.flat.reshape(-1, self.layout.numel)
        total = flat.new_zeros(flat.shape[0])
        for number, linear in enumerate(self._linearizations("quadratic forms")):
            for row, vector in enumerate(flat):
                tangent = linear.jvp(vector)
                weighted = self._rows.weighting.weigh(linear.outputs.detach(), linear.batch, number, tangent)
                total[row] += (tangent * weighted).sum()
        return (total * (self._factor / self.examples)).reshape(v.flat.shape[:-1])

    def trace(self) -> Tensor:
        """1/n sum |r|^2 over all rows, without building them for layers with a closed form."""
        total = sum(factor.squared_norms().sum() for chunk in self._rows for factor in chunk.factors.values())
        return torch.as_tensor(total) * (self._factor / self.examples)

    def diag(self) -> PVector:
        """1/n sum r^2."""
        from tangentlab.objects.pmat.diag import PMatDiag

        return PMatDiag.from_rows(self._rows).diag() * self._factor

    def scaled(self, factor: Scalar) -> PMat:
        """factor F."""
        return PMatImplicit(self._rows, self._factor * factor)

    def _map(self, function: Any) -> PMatImplicit:
        raise StructureError("PMatImplicit holds the model itself: move the model and build the matrix anew.")

    def __getstate__(self) -> dict[str, Any]:
        raise StructureError("PMatImplicit holds the model itself and cannot be pickled: use another representation.")

    def tensors(self) -> list[Tensor]:
        """Nothing is stored."""
        return []

    def _example(self) -> Tensor:
        return next(iter(self._rows.network.parameters().values())).detach()
