"""PMatEKFAC: KFAC's eigenbasis with the exact second moments in it (George et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.rows import Rows
from tangentlab.layers import OuterSum
from tangentlab.objects.pmat.block import Block
from tangentlab.objects.pmat.blockwise import Builder, Names, accumulate
from tangentlab.objects.pmat.kfac import PMatKFAC
from tangentlab.objects.pmat.kronecker import EigenBlock, squares_in_bases
from tangentlab.objects.pmat.refreshed import Refreshed

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian


class ScaleBuilder:
    """s* = 1/n sum ((U_L x U_R)^T gradient)^2 in a given basis."""

    def __init__(self, block: EigenBlock, part: str = "") -> None:
        self.block, self.part, self.total = block, part, torch.zeros_like(block.scale)

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add squared projections: of all gradients, or of those of the "weight" or "bias" alone."""
        (factor,) = factors
        self.total += squares_in_bases(part_of(factor, self.part) if self.part else factor, *self.block.bases)

    def finish(self, examples: int) -> EigenBlock:
        """Divide by n."""
        return self.block.with_scale(self.total / examples)


def part_of(factor: OuterSum, part: str) -> OuterSum:
    """Gradients of the weight alone, or of the bias alone, from those of both."""
    if part == "bias":
        left = factor.left.sum(3, keepdim=True)
        return OuterSum(left, left.new_ones((1, *left.shape[1:4], 1)), kronecker=factor.kronecker)
    weight = copy(factor)
    weight.bias = False
    return weight


class PMatEKFAC(Refreshed):
    """The diagonal that is optimal in Frobenius norm in KFAC's eigenbasis; its trace is exact.

    `PMatEKFAC.with_options(corrected=False)` keeps KFAC's eigenvalues until `update_diag(data)` is called; the options of
    `PMatKFAC` change the basis.
    """

    @staticmethod
    def plan(
        layout: LayerCollection, factors: dict[Group, OuterSum], **options: Any
    ) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """The basis is KFAC's."""
        return PMatKFAC.plan(layout, factors, **options)

    @classmethod
    def from_rows(cls, rows: Rows, corrected: bool = True, **options: Any) -> PMatEKFAC:
        """KFAC's factors, their eigenbasis, then (unless corrected=False) the second moments in it: two passes."""
        with rows.frozen():
            chunks = rows if corrected else rows.apart()  # the rows themselves are kept for the second pass
            result = cls.from_kfac(PMatKFAC.from_chunks(rows, chunks, **options))
            result._rows, result._options = rows, options
            if options.get("sharing") == "reduce":  # gradients leave the span of the inputs' means
                result._complete_bases()
            if corrected:
                result._correct(rows)
        return result

    @classmethod
    def from_kfac(cls, kfac: PMatKFAC) -> PMatEKFAC:
        """KFAC as an EKFAC that has not been corrected yet: the same matrix."""
        kfac.prepare_spectra()
        blocks: dict[Names, Block] = {names: block.to_eigen() for names, block in kfac.blocks.items()}  # type: ignore[attr-defined]
        return cls(kfac.layout, blocks, examples=kfac.examples, likelihood=kfac.likelihood)

    @classmethod
    def from_factors(
        cls, layout: LayerCollection, factors: Mapping[str, tuple[Tensor, Tensor, Tensor]], **facts: Any
    ) -> PMatEKFAC:
        """From ready (U_A, U_B, scale) by layer name: bases as columns, the bias last in U_A; scale (rows, columns)."""
        kfac = PMatKFAC.from_factors(layout, {layer: (u_a, u_b) for layer, (u_a, u_b, _) in factors.items()})
        blocks: dict[Names, Block] = {}
        for names, block in kfac.blocks.items():
            scale = factors[names[0].rpartition(".")[0]][2]
            blocks[names] = EigenBlock(block.left, block.right, scale[None], block.form)  # type: ignore[attr-defined]
        return cls(layout, blocks, **facts)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMatEKFAC:
        """The eigenbasis of the nearest Kronecker products, with the diagonal of a ready matrix (d, d) in it."""
        from tangentlab.objects.pmat.nearest import flat_block

        result = cls.from_kfac(PMatKFAC.from_dense(layout, matrix, **facts))
        for names, block in result.blocks.items():
            basis = block.spectrum.back(torch.eye(block.dim, dtype=matrix.dtype, device=matrix.device))
            scale = ((basis @ flat_block(layout, matrix, names)) * basis).sum(1)
            result.blocks[names] = block.with_scale(scale.reshape(block.scale.shape))  # type: ignore[attr-defined]
        return result

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMatEKFAC:
        """The diagonal of the exact blocks of H in the eigenbasis of its KFAC, for linear layers applied once per example."""
        from tangentlab.objects.pmat.kronsum import PMatKronSum

        exact = PMatKronSum.from_hessian(hessian, **options)
        result = cls.from_kfac(PMatKFAC.from_sum(exact))
        for names, block in result.blocks.items():
            assert isinstance(block, EigenBlock)
            result.blocks[names] = block.with_scale(exact.blocks[names].diagonal_in(*block.bases)[None])  # type: ignore[attr-defined]
        return result

    def update_diag(self, data: Any = None) -> None:
        """Estimate the second moments anew, keeping the basis: on the same data, or on other data.

        The model may have moved and the data may be other, so thin bases are completed: gradients may leave their span.
        """
        rows = self._rows_of(data)
        self._complete_bases()
        self._correct(rows)

    def _complete_bases(self) -> None:
        self.blocks = {n: b.completed() if isinstance(b, EigenBlock) else b for n, b in self.blocks.items()}

    def _correct(self, rows: Rows) -> None:
        """Second moments in the bases as they are."""
        owner = {name: group for group in rows.groups for name in group.names}
        plan: dict[Names, tuple[tuple[Group, ...], Builder]] = {}
        for names, block in self.blocks.items():
            assert isinstance(block, EigenBlock)
            group = owner[names[0]]
            part = "" if group.names == names else ("weight", "bias")[group.names.index(names[0])]
            plan[names] = ((group,), ScaleBuilder(block, part))
        self.blocks, self.examples = accumulate(rows, lambda factors: plan)
