"""PMatLowRank: the exact matrix as the rows it is made of; everything about it follows from their Gram matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.rows import Rows
from tangentlab.errors import InputError
from tangentlab.linalg import psd_thin_eigh, safe_eigh
from tangentlab.objects.matrix_free import check_damping
from tangentlab.objects.pmat.base import PMat, require_square
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.blockwise import BlockwisePMat
from tangentlab.objects.pmat.dense import DenseBlock
from tangentlab.objects.pmat.diag import PMatEye

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian


class LowRankBlock(Block):
    """sum_k weights_k r_k r_k^T with rows r (m, dim) and weights (m) of either sign."""

    stored = ("rows", "weights")
    linear = ("weights",)

    def __init__(self, rows: Tensor, weights: Tensor) -> None:
        self.rows, self.weights, self.dim = rows, weights, rows.shape[1]

    def product(self, rows: Tensor) -> Tensor:
        """R^T diag(weights) R x: 4 m dim operations."""
        return ((rows @ self.rows.t()) * self.weights) @ self.rows

    def _spectrum(self) -> Spectrum:
        """From the smaller of R R^T and R^T R; the eigenvectors v = R^T u / sqrt(s) stay unwritten, as products with R.

        With weights of both signs R is first replaced by an orthonormal basis of its range.
        """
        if bool((self.weights < 0).any()):
            basis = psd_thin_eigh(self.rows)[1]
            inside = self.rows @ basis
            values, rotation = safe_eigh((inside.t() * self.weights) @ inside)
            return Spectrum.of_basis(values, basis @ rotation)
        scaled = self.weights.sqrt()[:, None] * self.rows
        if scaled.shape[0] >= self.dim:
            return Spectrum.of_basis(*psd_thin_eigh(scaled))
        values, coefficients = _gram_eigenpairs(scaled)
        coefficients = coefficients * values.rsqrt()
        return Spectrum(
            values, self.dim, lambda x: (x @ scaled.t()) @ coefficients, lambda y: (y @ coefficients.t()) @ scaled
        )

    def trace(self) -> Tensor:
        """sum of weights |r|^2."""
        return (self.weights * self.rows.square().sum(1)).sum()

    def diag(self) -> Tensor:
        """sum of weights r^2."""
        return self.weights @ self.rows.square()

    def squared_norm(self) -> Tensor:
        """|diag(weights) R R^T|^2 in the sense of traces: sum_kl w_k w_l <r_k, r_l>^2."""
        return self.weights @ (self.rows @ self.rows.t()).square() @ self.weights

    def of_spectrum(self, function: Callable[[Tensor], Tensor]) -> LowRankBlock:
        """The eigenvectors as rows, the values as weights."""
        values = function(self.spectrum.values)
        unit = torch.eye(len(values), dtype=values.dtype, device=values.device)
        return LowRankBlock(self.spectrum.back(unit), values)

    def inverse(self, damping: float) -> Block:
        """The pseudo-inverse; with damping dense, since it has full rank: `PMatLowRank.inverse` keeps it as a sum."""
        return DenseBlock(self.dense()).inverse(damping) if damping else self.power(-1)

    def plus(self, other: Block) -> Block | None:
        """The rows of both."""
        if not isinstance(other, LowRankBlock):
            return None
        return LowRankBlock(torch.cat([self.rows, other.rows]), torch.cat([self.weights, other.weights]))

    def less_outer(self, vector: Tensor) -> LowRankBlock:
        """One more row, of weight -1."""
        return LowRankBlock(torch.cat([self.rows, vector[None]]), torch.cat([self.weights, -self.weights.new_ones(1)]))

    def inner(self, other: Block) -> Tensor:
        """sum of weights r^T G r."""
        return (self.weights * (self.rows * other.product(self.rows)).sum(1)).sum()


def _gram_eigenpairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Nonzero eigenpairs of R R^T; formed in float64, since a Gram matrix squares the condition number."""
    working = rows.detach().double()
    values, vectors = safe_eigh(working @ working.t())
    keep = values > torch.finfo(rows.dtype).eps * len(rows) * values[-1:].clamp_min(0)
    return values[keep].to(rows.dtype), vectors[:, keep].to(rows.dtype)


