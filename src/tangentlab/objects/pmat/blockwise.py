"""Representations made of independent blocks: dense, diagonal, block-diagonal, Kronecker, mixed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.objects.pmat.base import PMat, check_damping
from tangentlab.objects.pmat.block import Block
from tangentlab.objects.pvector import PVector

if TYPE_CHECKING:
    from tangentlab.engine.rows import Rows

Names = tuple[str, ...]


class Builder(Protocol):
    """Accumulates one block from chunks of rows."""

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add the gradients of the block's groups; `first` marks the first chunk of a batch."""

    def finish(self, examples: int) -> Block:
        """The block, divided by the number of examples."""


class BlockwisePMat(PMat):
    """A matrix that is zero between blocks; `blocks` maps the names of the parameters to the block."""

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
        blocks, examples = accumulate(rows, lambda factors: cls.plan(rows.network.layout, factors, **options))
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
        self.prepare_spectra()
        return self._per_block(flat, lambda block, x: block.solve(x, damping))

    def _inverse_root(self, flat: Tensor, damping: float) -> Tensor:
        self.prepare_spectra()
        return self._per_block(flat, lambda block, x: block.spectrum.inverse_root(x, damping))

    def prepare_spectra(self) -> None:
        """Hook: compute all eigendecompositions that solves will need, side by side."""

    def trace(self) -> Tensor:
        """Sum over blocks."""
        return torch.stack([block.trace() for block in self.blocks.values()]).sum()

    def diag(self) -> PVector:
        """The diagonal."""
        like = self._example().new_empty(self.layout.numel)
        return PVector(self.layout, self._assemble(((n, b.diag()) for n, b in self.blocks.items()), like))

    def norm(self) -> Tensor:
        """Frobenius norm."""
        return torch.stack([block.squared_norm() for block in self.blocks.values()]).sum().sqrt()

    def eigvalsh(self) -> Tensor:
        """All eigenvalues, ascending."""
        self.prepare_spectra()
        return torch.cat([block.spectrum.eigenvalues() for block in self.blocks.values()]).sort()[0]

    def logdet(self, damping: float | None = None, *, regul: float | None = None) -> Tensor:
        """log det(F + damping I)."""
        self.prepare_spectra()
        value = check_damping(damping, regul)
        return torch.stack([block.spectrum.logdet(value) for block in self.blocks.values()]).sum()

    def pow(self, exponent: float) -> PMat:
        """F^exponent, block by block."""
        self.prepare_spectra()
        return self._with_blocks({names: block.power(exponent) for names, block in self.blocks.items()})

    def inverse(self, damping: float | None = None, *, regul: float | None = None) -> PMat:
        """(F + damping I)^-1, block by block."""
        self.prepare_spectra()
        value = check_damping(damping, regul)
        return self._with_blocks({names: block.inverse(value) for names, block in self.blocks.items()})

    def scaled(self, factor: Any) -> PMat:
        """factor F."""
        return self._with_blocks({names: block.scaled(factor) for names, block in self.blocks.items()})

    def plus(self, other: PMat) -> PMat:
        """Blockwise where both have the same blocks of the same kind, else a lazy sum."""
        if isinstance(other, BlockwisePMat) and set(other.blocks) == set(self.blocks):
            sums = {names: block.plus(other.blocks[names]) for names, block in self.blocks.items()}
            if all(block is not None for block in sums.values()):
                return self._with_blocks(sums)  # type: ignore[arg-type]
        return super().plus(other)

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
    rows: Rows, plan: Callable[[dict[Group, OuterSum]], dict[Names, tuple[tuple[Group, ...], Builder]]]
) -> tuple[dict[Names, Block], int]:
    """Stream the rows through the builders of a plan; blocks and the number of examples seen."""
    builders: dict[Names, tuple[tuple[Group, ...], Builder]] = {}
    examples = 0
    for chunk in rows:
        builders = builders or plan(chunk.factors)
        for groups, builder in builders.values():
            builder.add([chunk.factors[group] for group in groups], chunk.first)
        examples += chunk.examples * chunk.first
    return {names: builder.finish(examples) for names, (_, builder) in builders.items()}, examples


def groups_by_layer(layout: LayerCollection, groups: Iterable[Group]) -> dict[Names, tuple[Group, ...]]:
    """Groups of each module, keyed by the parameter names in flat order."""
    by_layer: dict[str, list[Group]] = {}
    layer_of = {name: layer for layer, names in layout.layers.items() for name in names}
    for group in groups:
        by_layer.setdefault(layer_of[group.names[0]], []).append(group)
    return {tuple(name for group in found for name in group.names): tuple(found) for found in by_layer.values()}
