"""Representations made of independent blocks: dense, diagonal, block-diagonal, Kronecker, mixed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.engine.network import require_finite
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.objects.matrix_free import Eigenpairs, MatrixFree
from tangentlab.objects.pmat.base import PMat, check_damping
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.rows import RowChunk, Rows

Names = tuple[str, ...]


class Builder(Protocol):
    """Accumulates one block from chunks of rows."""

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add the gradients of the block's groups; `first` marks the first chunk of a batch."""

    def finish(self, examples: int) -> Block:
        """The block, divided by the number of examples."""


class BlockwisePMat(PMat):
    """A matrix that is zero between blocks; `blocks` maps the names of the parameters to the block."""

    shares_between_cotangents = True
    """Whether several cotangents of an example are cheaper together than one by one."""

    def __init__(
        self, layout: LayerCollection, blocks: dict[Names, Block], *, examples: int = 0, likelihood: str = "given"
    ) -> None:
        super().__init__(layout, examples=examples, likelihood=likelihood)
        covered = [name for names in blocks for name in names]
        if sorted(covered) != sorted(layout.names):
            raise InputError("The blocks must cover every parameter of the layout exactly once.")
        self.blocks = blocks

    @staticmethod
    @abstractmethod
    def plan(layout: LayerCollection, factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """Which groups make which block, and how it is accumulated."""

    @classmethod
    def from_rows(cls, rows: Rows, **options: Any) -> Any:
        """One pass over the rows."""
        return cls.from_chunks(rows, rows if cls.shares_between_cotangents else rows.apart(), **options)

    @classmethod
    def from_chunks(cls, rows: Rows, chunks: Iterable[RowChunk], **options: Any) -> Any:
        """The same from the rows in given chunks."""
        blocks, examples = accumulate(chunks, lambda factors: cls.plan(rows.network.layout, factors, **options))
        return cls(rows.network.layout, blocks, examples=examples, likelihood=rows.weighting.name)

    def _take(self, flat: Tensor, names: Names) -> Tensor:
        slices = self.layout.slices
        if all(slices[a].stop == slices[b].start for a, b in zip(names, names[1:], strict=False)):
            return flat[..., slices[names[0]].start : slices[names[-1]].stop]
        return torch.cat([flat[..., slices[name]] for name in names], -1)

    def _assemble(self, parts: Iterable[tuple[Names, Tensor]], like: Tensor) -> Tensor:
        """Put block vectors (..., dim) back into flat order."""
        result = torch.empty_like(like)
        for names, part in parts:
            sizes = [self.layout.slices[name].stop - self.layout.slices[name].start for name in names]
            for name, piece in zip(names, part.split(sizes, -1), strict=True):
                result[..., self.layout.slices[name]] = piece
        return result

    def _per_block(self, flat: Tensor, function: Callable[[Block, Tensor], Tensor]) -> Tensor:
        parts = ((names, function(block, self._take(flat, names))) for names, block in self.blocks.items())
        return self._assemble(parts, flat)

    def _product(self, flat: Tensor) -> Tensor:
        return self._per_block(flat, lambda block, x: block.product(x))

    def _solve(self, flat: Tensor, damping: float) -> Tensor:
        self.prepare_solves()
        return self._per_block(flat, lambda block, x: block.solve(x, damping))

    def _inverse_root(self, flat: Tensor, damping: float) -> Tensor:
        self.prepare_spectra()
        return self._per_block(flat, lambda block, x: block.inverse_root(x, damping))

    def prepare_spectra(self) -> None:
        """Hook: compute all eigendecompositions that will be needed, side by side."""

    def prepare_solves(self) -> None:
        """Hook: what solves need, by default the spectra."""
        self.prepare_spectra()

    def _into_basis(self, flat: Tensor) -> Tensor:
        self.prepare_spectra()

        def into(block: Block, x: Tensor) -> Tensor:
            return torch.nn.functional.pad(block.spectrum.into(x), (0, block.spectrum.complement))

        return self._per_block(flat, into)

    def _out_of_basis(self, flat: Tensor) -> Tensor:
        self.prepare_spectra()
        return self._per_block(flat, lambda b, x: b.spectrum.back(x[..., : x.shape[-1] - b.spectrum.complement]))

    def _spectrum(self) -> Spectrum:
        """Of all blocks side by side; null directions outside of thin bases have coordinates and do not come back."""
        return Spectrum(self.diag_in_eigenbasis().flat, self.dim, self._into_basis, self._out_of_basis)

    def diag_in_eigenbasis(self) -> PVector:
        """The eigenvalues, in the order of the coordinates of `project_to_diag`."""
        self.prepare_spectra()
        like = self._example().new_empty(self.layout.numel)
        parts = ((names, block.spectrum.eigenvalues()) for names, block in self.blocks.items())
        return PVector(self.layout, self._assemble(parts, like))

    def top_eigenpairs(self, k: int = 10, *, which: Any = "top", **options: Any) -> Eigenpairs[PVector]:
        """The k largest (smallest, largest in magnitude) eigenpairs, sorted over all blocks; exact, from their spectra.

        Null directions outside of thin bases, if they are among the wanted ones, are found by Lanczos.
        """
        if k < 1 or which not in ("top", "bottom", "magnitude"):
            raise InputError(
                f"The argument k must be at least 1 and which 'top', 'bottom' or 'magnitude', not {k} and {which!r}."
            )
        values = self.diag_in_eigenbasis().flat
        wanted = {"top": -values, "bottom": values, "magnitude": -values.abs()}[which].argsort(stable=True)[:k]
        units = torch.zeros(len(wanted), self.dim, dtype=values.dtype, device=values.device)
        units[torch.arange(len(wanted)), wanted] = 1
        vectors = self._out_of_basis(units)
        if not bool(vectors.any(1).all()):
            return MatrixFree.top_eigenpairs(self, k, which=which, **options)
        residuals = (self._product(vectors) - values[wanted, None] * vectors).norm(dim=1)
        return Eigenpairs(values[wanted], PVector(self.layout, vectors), residuals, 0, True, "spectra of the blocks")

    def trace(self) -> Tensor:
        """Sum over blocks."""
        return torch.stack([block.trace() for block in self.blocks.values()]).sum()

    def diag(self) -> PVector:
        """The diagonal."""
        like = self._example().new_empty(self.layout.numel)
        return PVector(self.layout, self._assemble(((n, b.diag()) for n, b in self.blocks.items()), like))

    def _frobenius(self) -> Tensor:
        return torch.stack([block.squared_norm() for block in self.blocks.values()]).sum().sqrt()

    def _largest(self) -> Tensor:
        return self.eigvalsh().abs().max()

    def eigvalsh(self) -> Tensor:
        """All eigenvalues, ascending."""
        self.prepare_spectra()
        return torch.cat([block.spectrum.eigenvalues() for block in self.blocks.values()]).sort()[0]

    def logdet(self, damping: float | None = None, *, regul: float | None = None) -> Tensor:
        """log det(F + damping I)."""
        self.prepare_spectra()
        value = check_damping(damping, regul)
        return torch.stack([block.logdet(value) for block in self.blocks.values()]).sum()

    def pow(self, exponent: float) -> PMat:
        """F^exponent, block by block."""
        self.prepare_spectra()
        return self._with_blocks({names: block.power(exponent) for names, block in self.blocks.items()})

    def _of_spectrum(self, function: Callable[[Tensor], Tensor]) -> PMat:
        self.prepare_spectra()
        return self._with_blocks({names: block.of_spectrum(function) for names, block in self.blocks.items()})

    def inverse(self, damping: float | None = None, *, regul: float | None = None) -> PMat:
        """(F + damping I)^-1, block by block."""
        self.prepare_spectra()
        value = check_damping(damping, regul)
        return self._with_blocks({names: block.inverse(value) for names, block in self.blocks.items()})

    def scaled(self, factor: Any) -> PMat:
        """factor F."""
        return self._with_blocks({names: block.scaled(factor) for names, block in self.blocks.items()})

    def plus(self, other: PMat) -> PMat:
        """Blockwise where every block of `other` fits into one of this matrix, else a lazy sum."""
        found = self._paired(other, lambda mine, its: mine.plus(its))
        return found if found is not None else super().plus(other)

    def mm(self, other: PMat) -> Any:
        """F G: blockwise where the blocks commute, else the map v -> F (G v)."""
        self._require_same_parameters(other)
        found = self._paired(other, lambda mine, its: mine.times(its))
        return found if found is not None else super().mm(other)

    def inner(self, other: PMat) -> Tensor:
        """<F, G>, block by block where both have the same blocks."""
        self._require_same_parameters(other)
        if isinstance(other, BlockwisePMat) and set(other.blocks) == set(self.blocks):
            return torch.stack([block.inner(other.blocks[names]) for names, block in self.blocks.items()]).sum()
        return super().inner(other)

    def _paired(self, other: PMat, combine: Callable[[Block, Block], Block | None]) -> PMat | None:
        """Combine block with block; None when the blocks differ or no kind of block can hold the result."""
        if not isinstance(other, BlockwisePMat):
            return None
        blocks = {}
        for names, block in self.blocks.items():
            partner = other.block_on(names)
            result = combine(block, partner) if partner is not None else None
            if result is None:
                return None
            blocks[names] = result
        return self._with_blocks(blocks)

    def block_on(self, names: Names) -> Block | None:
        """The block on exactly these parameters, in this order, if this matrix is zero between them and the others."""
        return self.blocks.get(names)

    def less_outer(self, v: PVector) -> PMat:
        """F - v v^T, or the part of it that the blocks store; with blocks that store none (Kronecker) a lazy difference."""
        from tangentlab.objects.pmat.lowrank import PMatLowRank

        blocks = {n: block.less_outer(self._take(v.flat, n)) for n, block in self.blocks.items()}
        if any(block is None for block in blocks.values()):
            return super().plus(PMatLowRank.from_factors(self.layout, v.flat[None], weights=[-1.0]))
        return self._with_blocks(blocks)  # type: ignore[arg-type]

    def _with_blocks(self, blocks: dict[Names, Block]) -> PMat:
        """A matrix of the class that these blocks make: this one if the kinds are unchanged."""
        from tangentlab.objects.pmat.mixed import class_of_blocks

        kind = type(self)
        if any(type(blocks[names]) is not type(block) for names, block in self.blocks.items()):
            kind = class_of_blocks(blocks)  # type: ignore[assignment]
        return kind(self.layout, blocks, examples=self.examples, likelihood=self.likelihood)

    def _map(self, function: Any) -> Self:
        blocks = {names: block.map(function) for names, block in self.blocks.items()}
        return type(self)(self.layout, blocks, examples=self.examples, likelihood=self.likelihood)

    def tensors(self) -> list[Tensor]:
        """Stored tensors of all blocks."""
        return [tensor for block in self.blocks.values() for tensor in block.tensors()]


def accumulate(
    chunks: Iterable[RowChunk], plan: Callable[[dict[Group, OuterSum]], dict[Names, tuple[tuple[Group, ...], Builder]]]
) -> tuple[dict[Names, Block], int]:
    """Stream the rows through the builders of a plan; blocks and the number of examples seen."""
    builders: dict[Names, tuple[tuple[Group, ...], Builder]] = {}
    examples = 0
    for chunk in chunks:
        builders = builders or plan(chunk.factors)
        for groups, builder in builders.values():
            builder.add([chunk.factors[group] for group in groups], chunk.first)
        examples += chunk.examples * chunk.first
    blocks = {names: builder.finish(examples) for names, (_, builder) in builders.items()}
    for names, block in blocks.items():
        require_finite(block.trace(), f"The gradients or inputs of {', '.join(names)}")
    return blocks, examples


def groups_by_layer(layout: LayerCollection, groups: Iterable[Group]) -> dict[Names, tuple[Group, ...]]:
    """Groups of each module, keyed by the parameter names in flat order."""
    by_layer: dict[str, list[Group]] = {}
    layer_of = {name: layer for layer, names in layout.layers.items() for name in names}
    for group in groups:
        by_layer.setdefault(layer_of[group.names[0]], []).append(group)
    return {tuple(name for group in found for name in group.names): tuple(found) for found in by_layer.values()}