class PMatLowRank(BlockwisePMat):
    """F = sum_k weights_k r_k r_k^T, exact, as rows (m, d): m = n c for a Fisher over n examples and c outputs.

    Memory m d. Product 4 m d. Solve by the m x m Gram matrix, (F + l I)^-1 v = V (s + l)^-1 V^T v + (v - V V^T v) / l: the
    part of v outside the span of the rows counts. Without damping the pseudo-inverse.
    `PMatLowRank.with_options(rank=k)` keeps the k leading eigenpairs only.
    """

    meets_any = True

    @staticmethod
    def plan(layout: LayerCollection, factors: Any) -> Any:
        """Not used: the rows are stored as they come."""
        raise AssertionError("PMatLowRank stores rows and accumulates nothing.")

    @classmethod
    def from_rows(cls, rows: Rows, rank: int | None = None, **options: Any) -> PMatLowRank:
        """All rows, after checking that they fit; or the leading eigenpairs of them."""
        from tangentlab.objects.maps import PushForwardDense

        data = PushForwardDense.from_rows(rows).data
        facts = {"examples": data.shape[1], "likelihood": rows.weighting.name}
        result = cls.from_factors(rows.network.layout, data.flatten(0, 1), weights=1 / data.shape[1], **facts)
        return result if rank is None else result.truncated(rank)

    @classmethod
    def from_factors(
        cls, layout: LayerCollection, rows: Tensor, weights: float | Sequence[float] | Tensor = 1.0, **facts: Any
    ) -> PMatLowRank:
        """sum of weights r r^T over rows (m, d) in flat order; weights are one number or (m)."""
        if rows.ndim != 2 or rows.shape[1] != layout.numel:
            raise InputError(f"Rows (m, {layout.numel}) are expected, got shape {tuple(rows.shape)}.")
        weight = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device).expand(rows.shape[:1]).contiguous()
        return cls(layout, {layout.names: LowRankBlock(rows, weight)}, **facts)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, rank: int | None = None, **facts: Any) -> PMatLowRank:
        """The eigenpairs of a ready matrix (d, d): all that are not zero, or the `rank` largest in magnitude."""
        require_square(layout, matrix)
        values, vectors = safe_eigh(matrix)
        order = values.abs().argsort(descending=True)[:rank]
        order = order[values[order].abs() > torch.finfo(values.dtype).eps * len(values) * values.abs().max()]
        return cls.from_factors(layout, vectors[:, order].t().contiguous(), weights=values[order], **facts)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, rank: int = 20, **options: Any) -> PMatLowRank:
        """The eigenpairs of largest magnitude, by Lanczos on Hessian-vector products."""
        from tangentlab.objects.pmat.hessian import PMatImplicitHessian

        pairs = PMatImplicitHessian(hessian).top_eigenpairs(rank, which="magnitude")
        return cls.from_factors(hessian.layout, pairs.vectors.flat, weights=pairs.values, **hessian.facts)

    @property
    def block(self) -> LowRankBlock:
        """The one block over all parameters."""
        (block,) = self.blocks.values()
        assert isinstance(block, LowRankBlock)
        return block

    @property
    def rank(self) -> int:
        """Numerical rank."""
        return len(self.block.spectrum.values)

    def truncated(self, rank: int) -> PMatLowRank:
        """The `rank` eigenpairs of largest magnitude."""
        full = self.block.of_spectrum(lambda values: values)
        keep = full.weights.abs().argsort(descending=True)[:rank]
        return self._with_blocks({self.layout.names: LowRankBlock(full.rows[keep], full.weights[keep])})  # type: ignore[return-value]

    def inverse(self, damping: float | None = None, *, regul: float | None = None) -> PMat:
        """(F + damping I)^-1 = I / damping + a matrix of low rank; the pseudo-inverse without damping."""
        value = check_damping(damping, regul)
        if value == 0:
            return super().inverse()
        eye = PMatEye.from_dense(self.layout, self.block.weights.new_full((self.dim,), 1 / value))
        inside = self.block.of_spectrum(lambda values: 1 / (values + value) - 1 / value)
        return PMat.plus(eye, PMatLowRank(self.layout, {self.layout.names: inside}))

    def inner(self, other: PMat) -> Tensor:
        """<F, G> = sum of weights r^T G r, by products with G."""
        self._require_same_parameters(other)
        return (self.block.weights * (self.block.rows * other._product(self.block.rows)).sum(1)).sum()
