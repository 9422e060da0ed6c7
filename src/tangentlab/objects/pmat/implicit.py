"""PMatImplicit: the exact matrix, never stored; every product streams over the data."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import common_dtype
from tangentlab.engine.rows import Rows, chunk_size
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.objects.matrix_free import HoldsModel
from tangentlab.objects.pmat.base import PMat
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian


_FORWARD, _BACKWARD, _JVP, _VJP, _BY_ROWS = 1.0, 0.9, 3.0, 2.6, 2.2
"""Measured costs in forwards of a ResNet18: backward to the activations, jvp, vjp to the parameters, product by rows."""


class PMatImplicit(HoldsModel, PMat):
    """F v = 1/n sum_n J_n^T W_n J_n v, by whichever is cheaper: one Jacobian-vector and one vector-Jacobian product per
    batch, or, for few cotangents or many products in one operation, layer by layer from output-gradients that are kept.

    Memory: the activations of one batch (of all of them, times the cotangents, when gradients are kept and fit in half of the
    memory budget). Trace and diagonal are exact sums over streamed gradients; `solve` runs conjugate gradients, `solve_cg`
    takes a preconditioner and returns the convergence report. It holds the model, so it cannot be pickled or moved; it
    always describes the model as it is now. Nothing is kept from one call to the next, except inside `with F.frozen():`.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._cotangents, self._may_keep = 0, False
        super().__init__(rows.network.layout, examples=0, likelihood=rows.weighting.name)
        for number, batch in enumerate(rows.batches):
            if number == 0:
                sweep = rows.engine.sweep(batch)
                outputs = sweep.outputs.detach()
                self._cotangents = rows.weighting.count(outputs)
                whole = self._cotangents * len(rows.batches)
                self._may_keep = whole > 0 and chunk_size(sweep, whole) == whole
            else:
                outputs = rows.network.values(batch)
            rows.weighting.prepare(outputs, number)
            self.examples += outputs.shape[0]
        rows.require_dependence()

    @classmethod
    def from_rows(cls, rows: Rows) -> PMatImplicit:
        """Keep the rows' description; one forward counts the examples, draws labels and checks the first batch."""
        return cls(rows)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMat:
        """The implicit Hessian."""
        from tangentlab.objects.pmat.hessian import PMatImplicitHessian

        return PMatImplicitHessian(hessian)

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, products may keep what they compute for the next: you promise that model and data stay as they are."""
        return self._rows.frozen()

    def _by_rows(self, done: int, vectors: int) -> bool:
        """Whether products from rows are cheaper than automatic differentiation, counting those done in this operation."""
        verified = self._rows.rung in (self._rows.kept.get("trusted") or ())
        products = done + vectors
        sweeps = products / max(vectors, 1)
        forwards = 1 if len(self._rows.batches) == 1 else sweeps
        rows = (_FORWARD + _BACKWARD * self._cotangents) * (1 if self._may_keep else sweeps) + _BY_ROWS * products
        return rows <= _FORWARD * forwards + (_JVP + _VJP) * (products + (not verified))

    def _product(self, flat: Tensor) -> Tensor:
        flat = flat.detach()
        done: Counter[str] = self._rows.kept.made("products", Counter)
        by_rows = self._rows.kept.get("chunks") is not None or self._by_rows(done["vectors"], len(flat))
        done["vectors"] += len(flat)
        return self._product_by_rows(flat) if by_rows else self._product_by_autograd(flat)

    def _product_by_rows(self, flat: Tensor) -> Tensor:
        """1/n sum over rows r <r, v>, every layer from its inputs and output-gradients."""
        total, examples = torch.empty_like(flat), 0
        for number, chunk in enumerate(self._rows):
            examples += chunk.examples * chunk.first
            for vector, result in zip(flat, total, strict=True):
                self._pull(chunk.factors, self._pushed(chunk.factors, vector), result, add=number > 0)
        return total.mul_(self._factor / examples)

    def _pushed(self, factors: dict[Group, OuterSum], vector: Tensor) -> Tensor:
        """<r, v> of all rows (K, N)."""
        pushed = []
        for group, factor in factors.items():
            whole = self.layout.slice_of(group.names)
            parts = [self.layout.slices[name] for name in group.names]
            pushed.append(factor.push(vector[whole] if whole else torch.cat([vector[part] for part in parts])))
        return torch.stack(pushed).sum(0)

    def _pull(self, factors: dict[Group, OuterSum], weights: Tensor, total: Tensor, add: bool) -> None:
        """total = (or +=) sum over rows of weight times row."""
        for group, factor in factors.items():
            if whole := self.layout.slice_of(group.names):
                factor.pull_into(total[whole], weights, add)
                continue
            places = [self.layout.slices[name] for name in group.names]
            pieces = factor.pull(weights).split([place.stop - place.start for place in places])
            for place, piece in zip(places, pieces, strict=True):
                total[place] = total[place] + piece if add else piece

    def _product_by_autograd(self, flat: Tensor) -> Tensor:
        total, examples = torch.zeros_like(flat), 0
        for number, linear in enumerate(self._rows.linearizations("products")):
            examples += linear.outputs.shape[0]
            for row, vector in enumerate(flat):
                tangent = linear.jvp(vector)
                weighted = self._rows.weighting.weigh(linear.outputs.detach(), linear.batch, number, tangent)
                total[row] += linear.vjp(weighted)
        return total.mul_(self._factor / examples)

    def vTMv(self, v: PVector) -> Tensor:
        """1/n sum |Jt_n v|^2: one Jacobian-vector product per batch and vector, no backward."""
        if v.layout != self.layout:
            raise InputError(f"The vector belongs to other parameters: {v.layout!r}, the matrix to {self.layout!r}.")
        flat = v.flat.detach().reshape(-1, self.layout.numel)
        total, examples = flat.new_zeros(flat.shape[0]), 0
        for number, linear in enumerate(self._rows.linearizations("quadratic forms")):
            examples += linear.outputs.shape[0]
            for row, vector in enumerate(flat):
                tangent = linear.jvp(vector)
                weighted = self._rows.weighting.weigh(linear.outputs.detach(), linear.batch, number, tangent)
                total[row] += (tangent * weighted).sum()
        return (total * (self._factor / examples)).reshape(v.flat.shape[:-1])

    def tensor(self) -> Tensor:
        """The matrix (d, d), from its rows rather than from d products."""
        from tangentlab.objects.pmat.dense import PMatDense

        self.require_dense_memory(self.layout, self._example())
        return PMatDense.from_rows(self._rows).tensor() * self._factor

    def trace(self) -> Tensor:
        """1/n sum |r|^2 over all rows, without building them for layers with a closed form."""
        total, examples = self._example().new_zeros(()), 0
        for chunk in self._rows:
            examples += chunk.examples * chunk.first
            total = total + sum(factor.squared_norms().sum() for factor in chunk.factors.values())
        return (total * (self._factor / examples)).to(self._example().dtype)

    def diag(self) -> PVector:
        """1/n sum r^2."""
        from tangentlab.objects.pmat.diag import PMatDiag

        return PMatDiag.from_rows(self._rows).diag() * self._factor

    def _example(self) -> Tensor:
        parameters = list(self._rows.network.parameters().values())
        return parameters[0].new_empty(0, dtype=common_dtype(parameters))
