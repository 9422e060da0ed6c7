"""PMatImplicitHessian: the exact Hessian of a loss, never stored; every product streams over the data."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.frozen import frozen_inside
from tangentlab.engine.hessian import LossHessian
from tangentlab.engine.rows import Rows
from tangentlab.errors import StructureError
from tangentlab.objects.matrix_free import HoldsModel
from tangentlab.objects.pmat.base import PMat
from tangentlab.objects.pvector import PVector


class PMatImplicitHessian(HoldsModel, PMat):
    """H v = 1/n sum_n (d^2 loss_n / dw^2) v: about four forward passes per batch. Memory: the graph of one batch.

    An operation of several products (a solve, a Lanczos run), or a block `with H.frozen():`, makes the gradient of every
    batch and its graph once, as far as they fit in half of the memory budget; a product is then one backward pass through
    them.

    H is symmetric and in general indefinite: `solve` needs a damping above the most negative eigenvalue, which
    `top_eigenpairs(1, which="bottom")` finds. Diagonal and trace take d products; `estimate_diag` and `estimate_trace` few.
    """

    def __init__(self, hessian: LossHessian) -> None:
        self._hessian = hessian
        super().__init__(hessian.layout, **hessian.facts)

    @classmethod
    def from_rows(cls, rows: Rows) -> PMat:
        """A Hessian is not a second moment of gradients."""
        raise StructureError("PMatImplicitHessian is what Hessian(..., representation=PMatImplicit) returns.")

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMatImplicitHessian:
        """Keep the description."""
        return cls(hessian)

    def frozen(self) -> AbstractContextManager[None]:
        """Inside, products may keep what they compute for the next: you promise that model and data stay as they are."""
        return self._hessian.frozen()

    def _product(self, flat: Tensor) -> Tensor:
        return self._hessian.product(flat) * self._factor

    @frozen_inside
    def diag(self) -> PVector:
        """One product per parameter, no more memory than the largest layer's block."""
        parts: dict[str, Tensor] = {}
        for name in self.layout.names:
            (block,) = self._hessian.blocks([(name,)])
            parts[name] = block.diagonal().reshape(self.layout.shapes[name]) * self._factor
        return PVector(self.layout, parts)

    def _example(self) -> Tensor:
        return torch.empty(0, dtype=self._parameter.dtype, device=self._parameter.device)

    @property
    def _parameter(self) -> Tensor:
        return next(iter(self._hessian.network.parameters().values()))
