"""PMatDense and PMatBlockDiag: dense matrices over all parameters, or over those of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.memory import require_memory
from tangentlab.engine.rows import Rows
from tangentlab.layers import OuterSum
from tangentlab.linalg import safe_eigh, safe_eigh_many
from tangentlab.objects.matrix_free import Eigenpairs, MatrixFree
from tangentlab.objects.pmat.base import require_square
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names, groups_by_layer
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian


class DenseBlock(Block):
    """A dense symmetric matrix (dim, dim). Factorizations are kept."""

    stored = ("matrix",)

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.dim = matrix, matrix.shape[0]

    def product(self, rows: Tensor) -> Tensor:
        """x F."""
        return rows @ self.matrix

    def _spectrum(self) -> Spectrum:
        return Spectrum.of_basis(*safe_eigh(self.matrix))

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """Cholesky of F + damping I where that succeeds, kept for the next call; else by the spectrum."""
        factorizes = self.matrix.dtype in (torch.float32, torch.float64)  # half precision has no Cholesky kernel
        if damping > 0 and factorizes and "_cached_spectrum" not in vars(self):
            if vars(self).get("_cached_damping") != damping:
                eye = torch.eye(self.dim, dtype=self.matrix.dtype, device=self.matrix.device)
                self._cached_factor, failed = torch.linalg.cholesky_ex(self.matrix + damping * eye)
                self._cached_damping = None if bool(failed) else damping
            if self._cached_damping is not None:
                return torch.cholesky_solve(rows.t(), self._cached_factor).t()
        return super().solve(rows, damping)

    def dense(self) -> Tensor:
        """The matrix."""
        return self.matrix

    def squared_norm(self) -> Tensor:
        """Sum of squares."""
        return self.matrix.square().sum()

    def plus(self, other: Block) -> Block | None:
        """F + G for any G that is small enough to be written out."""
        return DenseBlock(self.matrix + other.dense())

    def less_outer(self, vector: Tensor) -> DenseBlock:
        """F - v v^T."""
        return DenseBlock(self.matrix - torch.outer(vector, vector))


class DenseBuilder:
    """sum of r r^T over rows of the concatenated groups."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add J^T J of a chunk."""
        rows = torch.cat([factor.rows().flatten(0, 1) for factor in factors], -1)
        if self.total is None:
            self.total = rows.t() @ rows
        else:
            self.total.addmm_(rows.t(), rows)

    def finish(self, examples: int) -> DenseBlock:
        """Divide by n."""
        assert self.total is not None
        return DenseBlock(self.total / examples)


class _DensePMat(BlockwisePMat):
    """What PMatDense and PMatBlockDiag share."""

    def prepare_solves(self) -> None:
        """Nothing: a solve uses Cholesky factors."""

    def prepare_spectra(self) -> None:
        """All eigendecompositions, side by side."""
        blocks = [b for b in self.blocks.values() if isinstance(b, DenseBlock) and "_cached_spectrum" not in vars(b)]
        pairs = safe_eigh_many([block.matrix for block in blocks])
        for block, (values, vectors) in zip(blocks, pairs, strict=True):
            block._cached_spectrum = Spectrum.of_basis(values, vectors)

    def top_eigenpairs(self, k: int = 10, *, which: Any = "top", **options: Any) -> Eigenpairs[PVector]:
        """From the spectrum once it was computed, by Lanczos before."""
        known = all("_cached_spectrum" in vars(block) for block in self.blocks.values())
        return (BlockwisePMat if known else MatrixFree).top_eigenpairs(self, k, which=which, **options)


class PMatDense(_DensePMat):
    """The exact matrix, d x d. Memory d^2, product d^2, solve d^3 / 3 once per damping."""

    @staticmethod
    def plan(layout: LayerCollection, factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """One block over everything."""
        names = tuple(name for group in factors for name in group.names)
        return {names: (tuple(factors), DenseBuilder())}

    @classmethod
    def from_rows(cls, rows: Rows, **options: Any) -> Any:
        """One pass; refuses before any work what would not fit."""
        example = next(iter(rows.network.parameters().values()))
        cls.require_dense_memory(rows.network.layout, example)
        return super().from_rows(rows, **options)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMatDense:
        """From a ready symmetric matrix (d, d) in flat order."""
        require_square(layout, matrix)
        return cls(layout, {layout.names: DenseBlock(matrix)}, **facts)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMatDense:
        """One product per column."""
        return cls.from_dense(hessian.layout, hessian.blocks([hessian.layout.names])[0], **hessian.facts)

    def tensor(self) -> Tensor:
        """The matrix in flat order."""
        ((names, block),) = self.blocks.items()
        if names == self.layout.names:
            return block.dense()
        return super().tensor()


class PMatBlockDiag(_DensePMat):
    """A dense block per layer, zero between layers. Memory and product sum d_l^2, solve sum d_l^3 / 3."""

    @staticmethod
    def plan(layout: LayerCollection, factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """One dense block per module."""
        return {names: (groups, DenseBuilder()) for names, groups in groups_by_layer(layout, factors).items()}

    @classmethod
    def from_rows(cls, rows: Rows, **options: Any) -> Any:
        """One pass; refuses before any work what would not fit."""
        example = next(iter(rows.network.parameters().values()))
        layout = rows.network.layout
        sizes = [sum(torch.Size(layout.shapes[n]).numel() for n in names) for names in layout.layers.values()]
        require_memory(
            sum(size**2 for size in sizes) * example.element_size(),
            f"A dense block per layer (largest layer: {max(sizes):,} parameters)",
            "PMatMixed.default(), PMatKFAC, PMatEKFAC or PMatDiag need far less.",
        )
        return super().from_rows(rows, **options)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMatBlockDiag:
        """The diagonal blocks of a ready matrix (d, d) in flat order."""
        require_square(layout, matrix)
        blocks: dict[Names, Block] = {}
        for names in layout.layers.values():
            index = torch.cat([torch.arange(layout.slices[n].start, layout.slices[n].stop) for n in names])
            blocks[names] = DenseBlock(matrix[index][:, index])
        return cls(layout, blocks, **facts)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMatBlockDiag:
        """One product per column of every layer's block."""
        names = list(hessian.layout.layers.values())
        blocks: dict[Names, Block] = {n: DenseBlock(b) for n, b in zip(names, hessian.blocks(names), strict=True)}
        return cls(hessian.layout, blocks, **hessian.facts)
