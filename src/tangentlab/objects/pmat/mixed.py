"""PMatMixed: another kind of block for every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection, covers
from tangentlab.engine.rows import Rows
from tangentlab.errors import InputError, StructureError
from tangentlab.layers import OuterSum
from tangentlab.objects.pmat.base import PMat, Representation
from tangentlab.objects.pmat.block import Block
from tangentlab.objects.pmat.blockwise import BlockwisePMat, Builder, Names, accumulate, groups_by_layer
from tangentlab.objects.pmat.dense import DenseBlock, DenseBuilder, PMatBlockDiag, PMatDense
from tangentlab.objects.pmat.diag import DiagBlock, DiagBuilder, PMatDiag
from tangentlab.objects.pmat.ekfac import PMatEKFAC, ScaleBuilder
from tangentlab.objects.pmat.kfac import PMatKFAC
from tangentlab.objects.pmat.kronecker import EigenBlock, KronBlock, prepare
from tangentlab.objects.pmat.moments import KronBuilder, no_kronecker
from tangentlab.objects.pmat.quasidiag import QUASI_DIAGONAL, PMatQuasiDiag, quasi_plan
from tangentlab.objects.pmat.refreshed import Refreshed

_KRONECKER = (PMatKFAC, PMatEKFAC)


class PMatMixed(Refreshed):
    """KFAC here, dense there, diagonal elsewhere, behind the one interface.

    `PMatMixed.default()` takes KFAC (or EKFAC) where it is defined, else a dense block per layer up to block_limit
    parameters, else the diagonal. `PMatMixed.of({"*.norm*": PMatBlockDiag, "*": PMatKFAC})` chooses by name, the first
    match counts.
    """

    @classmethod
    def default(
        cls,
        block_limit: int = 4096,
        kronecker: type[PMat] = PMatKFAC,
        sharing: str = "expand",
        sua: bool | str = False,
    ) -> Representation:
        """The ready-made choice, to be passed as `representation=`."""
        return cls.with_options(block_limit=block_limit, kronecker=kronecker, sharing=sharing, sua=sua)

    @classmethod
    def of(cls, choice: Mapping[str, type[PMat]], sharing: str = "expand", sua: bool | str = False) -> Representation:
        """Chosen by the name of a parameter or module or a glob; the first that covers a parameter decides."""
        return cls.with_options(choice=dict(choice), sharing=sharing, sua=sua)

    @staticmethod
    def plan(
        layout: LayerCollection,
        factors: dict[Group, OuterSum],
        block_limit: int = 4096,
        kronecker: type[PMat] = PMatKFAC,
        sharing: str = "expand",
        sua: bool | str = False,
        choice: Mapping[str, type[PMat]] | None = None,
    ) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
        """Blocks by kind: Kronecker and diagonal ones per group, dense ones per layer."""
        kinds = {
            group: _chosen(group, choice) if choice else _default_kind(factor, block_limit, kronecker)
            for group, factor in factors.items()
        }
        plan: dict[Names, tuple[tuple[Group, ...], Builder]] = {}
        for group, kind in kinds.items():
            if kind in _KRONECKER:
                if not factors[group].kronecker:
                    raise StructureError(no_kronecker([group]))
                plan[group.names] = ((group,), KronBuilder(group, sharing, sua))
            elif kind is PMatDiag:
                plan[group.names] = ((group,), DiagBuilder())
        dense = [group for group, kind in kinds.items() if kind in (PMatBlockDiag, PMatDense)]
        plan |= {names: (groups, DenseBuilder()) for names, groups in groups_by_layer(layout, dense).items()}
        plan |= quasi_plan(layout, [group for group, kind in kinds.items() if kind is PMatQuasiDiag], "ollivier")
        known = (*_KRONECKER, PMatDiag, PMatBlockDiag, PMatDense, PMatQuasiDiag)
        missing = {kind for kind in kinds.values() if kind not in known}
        if missing:
            raise InputError(f"PMatMixed cannot contain {', '.join(kind.__name__ for kind in missing)}.")
        return plan

    @classmethod
    def from_rows(cls, rows: Rows, **options: Any) -> PMatMixed:
        """One pass, and a second one for EKFAC's second moments where EKFAC was chosen."""
        with rows.frozen():
            result = super().from_rows(rows, **options)
            result._rows, result._options = rows, options
            result.prepare_spectra()
            groups = {group.names: group for group in rows.groups}
            found = result.blocks.items()
            bases = {n: b.to_eigen() for n, b in found if hasattr(b, "to_eigen") and _corrects(n, options)}
            if options.get("sharing") == "reduce":  # gradients leave the span of the inputs' means
                bases = {names: block.completed() for names, block in bases.items()}
            if bases:
                second, _ = accumulate(rows, lambda _: {n: ((groups[n],), ScaleBuilder(b)) for n, b in bases.items()})
                result.blocks |= second
        return result

    def update_diag(self, data: Any = None) -> None:
        """Estimate everything anew but the bases of EKFAC blocks, in one pass: on the same data, or on other data.

        The model may have moved and the data may be other, so thin bases are completed: gradients may leave their span.
        """
        rows = self._rows_of(data)
        kept = {names: block.completed() for names, block in self.blocks.items() if isinstance(block, EigenBlock)}
        groups = {group.names: group for group in rows.groups}

        def plan(factors: dict[Group, OuterSum]) -> dict[Names, tuple[tuple[Group, ...], Builder]]:
            anew = self.plan(self.layout, factors, **self._options)
            return anew | {names: ((groups[names],), ScaleBuilder(block)) for names, block in kept.items()}

        self.blocks, self.examples = accumulate(rows, plan)

    def prepare_spectra(self) -> None:
        """Kronecker factors side by side."""
        prepare([block for block in self.blocks.values() if isinstance(block, KronBlock)])


def _corrects(names: Names, options: dict[str, Any]) -> bool:
    choice = options.get("choice")
    kind = _chosen(Group(names), choice) if choice else options.get("kronecker", PMatKFAC)
    return kind is PMatEKFAC


def _chosen(group: Group, choice: Mapping[str, type[PMat]]) -> type[PMat]:
    for pattern, kind in choice.items():
        if any(covers(pattern, name) for name in group.names):
            return kind
    raise InputError(f"No pattern of PMatMixed.of(...) matches {', '.join(group.names)}; end the choice with '*'.")


def _default_kind(factor: OuterSum, block_limit: int, kronecker: type[PMat]) -> type[PMat]:
    if factor.kronecker:
        return kronecker
    return PMatBlockDiag if factor.numel <= block_limit else PMatDiag


def class_of_blocks(blocks: dict[Names, Block]) -> type[BlockwisePMat]:
    """The representation that a set of blocks makes."""
    kinds = {type(block) for block in blocks.values()}
    if kinds <= {DiagBlock, *QUASI_DIAGONAL} and kinds != {DiagBlock}:
        return PMatQuasiDiag
    by_block = {
        DenseBlock: PMatBlockDiag,
        DiagBlock: PMatDiag,
        KronBlock: PMatKFAC,
        EigenBlock: PMatEKFAC,
    }
    classes = {by_block.get(kind, PMatMixed) for kind in kinds}
    return classes.pop() if len(classes) == 1 else PMatMixed  # type: ignore[return-value]
