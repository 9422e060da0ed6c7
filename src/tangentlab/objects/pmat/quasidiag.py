"""PMatQuasiDiag: the diagonal, and for every bias its covariance with the weights of its row (Ollivier 2015)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group, parameter_groups
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, StructureError
from tangentlab.layers import OuterSum
from tangentlab.objects.pmat.base import Vector, check_damping, refuse_options, require_square
from tangentlab.objects.pmat.block import Block
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names
from tangentlab.objects.pmat.diag import DiagBlock, DiagBuilder
from tangentlab.objects.pmat.nearest import flat_block
from tangentlab.objects.pmat.unit_blocks import ArrowBlock, OllivierBlock, RankOneBlock, UnitBlock
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian

QUASI_DIAGONAL = (OllivierBlock, ArrowBlock, RankOneBlock)
_FORMS = {"ollivier": OllivierBlock, "arrow": ArrowBlock}
_CELLS = 1 << 24


class QuasiDiagBuilder:
    """Sums of squared gradients, and of products of a bias gradient with the weight gradients of its row."""

    def __init__(self, units: int, form: str) -> None:
        self.units, self.kind = units, block_kind(form)
        self.diagonal: Tensor | None = None
        self.cross: Tensor | None = None

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add a chunk: (weight and bias) in one factor, or weight and bias in two."""
        (factor, *rest) = factors
        if factor.bias and factor.positions == 1 and factor.right.shape[0] == 1 and not rest:
            self._include(*_one_position(factor))
            return
        numel = sum(one.numel for one in factors)
        step = max(1, _CELLS // (factor.outputs * numel))
        for start in range(0, factor.examples, step):
            parts = [one.take_examples(start, min(start + step, factor.examples)).rows() for one in factors]
            rows = torch.cat(parts, -1).flatten(0, 1)
            weight, bias = rows[:, : -self.units].unflatten(1, (self.units, -1)), rows[:, -self.units :, None]
            squares = torch.cat([weight.square().sum(0), bias.square().sum(0)], 1)
            self._include(squares, (weight * bias).sum(0))

    def _include(self, diagonal: Tensor, cross: Tensor) -> None:
        self.diagonal = diagonal if self.diagonal is None else self.diagonal.add_(diagonal)
        self.cross = cross if self.cross is None else self.cross.add_(cross)

    def finish(self, examples: int) -> Block:
        """Divide by n."""
        assert self.diagonal is not None and self.cross is not None
        return self.kind(self.diagonal / examples, self.cross / examples)


def _one_position(factor: OuterSum) -> tuple[Tensor, Tensor]:
    """Second moments of one outer product per example: no per-example gradient is built."""
    left, right = factor.left[..., 0, :].square().sum(0), factor.right[0, ..., 0, :]
    weight = torch.einsum("ngo,ngi->goi", left, right.square()).flatten(0, 1)
    cross = torch.einsum("ngo,ngi->goi", left, right).flatten(0, 1)
    return torch.cat([weight, left.sum(0).flatten()[:, None]], 1), cross


def block_kind(form: str) -> type[OllivierBlock] | type[ArrowBlock]:
    """The block of a form."""
    if form not in _FORMS:
        raise InputError(f"The argument form must be 'ollivier' or 'arrow', not {form!r}.")
    return _FORMS[form]  # type: ignore[return-value]


def quasi_plan(
    layout: LayerCollection, groups: Iterable[Group], form: str
) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
    """Weight and bias together where there are both (linear, convolution, norms); the diagonal of everything else."""
    single = {group.names[0]: group for group in groups if len(group.names) == 1}
    plan: dict[Names, tuple[tuple[Group, ...], Builder]] = {}
    for group in groups:
        weight, bias = group.names if len(group.names) == 2 else (group.names[0], _partner(group.names[0], layout))
        units = torch.Size(layout.shapes[bias]).numel() if bias else 0
        if len(group.names) == 2:
            plan[group.names] = ((group,), QuasiDiagBuilder(units, form))
        elif bias in single and layout.shapes[weight] == layout.shapes[bias]:
            plan[(weight, bias)] = ((group, single[bias]), QuasiDiagBuilder(units, form))
    paired = {name for names in plan for name in names}
    return plan | {(name,): ((group,), DiagBuilder()) for name, group in single.items() if name not in paired}


def _partner(weight: str, layout: LayerCollection) -> str:
    """Name of the bias that belongs to a weight, or ''."""
    owner, _, local = weight.rpartition(".")
    bias = f"{owner}.bias" if owner else "bias"
    return bias if local == "weight" and bias in layout else ""


def stored_entries(block: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Diagonal (units, columns + 1) and cross terms (units, columns) of a matrix on a weight, row-major, and its bias."""
    diagonal, cross = block.diagonal(), block[:-units, -units:].unflatten(0, (units, -1))
    entries = torch.cat([diagonal[:-units].unflatten(0, (units, -1)), diagonal[-units:, None]], 1)
    return entries, cross.diagonal(dim1=0, dim2=2).t().contiguous()


class PMatQuasiDiag(BlockwisePMat):
    """The exact diagonal and the exact covariances of each bias with the weights of its row; O(d) for everything.

    These entries can be completed to a matrix in two ways:

    * `form="ollivier"` (default): the positive semi-definite matrix whose inverse is Ollivier's quasi-diagonal inverse. Of
      two weights of a row it keeps the correlation that goes through their bias, c_i c_j / m_0.
    * `form="arrow"`: zero between two weights. This is not positive semi-definite in general, even if F is: `solve` warns
      where it is not, and a step along -solve(gradient) may then go uphill.

    A weight without a trainable bias (and an embedding, a tied or a bare parameter) has its diagonal. Memory below 2 d.
    """

    @staticmethod
    def plan(
        layout: LayerCollection, factors: dict[Group, OuterSum], form: str = "ollivier"
    ) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """A quasi-diagonal block per layer with weight and bias, a diagonal for everything else."""
        return quasi_plan(layout, tuple(factors), form)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, form: str = "ollivier", **facts: Any) -> PMatQuasiDiag:
        """The stored entries of a ready matrix (d, d); rows of a weight are taken along its first axis."""
        require_square(layout, matrix)
        blocks: dict[Names, Block] = {}
        for name in layout.names:
            bias = _partner(name, layout)
            if bias and layout.shapes[bias] in (layout.shapes[name], layout.shapes[name][:1]):
                units, block = torch.Size(layout.shapes[bias]).numel(), flat_block(layout, matrix, (name, bias))
                blocks[(name, bias)] = block_kind(form)(*stored_entries(block, units))
        paired = {name for names in blocks for name in names}
        rest = {(n,): DiagBlock(matrix.diagonal()[s].clone()) for n, s in layout.slices.items() if n not in paired}
        return cls(layout, blocks | rest, **facts)  # type: ignore[arg-type]

    @classmethod
    def from_hessian(cls, hessian: LossHessian, form: str = "ollivier", **options: Any) -> PMatQuasiDiag:
        """The stored entries of H, by one product per parameter and no more memory than the largest layer's block.

        Ollivier's form divides by the second derivative in the bias: where that is zero and the cross terms are not, which
        a positive semi-definite matrix excludes and a Hessian does not, it is not defined and form="arrow" is.
        """
        blocks: dict[Names, Block] = {}
        for names in quasi_plan(hessian.layout, parameter_groups(hessian.network.model, hessian.layout), form):
            (block,) = hessian.blocks([names])
            if len(names) == 1:
                blocks[names] = DiagBlock(block.diagonal().clone())
                continue
            diagonal, cross = stored_entries(block, torch.Size(hessian.layout.shapes[names[1]]).numel())
            if form == "ollivier" and bool(((diagonal[:, -1:] == 0) & (cross != 0)).any()):
                raise StructureError(
                    f"The Hessian has no second derivative in some entries of {names[1]} but cross terms with {names[0]}, "
                    "by which Ollivier's form would have to divide: use PMatQuasiDiag.with_options(form='arrow')."
                )
            blocks[names] = block_kind(form)(diagonal, cross)
        return cls(hessian.layout, blocks, **hessian.facts)

    @classmethod
    def from_factors(
        cls,
        layout: LayerCollection,
        diagonal: PVector,
        cross: Mapping[str, Tensor],
        form: str = "ollivier",
        **facts: Any,
    ) -> PMatQuasiDiag:
        """From a diagonal and, by name of the weight, its covariances with its bias (units, columns)."""
        blocks: dict[Names, Block] = {}
        for name, covariance in cross.items():
            bias = _partner(name, layout)
            if not bias:
                raise InputError(f"{name!r} has no bias in these parameters, so it has no cross terms.")
            entries = torch.cat([diagonal[name].reshape(covariance.shape), diagonal[bias].reshape(-1, 1)], 1)
            blocks[(name, bias)] = block_kind(form)(entries, covariance)
        paired = {name for names in blocks for name in names}
        rest = {(n,): DiagBlock(diagonal[n].flatten()) for n in layout.names if n not in paired}
        return cls(layout, blocks | rest, **facts)  # type: ignore[arg-type]

    def with_form(self, form: str) -> PMatQuasiDiag:
        """The same stored entries completed in the other way."""
        kind = block_kind(form)
        blocks: dict[Names, Block] = {}
        for names, block in self.blocks.items():
            if isinstance(block, RankOneBlock | UnitBlock):
                raise InputError("An inverse has one form only: change the form before inverting.")
            blocks[names] = (
                kind(block.diagonal, block.cross) if isinstance(block, OllivierBlock | ArrowBlock) else block
            )
        return type(self)(self.layout, blocks, examples=self.examples, likelihood=self.likelihood)

    def prepare_spectra(self) -> None:
        """Nothing: damped solves, samples and determinants have closed forms; a spectrum comes when asked for."""

    def solve(
        self, v: Vector, damping: float | None = None, *, regul: float | None = None, reduced: bool = False, **cut: Any
    ) -> Vector:
        """(F + damping I)^-1 v exactly, or with reduced=True Ollivier's inverse of the damped entries.

        reduced: damping is added to the stored diagonal before the matrix is completed, as in Ollivier (2015); with
        m = diagonal + damping, w_i = (v_i - v_b c_i / m_0) / (m_i - c_i^2 / m_0), b = v_b / m_0 - sum_i (c_i / m_0) w_i.
        Without damping both are the same.
        """
        if not reduced:
            return super().solve(v, damping, regul=regul, **cut)
        value = check_damping(damping, regul)
        refuse_options("reduced=True", cut)

        def reduced_solve(block: Block, x: Tensor) -> Tensor:
            return block.solve_reduced(x, value) if isinstance(block, OllivierBlock) else block.solve(x, value)

        return self._on_vectors(v, lambda flat: self._per_block(flat, reduced_solve))
