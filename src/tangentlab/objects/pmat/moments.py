"""Second moments of the two sides of a layer's gradients, summed up over data: what KFAC's sides are made from."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.engine.groups import Group
from tangentlab.errors import InputError, StructureError
from tangentlab.layers import OuterSum
from tangentlab.layers.lookup import LookupSum
from tangentlab.objects.pmat.channels import ChannelSide
from tangentlab.objects.pmat.kronecker import KronBlock, MatrixForm
from tangentlab.objects.pmat.side import DenseSide, DiagonalSide, Side, ThinSide


class SideSum:
    """Accumulates one side over batches: rows while they are few, then their second moment; counts of one-hot vectors."""

    def __init__(self, side: str, sharing: str) -> None:
        self.side, self.sharing = side, sharing
        self._rows: list[Tensor] = []
        self._dense: Tensor | None = None
        self._counts: Tensor | None = None

    def add(self, factor: OuterSum) -> None:
        """Add the factors of a chunk."""
        if isinstance(factor, LookupSum) and (self.side, self.sharing) == ("left", "expand"):
            self._counts = factor.counts() if self._counts is None else self._counts.add_(factor.counts())
            return
        groups, rows, columns = factor.matrix_shape
        features = rows if self.side == "left" else columns + factor.bias
        kept = sum(part.shape[1] for part in self._rows) + factor.side_rows_count(self.side, self.sharing)
        if self._dense is None and groups == 1 and 2 * kept <= features:
            self._rows.append(factor.side_rows(self.side, self.sharing))
            return
        covariance = factor.side_covariance(self.side, self.sharing)
        if self._dense is None:
            self._dense = covariance
            for part in self._rows:
                self._dense += part.transpose(-1, -2) @ part
            self._rows = []
        else:
            self._dense += covariance

    def finish(self, count: int) -> Side:
        """Divided by a count."""
        if self._counts is not None:
            assert self._dense is None and not self._rows, "lookups in some batches only"
            return DiagonalSide(self._counts.div_(count))
        if self._dense is not None:
            return DenseSide(self._dense.div_(count))
        return ThinSide(torch.cat(self._rows, 1) / count**0.5)


class PixelSum:
    """Accumulates mean and second moment of a convolution's pixels, for SUA."""

    def __init__(self, taps: int, centred: bool) -> None:
        self.taps, self.centred, self.bias = taps, centred, False
        self.second: Tensor | float = 0.0
        self.total: Tensor | float = 0.0
        self.pixels = self.positions = 0

    def add(self, factor: OuterSum) -> None:
        """Pixels of the input itself, or of the patches of a module that is used several times."""
        x = factor.pixels(self.taps)
        self.second, self.total = self.second + x @ x.mT, self.total + x.sum(-1)
        self.pixels, self.positions = self.pixels + x.shape[-1], self.positions + factor.examples * factor.positions
        self.bias = factor.bias

    def finish(self, count: int) -> Side:
        """A sums over positions and divides by examples, as that of other layers does."""
        second, mean, positions = self.second / self.pixels, self.total / self.pixels, self.positions / count
        assert isinstance(second, Tensor) and isinstance(mean, Tensor)
        if self.centred:
            return ChannelSide.centred(second, mean, self.taps, self.bias, positions)
        return ChannelSide.plain(positions * second, self.taps, self.bias, positions)


class KronBuilder:
    """Covariances of inputs and of output-gradients.

    "expand": A = 1/n sum_n sum_t a a^T and B = 1/(n T) sum g g^T; "reduce": A of the inputs' mean over positions, B of the
    output-gradients' sum, both divided by n. With SUA, A of a convolution is a `ChannelSide`.
    """

    def __init__(self, group: Group, sharing: str = "expand", sua: bool | str = False) -> None:
        if sharing not in ("expand", "reduce"):
            raise InputError(f"The argument sharing must be 'expand' or 'reduce', not {sharing!r}.")
        if sua not in (False, True, "plain", "centred", "centered"):
            raise InputError(f"The argument sua must be False, True ('plain') or 'centred', not {sua!r}.")
        if sua and sharing != "expand":
            raise InputError("SUA is an approximation of the sharing='expand' factors; leave sharing at its default.")
        self.group, self.sharing = group, sharing
        self.sides: dict[str, SideSum | PixelSum] = {side: SideSum(side, sharing) for side in ("left", "right")}
        taps = group.sites[0].matrix.taps if group.sites else None
        if sua and taps is not None and taps > 1:
            self.sides["right"] = PixelSum(taps, centred=sua in ("centred", "centered"))
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


def no_kronecker(groups: list[Group]) -> str:
    """The message for parameters without Kronecker structure."""
    names = ", ".join(name for group in groups for name in group.names)
    return (
        f"KFAC and EKFAC are not defined for: {names} (norms, tied or bare parameters, recurrent layers, or layers that went "
        "to the exact fallback; tangentlab.coverage says why). Use representation=PMatMixed.default(), which takes a dense "
        "block or a diagonal there, or layers= to leave them out."
    )
