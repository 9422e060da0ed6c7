"""Kronecker blocks of convolutions under SUA: small channel factors instead of patch covariances."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Group
from tangentlab.errors import InputError
from tangentlab.layers import OuterSum
from tangentlab.layers.conv import ConvSum
from tangentlab.linalg import safe_eigh_many, sym_pow
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.ekfac import EigenBlock
from tangentlab.objects.pmat.matrix_form import MatrixForm, balance
from tangentlab.objects.pmat.patch_side import PatchBasis, PatchFactor

_CELLS = 1 << 24


class SUABlock(Block):
    """F vec(V) = vec(L V A): left (groups, rows, rows), A a `PatchFactor`. Memory rows^2 + 2 channels^2."""

    def __init__(self, left: Tensor, right: PatchFactor, form: MatrixForm) -> None:
        self.left, self.right, self.form, self.dim = left, right, form, form.dim

    def product(self, rows: Tensor) -> Tensor:
        """L V A."""
        return self.form.to_flat(self.left @ self.right.right_product(self.form.to_matrix(rows)))

    @property
    def bases(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, PatchBasis]]:
        """((left values, left vectors), (right values, right basis)), computed once."""
        if "_cached_bases" not in vars(self):
            pairs = safe_eigh_many(list(self.left))
            left = torch.stack([values for values, _ in pairs]), torch.stack([vectors for _, vectors in pairs])
            self._cached_bases = left, self.right.eigenpairs()
        return self._cached_bases

    def to_eigen(self) -> SUAEigenBlock:
        """The same matrix as a scaling of its eigenbasis."""
        (left_values, left), (right_values, right) = self.bases
        return SUAEigenBlock(left, right, left_values[:, :, None] * right_values[:, None, :], self.form)

    def _spectrum(self) -> Spectrum:
        return self.to_eigen().spectrum

    def solve_factored(self, rows: Tensor, damping: float, pi: float | Tensor | None) -> Tensor:
        """(L + sqrt(damping) / pi)^-1 V (A + sqrt(damping) pi)^-1; pi balances the factors by their mean eigenvalue."""
        (left_values, left), (right_values, right) = self.bases
        means = left_values.mean(-1), self.right.traces() / self.right.size
        ratio = balance(*means)[:, None] if pi is None else pi
        root = damping**0.5
        inner = right.into(left.transpose(-1, -2) @ self.form.to_matrix(rows))
        inner = inner / (left_values + root / ratio)[:, :, None] / (right_values + root * ratio)[:, None, :]
        return self.form.to_flat(left @ right.out_of(inner))

    def trace(self) -> Tensor:
        """sum over groups of tr L tr A."""
        return (self.left.diagonal(dim1=-2, dim2=-1).sum(-1) * self.right.traces()).sum()

    def diag(self) -> Tensor:
        """Outer product of the diagonals."""
        left = self.left.diagonal(dim1=-2, dim2=-1)
        return self.form.to_flat(left[:, :, None] * self.right.diagonals()[:, None, :])

    def squared_norm(self) -> Tensor:
        """sum over groups of |L|^2 |A|^2."""
        return (self.left.square().sum((-1, -2)) * self.right.squared_norms()).sum()

    def power(self, exponent: float) -> SUABlock:
        """L^p x A^p."""
        values, vectors = self.bases[0]
        left = (vectors * sym_pow(values, exponent)[:, None, :]) @ vectors.transpose(-1, -2)
        return SUABlock(left, self.right.power(exponent), self.form)

    def inverse(self, damping: float) -> Block:
        """A Kronecker product without damping, a scaling of the eigenbasis with damping."""
        return self.power(-1) if damping == 0 else self.to_eigen().inverse(damping)

    def scaled(self, factor: Any) -> SUABlock:
        """factor F."""
        return SUABlock(self.left * factor, self.right, self.form)

    def map(self, function: Callable[[Tensor], Tensor]) -> SUABlock:
        """The same with other factors."""
        return SUABlock(function(self.left), self.right.map(function), self.form)

    def tensors(self) -> list[Tensor]:
        """The factors."""
        return [self.left, *self.right.tensors()]


class SUAEigenBlock(EigenBlock):
    """(U_L x U_A) diag(scale) (U_L x U_A)^T with U_A a `PatchBasis`; the scale has the full shape of the weight.

    So every kernel tap keeps its own second moments, although all taps share one channel basis.
    """

    def __init__(self, left: Tensor, right: PatchBasis, scale: Tensor, form: MatrixForm) -> None:
        self.left, self.patches, self.scale, self.form, self.dim = left, right, scale, form, form.dim

    def completed(self) -> SUAEigenBlock:
        """Its bases are full."""
        return self

    def _spectrum(self) -> Spectrum:
        left, patches, form, shape = self.left, self.patches, self.form, self.scale.shape
        return Spectrum(
            self.scale.flatten(),
            form.dim,
            lambda x: patches.into(left.transpose(-1, -2) @ form.to_matrix(x)).flatten(-3),
            lambda y: form.to_flat(patches.out_of(left @ y.unflatten(-1, shape))),
        )

    def diag(self) -> Tensor:
        """(U_L^2) scale (U_A^2)^T."""
        return self.form.to_flat(self.patches.squares_out_of(self.left.square() @ self.scale))

    def _scaled_by(self, scale: Tensor) -> SUAEigenBlock:
        return SUAEigenBlock(self.left, self.patches, scale, self.form)

    def _same_basis(self, other: Block) -> bool:
        return isinstance(other, SUAEigenBlock) and other.left is self.left and other.patches is self.patches

    def square_sum(self, factor: OuterSum) -> Tensor:
        """sum over cotangents and examples of the squared coordinates of the gradients, (groups, rows, columns').

        By the cheaper order: patches and output-gradients turned first, or the finished gradients.
        """
        groups, rows, columns = factor.matrix_shape
        positions, channels = factor.positions, self.patches.channels
        factors_first = positions * (rows**2 + columns * channels) < rows * columns * (rows + channels)
        step = max(1, _CELLS // (groups * columns * max(positions, factor.outputs * rows)))
        total = torch.zeros_like(self.scale)
        for start in range(0, factor.examples, step):
            part = factor.take_examples(start, min(start + step, factor.examples))
            if factors_first:
                left, right = part.left @ self.left, self.patches.into(part.homogeneous())[0]
                for one in left:
                    total += (one.transpose(-1, -2) @ right).square().sum(0)
            else:
                gradients = part.weight_rows()
                if part.bias:
                    gradients = torch.cat([gradients, part.left.sum(3)[..., None]], -1)
                total += self.patches.into(self.left.transpose(-1, -2) @ gradients).square().sum((0, 1))
        return total

    def map(self, function: Callable[[Tensor], Tensor]) -> SUAEigenBlock:
        """The same with other tensors."""
        return SUAEigenBlock(function(self.left), self.patches.map(function), function(self.scale), self.form)

    def tensors(self) -> list[Tensor]:
        """Bases and scale."""
        return [self.left, *self.patches.tensors(), self.scale]


class SUABuilder:
    """Second moments of output-gradients, and mean and second moment of the input's pixels."""

    def __init__(self, group: Group, centred: bool) -> None:
        self.module, self.centred = group.sites[0].module, centred
        assert isinstance(self.module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        self.taps = prod(self.module.kernel_size)
        self.sums: dict[str, Tensor] = {}
        self.form: MatrixForm | None = None
        self.pixels = self.positions = 0

    def _include(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def add(self, factors: list[OuterSum], first: bool) -> None:
        """Add a chunk; the pixels count once per batch."""
        (factor,) = factors
        self.form = self.form or MatrixForm(factor.matrix_shape, factor.bias)
        self._include("left", factor.side_covariance("left", "expand"))
        if first:
            x = self._pixels_of(factor)
            self._include("second", x @ x.transpose(-1, -2))
            self._include("mean", x.sum(-1))
            self.pixels += x.shape[-1]
            self.positions += factor.examples * factor.positions

    def _pixels_of(self, factor: OuterSum) -> Tensor:
        """Pixels as columns (groups, channels, M): of the input itself, or of the patches of a module used several times."""
        if isinstance(factor, ConvSum):
            x = interior(factor.module, factor._right).flatten(2)
            return x.unflatten(1, (factor.module.groups, -1)).permute(1, 2, 0, 3).flatten(2)
        patches = factor.right[0].unflatten(-1, (-1, self.taps))
        return patches.permute(1, 3, 0, 2, 4).flatten(2)

    def finish(self, examples: int) -> SUABlock:
        """Normalize: A sums over positions and divides by examples, as KFAC's does."""
        assert self.form is not None
        second, mean = self.sums["second"] / self.pixels, self.sums["mean"] / self.pixels
        positions = self.positions / examples
        right = PatchFactor.from_pixels(second, mean, self.taps, self.form.bias, positions, self.centred)
        return SUABlock(self.sums["left"] / self.positions, right, self.form)


def interior(module: nn.modules.conv._ConvNd, padded: Tensor) -> Tensor:
    """The input without its padding."""
    pads = module._reversed_padding_repeated_twice
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        place = padded.ndim - 1 - axis
        padded = padded.narrow(place, before, padded.shape[place] - before - after)
    return padded


def is_sua_layer(group: Group) -> bool:
    """Whether SUA says something about a group: the weight of a convolution with more than one tap."""
    module = group.sites[0].module if group.sites else None
    weight = bool(group.sites) and group.sites[0].local[0] == "weight"
    return weight and isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and prod(module.kernel_size) > 1


def check_sua(sua: bool | str, sharing: str) -> bool:
    """Whether SUA is asked for, after checking the options."""
    if sua not in (False, True, "plain", "centred", "centered"):
        raise InputError(f"sua must be False, True ('plain') or 'centred', not {sua!r}.")
    if sua and sharing != "expand":
        raise InputError("SUA is an approximation of the sharing='expand' factors; leave sharing at its default.")
    return bool(sua)
