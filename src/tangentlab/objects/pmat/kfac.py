"""PMatKFAC: a Kronecker product per layer (Martens & Grosse 2015; convolutions as in Grosse & Martens 2016)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, SolveError, StructureError
from tangentlab.layers import OuterSum
from tangentlab.linalg import sym_pow
from tangentlab.objects.pmat.base import Vector, check_damping
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names
from tangentlab.objects.pmat.factor import FactorSum, ThinFactor, decompose_factors
from tangentlab.objects.pmat.matrix_form import MatrixForm, balance, kronecker_forms

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian
    from tangentlab.objects.pmat.ekfac import EigenBlock


class KronBlock(Block):
    """F vec(V) = vec(L V R): left (groups, rows, rows), right (groups, columns', columns'), columns' with the bias.

    A factor made from few rows stays thin; `left` and `right` write it out.
    """

    _cached_bases: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    def __init__(self, left: Tensor | ThinFactor, right: Tensor | ThinFactor, form: MatrixForm) -> None:
        self.factors, self.form, self.dim = (left, right), form, form.dim

    @property
    def left(self) -> Tensor:
        """Left factors, dense."""
        return _dense(self.factors[0])

    @property
    def right(self) -> Tensor:
        """Right factors, dense."""
        return _dense(self.factors[1])

    def product(self, rows: Tensor) -> Tensor:
        """L V R."""
        half = _right_product(self.form.to_matrix(rows), self.factors[1])
        return self.form.to_flat(_right_product(half.transpose(-1, -2), self.factors[0]).transpose(-1, -2))

    @property
    def bases(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """((left values (groups, k), left vectors), (right values, right vectors)), computed once; thin for thin factors."""
        if "_cached_bases" not in vars(self):
            decompose([self])
        return self._cached_bases

    def _spectrum(self) -> Spectrum:
        (left_values, left), (right_values, right) = self.bases
        values = left_values[:, :, None] * right_values[:, None, :]
        return kronecker_spectrum(values, left, right, self.form)

    def solve_factored(self, rows: Tensor, damping: float, pi: float | Tensor | None) -> Tensor:
        """(L + sqrt(damping) / pi)^-1 V (R + sqrt(damping) pi)^-1; pi balances the factors by their mean eigenvalue."""
        means = [_traces(factor) / size for factor, size in zip(self.factors, self._features(), strict=True)]
        given = pi if pi is None or not self.form.inputs_left else 1 / pi
        ratio = balance(*means)[:, None] if given is None else given
        root = damping**0.5
        half = _damped_product(self.form.to_matrix(rows), *self.bases[1], root * ratio)
        return self.form.to_flat(
            _damped_product(half.transpose(-1, -2), *self.bases[0], root / ratio).transpose(-1, -2)
        )

    def _features(self) -> tuple[int, int]:
        return self.form.shape[1], self.form.shape[2] + self.form.bias

    def trace(self) -> Tensor:
        """sum over groups of tr L tr R."""
        return (_traces(self.factors[0]) * _traces(self.factors[1])).sum()

    def diag(self) -> Tensor:
        """Outer product of the diagonals."""
        left, right = (_diagonals(factor) for factor in self.factors)
        return self.form.to_flat(left[:, :, None] * right[:, None, :])

    def squared_norm(self) -> Tensor:
        """sum over groups of |L|^2 |R|^2."""
        left, right = (
            factor.squared_norms() if isinstance(factor, ThinFactor) else factor.square().sum((-1, -2))
            for factor in self.factors
        )
        return (left * right).sum()

    def power(self, exponent: float) -> Block:
        """L^p x R^p."""
        powers = [(v * sym_pow(s, exponent)[..., None, :]) @ v.transpose(-1, -2) for s, v in self.bases]
        return KronBlock(powers[0], powers[1], self.form)

    def inverse(self, damping: float) -> Block:
        """A Kronecker product without damping, a scaling of the Kronecker eigenbasis with damping."""
        return self.power(-1) if damping == 0 else self.to_eigen().inverse(damping)

    def to_eigen(self) -> EigenBlock:
        """The same matrix as a scaling of its eigenbasis."""
        from tangentlab.objects.pmat.ekfac import EigenBlock

        return EigenBlock.from_kronecker(self)

    def inner(self, other: Block) -> Tensor:
        """sum over groups of <L, L'> <R, R'>."""
        if not isinstance(other, KronBlock) or self.form.shape != other.form.shape:
            return super().inner(other)
        products = [(mine * its).sum((-1, -2)) for mine, its in ((self.left, other.left), (self.right, other.right))]
        return (products[0] * products[1]).sum()

    def scaled(self, factor: Any) -> KronBlock:
        """factor F."""
        left, right = self.factors
        return KronBlock(left.scaled(factor) if isinstance(left, ThinFactor) else left * factor, right, self.form)

    def map(self, function: Callable[[Tensor], Tensor]) -> KronBlock:
        """The same with other factors."""
        left, right = (f.map(function) if isinstance(f, ThinFactor) else function(f) for f in self.factors)
        return KronBlock(left, right, self.form)

    def tensors(self) -> list[Tensor]:
        """The factors as they are stored."""
        return [factor.rows if isinstance(factor, ThinFactor) else factor for factor in self.factors]


def _dense(factor: Tensor | ThinFactor) -> Tensor:
    return factor.dense() if isinstance(factor, ThinFactor) else factor


def _right_product(matrix: Tensor, factor: Tensor | ThinFactor) -> Tensor:
    return factor.right_product(matrix) if isinstance(factor, ThinFactor) else matrix @ factor


def _damped_product(matrix: Tensor, values: Tensor, vectors: Tensor, damping: float | Tensor) -> Tensor:
    """matrix (A + damping I)^-1 for A = vectors diag(values) vectors^T, null outside the vectors."""
    shift = damping if isinstance(damping, Tensor) else torch.full_like(values[:, :1], damping)
    inside = matrix @ vectors
    if vectors.shape[-1] == vectors.shape[-2]:
        return (inside / (values + shift)[:, None, :]) @ vectors.transpose(-1, -2)
    scale = 1 / (values + shift) - 1 / shift
    return (inside * scale[:, None, :]) @ vectors.transpose(-1, -2) + matrix / shift[..., None]


def _traces(factor: Tensor | ThinFactor) -> Tensor:
    return _diagonals(factor).sum(-1)


def _diagonals(factor: Tensor | ThinFactor) -> Tensor:
    return factor.diagonals() if isinstance(factor, ThinFactor) else factor.diagonal(dim1=-2, dim2=-1)


def kronecker_spectrum(values: Tensor, left: Tensor, right: Tensor, form: MatrixForm) -> Spectrum:
    """F = (left x right) diag(values) (left x right)^T, values (groups, k_left, k_right), null outside thin bases."""
    return Spectrum(
        values.flatten(),
        form.dim,
        lambda x: (left.transpose(-1, -2) @ form.to_matrix(x) @ right).flatten(-3),
        lambda y: form.to_flat(left @ y.unflatten(-1, values.shape) @ right.transpose(-1, -2)),
    )


def decompose(blocks: list[KronBlock]) -> None:
    """Eigendecompositions of all factors, side by side; kept on the blocks."""
    todo = [block for block in blocks if "_cached_bases" not in vars(block)]
    pairs = iter(decompose_factors([factor for block in todo for factor in block.factors]))
    for block in todo:
        block._cached_bases = next(pairs), next(pairs)


class KronBuilder:
    """Covariances of inputs and of output-gradients.

    "expand": A = 1/n sum_n sum_t a a^T and B = 1/(n T) sum g g^T; "reduce": A of the inputs' mean over positions, B of the
    output-gradients' sum, both divided by n.
    """

    def __init__(self, group: Group, sharing: str) -> None:
        if sharing not in ("expand", "reduce"):
            raise InputError(f"sharing must be 'expand' or 'reduce', not {sharing!r}.")
        self.group, self.sharing = group, sharing
        self.sides = {side: FactorSum(side, sharing) for side in ("left", "right")}
        self.form: MatrixForm | None = None
        self.gradients, self.positions = "left", 0

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add a chunk; the input side counts once per batch."""
        (factor,) = factors
        if not factor.kronecker:
            raise StructureError(no_kronecker([self.group]))
        self.form = self.form or MatrixForm(factor.matrix_shape, factor.bias, factor.gradients == "right")
        self.gradients = factor.gradients
        if first:
            self.positions += factor.examples * (factor.positions if self.sharing == "expand" else 1)
        for side, total in self.sides.items():
            if first or side == factor.gradients:
                total.add(factor)

    def finish(self, examples: int) -> KronBlock:
        """Normalize both sides."""
        assert self.form is not None
        counts = {side: max(self.positions, 1) if side == self.gradients else examples for side in self.sides}
        left, right = (total.finish(counts[side]) for side, total in self.sides.items())
        return KronBlock(left, right, self.form)


