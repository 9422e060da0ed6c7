"""PMatEKFAC: KFAC's eigenbasis with the exact second moments in it (George et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.rows import Rows
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.linalg import sym_pow
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names, accumulate
from tangentlab.objects.pmat.factor import completed_basis
from tangentlab.objects.pmat.kfac import KronBlock, MatrixForm, PMatKFAC, decompose, kronecker_spectrum


class EigenBlock(Block):
    """(U_L x U_R) diag(scale) (U_L x U_R)^T with orthonormal bases (groups, features, k) and scale (groups, k_L, k_R).

    Bases of factors that were made from few rows are thin (k < features): on those samples the second moments outside are
    exactly zero. `completed` extends them to full bases for anything that reaches outside.
    """

    def __init__(self, left: Tensor, right: Tensor, scale: Tensor, form: MatrixForm) -> None:
        self.left, self.right, self.scale, self.form, self.dim = left, right, scale, form, form.dim

    @classmethod
    def from_kronecker(cls, block: KronBlock) -> EigenBlock:
        """KFAC's own eigenvalues as the scale, to begin with."""
        (left_values, left), (right_values, right) = block.bases
        return cls(left, right, left_values[:, :, None] * right_values[:, None, :], block.form)

    def completed(self) -> EigenBlock:
        """The same matrix in full bases."""
        left, right = completed_basis(self.left), completed_basis(self.right)
        scale = self.scale.new_zeros((left.shape[0], left.shape[-1], right.shape[-1]))
        scale[:, : self.scale.shape[1], : self.scale.shape[2]] = self.scale
        return EigenBlock(left, right, scale, self.form)

    @property
    def is_thin(self) -> bool:
        """Whether a basis does not span its whole space."""
        return self.scale.numel() < self.dim

    def _spectrum(self) -> Spectrum:
        return kronecker_spectrum(self.scale, self.left, self.right, self.form)

    def product(self, rows: Tensor) -> Tensor:
        """Into the basis, scale, back."""
        return self.spectrum.apply(rows, self.spectrum.values, 0.0)

    def trace(self) -> Tensor:
        """Sum of the scales."""
        return self.scale.sum()

    def diag(self) -> Tensor:
        """(U_L^2) scale (U_R^2)^T."""
        return self.form.to_flat(self.left.square() @ self.scale @ self.right.square().transpose(-1, -2))

    def power(self, exponent: float) -> EigenBlock:
        """Scales to the power; zeros stay zero."""
        return self._scaled_by(sym_pow(self.scale.flatten(), exponent).reshape(self.scale.shape))

    def inverse(self, damping: float) -> EigenBlock:
        """1 / (scale + damping)."""
        if damping == 0:
            return self.power(-1)
        full = self.completed() if self.is_thin else self
        return full._scaled_by(1 / (full.scale + damping))

    def _scaled_by(self, scale: Tensor) -> EigenBlock:
        return EigenBlock(self.left, self.right, scale, self.form)

    def scaled(self, factor: Any) -> EigenBlock:
        """factor F."""
        return self._scaled_by(self.scale * factor)

    def plus(self, other: Block) -> Block | None:
        """Sums in one and the same basis stay in it."""
        if isinstance(other, EigenBlock) and other.left is self.left and other.right is self.right:
            return self._scaled_by(self.scale + other.scale)
        return None

    def map(self, function: Callable[[Tensor], Tensor]) -> EigenBlock:
        """The same with other tensors."""
        return EigenBlock(function(self.left), function(self.right), function(self.scale), self.form)

    def tensors(self) -> list[Tensor]:
        """Bases and scale."""
        return [self.left, self.right, self.scale]


class ScaleBuilder:
    """s* = 1/n sum ((U_L x U_R)^T gradient)^2 in a given basis."""

    def __init__(self, block: EigenBlock) -> None:
        self.block, self.total = block, torch.zeros_like(block.scale)

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add squared projections."""
        self.total += factors[0].rotated_square_sum(self.block.left, self.block.right)

    def finish(self, examples: int) -> EigenBlock:
        """Divide by n."""
        return self.block._scaled_by(self.total / examples)


class PMatEKFAC(BlockwisePMat):
    """The diagonal that is optimal in Frobenius norm in KFAC's eigenbasis; its trace is exact.

    `PMatEKFAC.with_options(corrected=False)` keeps KFAC's eigenvalues until `update_diag(data)` is called.
    """

    _rows: Rows | None = None

    @staticmethod
    def plan(layout: LayerCollection, factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """The basis is KFAC's."""
        return PMatKFAC.plan(layout, factors)

    @classmethod
    def from_rows(cls, rows: Rows, sharing: str = "expand", corrected: bool = True, **options: Any) -> PMatEKFAC:
        """KFAC's factors, their eigenbasis, then (unless corrected=False) the second moments in it: two passes."""
        result = cls.from_kfac(PMatKFAC.from_rows(rows, sharing=sharing, **options))
        result._rows = rows
        if corrected:
            result.update_diag(rows)
        rows.release()
        return result

    @classmethod
    def from_kfac(cls, kfac: PMatKFAC) -> PMatEKFAC:
        """KFAC as an EKFAC that has not been corrected yet: the same matrix."""
        decompose([block for block in kfac.blocks.values() if isinstance(block, KronBlock)])
        blocks = {n: EigenBlock.from_kronecker(b) for n, b in kfac.blocks.items() if isinstance(b, KronBlock)}
        return cls(kfac.layout, blocks, examples=kfac.examples, likelihood=kfac.likelihood)  # type: ignore[arg-type]

    def _rows_of(self, data: Any) -> Rows:
        if isinstance(data, Rows):
            return data
        rows = self._rows
        if rows is None:
            raise InputError("This matrix does not know its model any more (it was unpickled or built from factors).")
        return Rows(rows.network, data, rows.weighting.fresh(), progress=rows.progress) if data is not None else rows

    def update_diag(self, data: Any = None) -> None:
        """Estimate the second moments anew, keeping the basis: on the same data, or on other data."""
        rows = self._rows_of(data)
        if rows is not self._rows:
            self.blocks = {n: b.completed() if isinstance(b, EigenBlock) else b for n, b in self.blocks.items()}
        groups = {group.names: group for group in rows.groups}
        plan: dict[Names, tuple[tuple[Group, ...], Builder]]
        plan = {n: ((groups[n],), ScaleBuilder(b)) for n, b in self.blocks.items() if isinstance(b, EigenBlock)}
        self.blocks, self.examples = accumulate(rows, lambda factors: plan)

    def refresh_basis(self, data: Any = None) -> None:
        """Basis and second moments anew, in place."""
        rows = self._rows_of(data)
        fresh = type(self).from_rows(rows)
        self.blocks, self.examples = fresh.blocks, fresh.examples

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_rows"}
