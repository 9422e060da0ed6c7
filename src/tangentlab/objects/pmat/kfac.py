"""PMatKFAC: a Kronecker product per layer (Martens & Grosse 2015; convolutions as in Grosse & Martens 2016)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, SolveError, StructureError
from tangentlab.layers import OuterSum
from tangentlab.objects.pmat.base import Vector, check_damping, refuse_options
from tangentlab.objects.pmat.block import Block
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names
from tangentlab.objects.pmat.kronecker import KronBlock, MatrixForm, prepare
from tangentlab.objects.pmat.moments import KronBuilder, no_kronecker
from tangentlab.objects.pmat.pi import Pi, check_pi, pi_of

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian
    from tangentlab.engine.rows import RowChunk, Rows
    from tangentlab.objects.pmat.kronsum import PMatKronSum


class PMatKFAC(BlockwisePMat):
    """F_l ~ A x B for every layer. Memory d_in^2 + d_out^2 per layer, solve by two small eigendecompositions.

    `PMatKFAC.with_options(sharing="reduce")` changes how positions that share a weight are treated;
    `with_options(sua=True)` takes the pixels under a convolution's kernel as uncorrelated, which needs factors of
    channels^2 instead of (channels * taps)^2, and `with_options(sua="centred")` does so for their deviations from the mean;
    `with_options(separate_weight_and_bias=True)` leaves out what is between the weight and the bias of a layer.
    """

    shares_between_cotangents = False

    @staticmethod
    def plan(
        layout: LayerCollection, factors: dict[Group, OuterSum], sharing: str = "expand", sua: bool | str = False
    ) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """A Kronecker product per group; refuses parameters without that structure by name."""
        bad = [group for group, factor in factors.items() if not factor.kronecker]
        if bad:
            raise StructureError(no_kronecker(bad))
        return {group.names: ((group,), KronBuilder(group, sharing, sua)) for group in factors}

    @classmethod
    def from_chunks(
        cls, rows: Rows, chunks: Iterable[RowChunk], separate_weight_and_bias: bool = False, **options: Any
    ) -> PMatKFAC:
        """From the rows in given chunks, with a block per layer or one each for weight and bias."""
        result = super().from_chunks(rows, chunks, **options)
        return result.separated() if separate_weight_and_bias else result

    def separated(self) -> PMatKFAC:
        """The diagonal blocks of weights and of biases, A_ww (x) B and A_bb B: zero between them."""
        blocks: dict[Names, Block] = {}
        for names, block in self.blocks.items():
            joint = isinstance(block, KronBlock) and block.form.bias
            blocks |= {(n,): part for n, part in zip(names, block.parts(), strict=True)} if joint else {names: block}  # type: ignore[attr-defined]
        return type(self)(self.layout, blocks, examples=self.examples, likelihood=self.likelihood)

    @classmethod
    def from_factors(
        cls, layout: LayerCollection, factors: Mapping[str, tuple[Tensor, Tensor]], **facts: Any
    ) -> PMatKFAC:
        """From ready (A, B) by layer name: A (columns, columns) with the bias last, B (rows, rows)."""
        blocks: dict[Names, Block] = {}
        for names, form in kronecker_forms(layout).items():
            layer = names[0].rpartition(".")[0]
            if layer not in factors:
                raise InputError(f"No factors for {layer!r}; they are needed for: {', '.join(layout.layers)}.")
            a, b = factors[layer]
            expected = form.shape[2] + form.bias, form.shape[1]
            if (a.shape[-1], b.shape[-1]) != expected:
                raise InputError(f"The factors of {layer!r} must have sizes {expected}, not {(len(a), len(b))}.")
            blocks[names] = KronBlock(b[None], a[None], form)
        return cls(layout, blocks, **facts)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMatKFAC:
        """The nearest Kronecker product to every layer's block of a ready matrix (d, d), in Frobenius norm."""
        from tangentlab.objects.pmat.nearest import flat_block, nearest_kronecker

        blocks: dict[Names, Block] = {}
        for names, form in kronecker_forms(layout).items():
            left, right = nearest_kronecker(flat_block(layout, matrix, names), form)
            blocks[names] = KronBlock(left[None], right[None], form)
        return cls(layout, blocks, **facts)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMatKFAC:
        """mean a a^T (x) mean Hess_s, for linear layers that are applied once per example."""
        from tangentlab.objects.pmat.kronsum import PMatKronSum

        return cls.from_sum(PMatKronSum.from_hessian(hessian, **options))

    @classmethod
    def from_sum(cls, exact: PMatKronSum) -> PMatKFAC:
        """The product of the means of one Kronecker product per example."""
        blocks: dict[Names, Block] = {}
        for names, block in exact.blocks.items():
            right = block.inputs.t() @ block.inputs / exact.examples  # type: ignore[attr-defined]
            blocks[names] = KronBlock(block.matrices.sum(0)[None], right[None], block.form)  # type: ignore[attr-defined]
        return cls(exact.layout, blocks, examples=exact.examples, likelihood=exact.likelihood)

    def prepare_spectra(self) -> None:
        """All eigendecompositions, side by side."""
        prepare([block for block in self.blocks.values() if isinstance(block, KronBlock)])

    def solve(
        self,
        v: Vector,
        damping: float | None = None,
        *,
        regul: float | None = None,
        factored: bool = False,
        pi: Pi | None = None,
        **cut: Any,
    ) -> Vector:
        """(F + damping I)^-1 v exactly, or with factored=True the cheaper product of damped factors.

        factored: (A + pi sqrt(damping) I)^-1, (B + sqrt(damping) / pi I)^-1, a different matrix, which optimizers use.
        pi: True (or None), sqrt((tr A / dim A) / (tr B / dim B)) per layer; a number; or either by layer, as a mapping from
            names or globs, of which the first that covers a parameter of the layer counts. Layers without one have True.
        """
        if not factored:
            return super().solve(v, damping, regul=regul, **cut)
        value = check_damping(damping, regul)
        if value == 0:
            raise SolveError("The factored form damps each factor: give a damping > 0, or leave factored=True out.")
        refuse_options("factored=True", cut)
        given: Pi = True if pi is None else pi
        check_pi(given, self.layout.names)
        self.prepare_spectra()

        def solved(flat: Tensor) -> Tensor:
            own = {names: pi_of(given, names, default=True) for names in self.blocks}
            parts = (
                (names, block.solve_factored(self._take(flat, names), value, own[names]))  # type: ignore[attr-defined]
                for names, block in self.blocks.items()
            )
            return self._assemble(parts, flat)

        return self._on_vectors(v, solved)


def kronecker_forms(layout: LayerCollection) -> dict[tuple[str, ...], MatrixForm]:
    """[W | b] of every layer, from names and shapes alone: rows along the first axis of the weight."""
    forms: dict[tuple[str, ...], MatrixForm] = {}
    for names in layout.layers.values():
        shapes = {name.rpartition(".")[2]: layout.shapes[name] for name in names}
        weight, bias = shapes.get("weight", ()), shapes.get("bias")
        if set(shapes) == {"weight", "bias"} and len(weight) > 1 and bias == weight[:1]:
            ordered = tuple(sorted(names, key=lambda name: name.endswith("bias")))
            forms[ordered] = MatrixForm((1, weight[0], prod(weight[1:])), bias=True)
            continue
        for name in names:
            shape = layout.shapes[name] or (1,)
            forms[(name,)] = MatrixForm((1, shape[0], prod(shape[1:])), bias=False)
    return forms
