"""PMatDiag and PMatEye: diagonal matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.objects.pmat.base import PMat
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names

if TYPE_CHECKING:
    from tangentlab.engine.hessian import LossHessian
    from tangentlab.engine.rows import Rows


class DiagBlock(Block):
    """diag(values), values (dim)."""

    stored = ("values",)

    def __init__(self, values: Tensor) -> None:
        self.values, self.dim = values, values.shape[0]

    def product(self, rows: Tensor) -> Tensor:
        """Entrywise."""
        return rows * self.values

    def _spectrum(self) -> Spectrum:
        return Spectrum(self.values, self.dim, lambda x: x, lambda y: y)

    def dense(self) -> Tensor:
        """(dim, dim)."""
        return torch.diag(self.values)

    def diag(self) -> Tensor:
        """The values."""
        return self.values

    def of_spectrum(self, function: Callable[[Tensor], Tensor]) -> DiagBlock:
        """Entrywise."""
        return DiagBlock(function(self.values))

    def plus(self, other: Block) -> Block | None:
        """Diag + Diag."""
        return DiagBlock(self.values + other.values) if isinstance(other, DiagBlock) else None

    def times(self, other: Block) -> Block | None:
        """Diag Diag."""
        return DiagBlock(self.values * other.values) if isinstance(other, DiagBlock) else None

    def less_outer(self, vector: Tensor) -> DiagBlock:
        """The diagonal of F - v v^T."""
        return DiagBlock((self.values - vector.square()).clamp_min(0))

    def inner(self, other: Block) -> Tensor:
        """sum of diagonal products."""
        return (self.values * other.diag()).sum()


class DiagBuilder:
    """Sum of squared gradient entries."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add the squares of a chunk."""
        squares = torch.cat([factor.square_sum() for factor in factors])
        self.total = squares if self.total is None else self.total.add_(squares)

    def finish(self, examples: int) -> DiagBlock:
        """Divide by n."""
        assert self.total is not None
        return DiagBlock(self.total / examples)


class PMatDiag(BlockwisePMat):
    """The exact diagonal; zero elsewhere. Memory, product and solve d."""

    meets_any = True

    @staticmethod
    def plan(layout: LayerCollection, factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """A diagonal per group."""
        return {group.names: ((group,), DiagBuilder()) for group in factors}

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMatDiag:
        """The diagonal of a ready matrix (d, d), or a ready diagonal (d), in flat order."""
        flat = matrix if matrix.ndim == 1 else matrix.diagonal()
        if flat.shape != (layout.numel,):
            raise InputError(f"A diagonal of {layout.numel} entries is expected, got {tuple(matrix.shape)}.")
        return cls(layout, {(n,): DiagBlock(flat[s].clone()) for n, s in layout.slices.items()}, **facts)

    @classmethod
    def from_hessian(cls, hessian: LossHessian, **options: Any) -> PMatDiag:
        """The exact diagonal, by d products: `Hessian(..., PMatImplicit).estimate_diag()` is cheaper."""
        diagonal = torch.cat([block.diagonal() for block in hessian.blocks([(name,) for name in hessian.layout.names])])
        return cls.from_dense(hessian.layout, diagonal, **hessian.facts)

    def block_on(self, names: Names) -> Block:
        """A diagonal can be cut everywhere."""
        return DiagBlock(self._take(self.diag().flat, names))

    def inner(self, other: PMat) -> Tensor:
        """<F, G> needs the diagonal of G only."""
        self._require_same_parameters(other)
        return self.diag().dot(other.diag())


class PMatEye(PMatDiag):
    """The identity (times a factor)."""

    @classmethod
    def from_rows(cls, rows: Rows, **options: Any) -> PMatEye:
        """The nearest multiple of the identity: tr F / d."""
        exact = PMatDiag.from_rows(rows, **options)
        return cls.from_dense(exact.layout, exact.diag().flat, examples=exact.examples, likelihood=exact.likelihood)

    @classmethod
    def from_dense(cls, layout: LayerCollection, matrix: Tensor, **facts: Any) -> PMatEye:
        """The nearest multiple of the identity: the mean of the diagonal."""
        flat = matrix if matrix.ndim == 1 else matrix.diagonal()
        return super().from_dense(layout, flat.mean().expand(flat.shape), **facts)  # type: ignore[return-value]

    def plus(self, other: PMat) -> PMat:
        """A multiple of the identity only with another one."""
        if isinstance(other, PMatEye):
            return super().plus(other)
        return other.plus(PMatDiag(self.layout, self.blocks, examples=self.examples, likelihood=self.likelihood))

    def mm(self, other: PMat) -> PMat:
        """factor G."""
        self._require_same_parameters(other)
        return other.scaled(self._example()[0])

    @classmethod
    def from_model(cls, model: nn.Module, layers: Any = None, factor: float = 1.0) -> PMatEye:
        """factor * I on the parameters of a model."""
        layout = LayerCollection.of(model, layers)
        parameters = layout.parameters(model)
        blocks = {(n,): DiagBlock(torch.full_like(p, factor).detach().flatten()) for n, p in parameters.items()}
        return cls(layout, blocks)  # type: ignore[arg-type]