def kronecker_builder(group: Group, factor: OuterSum, sharing: str, sua: bool | str) -> Builder:
    """What accumulates the factors of a group: channel factors for convolutions under SUA, else plain ones."""
    from tangentlab.objects.pmat.sua import SUABuilder, check_sua, is_sua_layer

    if check_sua(sua, sharing) and is_sua_layer(group):
        return SUABuilder(group, centred=sua in ("centred", "centered"))
    return KronBuilder(group, sharing)


def no_kronecker(groups: list[Group]) -> str:
    """The message for parameters without Kronecker structure."""
    names = ", ".join(name for group in groups for name in group.names)
    return (
        f"KFAC and EKFAC are not defined for: {names} (norms, tied or bare parameters, recurrent layers, or layers that went "
        "to the exact fallback; tangentlab.coverage tells why). Use representation=PMatMixed.default(), which takes a dense "
        "block or a diagonal there, or layers= to leave them out."
    )


class PMatKFAC(BlockwisePMat):
    """F_l ~ A x B for every layer. Memory d_in^2 + d_out^2 per layer, solve by two small eigendecompositions.

    `PMatKFAC.with_options(sharing="reduce")` changes how positions that share a weight are treated;
    `with_options(sua=True)` takes the pixels under a convolution's kernel as uncorrelated, which needs factors of
    channels^2 instead of (channels * taps)^2, and `with_options(sua="centred")` does so for their deviations from the mean.
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
        return {g.names: ((g,), kronecker_builder(g, factor, sharing, sua)) for g, factor in factors.items()}

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

        blocks: dict[Names, Block] = {}
        for names, block in PMatKronSum.from_hessian(hessian).blocks.items():
            right = block.inputs.t() @ block.inputs / hessian.examples  # type: ignore[attr-defined]
            blocks[names] = KronBlock(block.matrices.sum(0)[None], right[None], block.form)  # type: ignore[attr-defined]
        return cls(hessian.layout, blocks, **hessian.facts)

    def prepare_spectra(self) -> None:
        """All eigendecompositions, side by side."""
        decompose([block for block in self.blocks.values() if isinstance(block, KronBlock)])

    def solve(
        self,
        v: Vector,
        damping: float | None = None,
        *,
        regul: float | None = None,
        factored: bool = False,
        pi: float | None = None,
    ) -> Vector:
        """(F + damping I)^-1 v exactly, or with factored=True the cheaper product of damped factors.

        factored: (A + pi sqrt(damping) I)^-1, (B + sqrt(damping) / pi I)^-1, a different matrix, which optimizers use; pi
        defaults to sqrt((tr A / dim A) / (tr B / dim B)) per layer.
        """
        if not factored:
            return super().solve(v, damping, regul=regul)
        value = check_damping(damping, regul)
        if value == 0:
            raise SolveError("The factored form damps each factor: give a damping > 0, or leave factored=True out.")
        self.prepare_spectra()
        return self._on_vectors(
            v,
            lambda flat: self._per_block(flat, lambda block, x: block.solve_factored(x, value, pi)),  # type: ignore[attr-defined]
        )
