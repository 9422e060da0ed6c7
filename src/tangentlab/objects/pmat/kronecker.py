"""Blocks of two sides: a Kronecker product, and a scaling of a Kronecker product's eigenbasis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tangentlab.layers import OuterSum
from tangentlab.layers.contractions import square_sum_of_products
from tangentlab.layers.lookup import LookupSum
from tangentlab.linalg import sym_pow
from tangentlab.objects.pmat.basis import Basis, DenseBasis, IdentityBasis
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.pi import ratio
from tangentlab.objects.pmat.side import DenseSide, Eigen, Side, both, decompose

_CELLS = 1 << 24
"""Numbers that the factors of some examples may take while they are turned."""


class MatrixForm:
    """Between the flat order of a group, weight (groups, rows, columns) then bias, and matrices [W | b].

    inputs_left: the rows belong to the inputs and the columns to the output-gradients (embeddings, transposed convolutions).
    """

    def __init__(self, shape: tuple[int, int, int], bias: bool, inputs_left: bool = False) -> None:
        self.shape, self.bias, self.inputs_left = shape, bias, inputs_left
        groups, rows, columns = shape
        self.weight_size = groups * rows * columns
        self.dim = groups * rows * (columns + bias)

    def to_matrix(self, flat: Tensor) -> Tensor:
        """(B, dim) -> (B, groups, rows, columns + bias)."""
        weight = flat[..., : self.weight_size].unflatten(-1, self.shape)
        if not self.bias:
            return weight
        return torch.cat([weight, flat[..., self.weight_size :].unflatten(-1, (*self.shape[:2], 1))], -1)

    def to_flat(self, matrix: Tensor) -> Tensor:
        """The inverse."""
        if not self.bias:
            return matrix.flatten(-3)
        return torch.cat([matrix[..., :-1].flatten(-3), matrix[..., -1].flatten(-2)], -1)


class KronBlock(Block):
    """F vec(V) = vec(L V R) for sides L (groups, rows, rows) and R (groups, columns', columns'), columns' with the bias.

    Tensors are dense sides; `left` and `right` write the sides out.
    """

    _cached_bases: tuple[Eigen, Eigen]

    def __init__(self, left: Side | Tensor, right: Side | Tensor, form: MatrixForm) -> None:
        first, second = (side if isinstance(side, Side) else DenseSide(side) for side in (left, right))
        self.sides, self.form, self.dim = (first, second), form, form.dim

    @property
    def left(self) -> Tensor:
        """The left side, dense."""
        return self.sides[0].dense()

    @property
    def right(self) -> Tensor:
        """The right side, dense."""
        return self.sides[1].dense()

    def product(self, rows: Tensor) -> Tensor:
        """L V R."""
        left, right = self.sides
        return self.form.to_flat(both(self.form.to_matrix(rows), left.product, right.product))

    @property
    def bases(self) -> tuple[Eigen, Eigen]:
        """Eigenvalues and basis of either side, computed once; thin for thin sides."""
        if "_cached_bases" not in vars(self):
            prepare([self])
        return self._cached_bases

    def to_eigen(self) -> EigenBlock:
        """The same matrix as a scaling of its eigenbasis."""
        (left_values, left), (right_values, right) = self.bases
        return EigenBlock(left, right, left_values[:, :, None] * right_values[:, None, :], self.form)

    def _spectrum(self) -> Spectrum:
        return self.to_eigen().spectrum

    def solve_factored(self, rows: Tensor, damping: float, pi: bool | float = True) -> Tensor:
        """(L + sqrt(damping) / r)^-1 V (R + sqrt(damping) r)^-1; r = pi where the inputs are on the right, else 1 / pi."""
        left_mean, right_mean = (side.traces()[:, None] / side.size for side in self.sides)
        r = ratio(pi, left_mean, right_mean, self.form.inputs_left)
        shifts = damping**0.5 / r, damping**0.5 * r

        def divide(eigen: Eigen, shift: Tensor) -> Callable[[Tensor], Tensor]:
            weights, rest = 1 / (eigen[0] + shift), 1 / shift
            return lambda x: eigen[1].weighted(x, weights[:, None, :], rest[..., None])

        left, right = (divide(eigen, shift) for eigen, shift in zip(self.bases, shifts, strict=True))
        return self.form.to_flat(both(self.form.to_matrix(rows), left, right))

    def trace(self) -> Tensor:
        """sum over groups of tr L tr R."""
        left, right = self.sides
        return (left.traces() * right.traces()).sum()

    def diag(self) -> Tensor:
        """Outer product of the diagonals."""
        left, right = self.sides
        return self.form.to_flat(left.diagonal()[:, :, None] * right.diagonal()[:, None, :])

    def squared_norm(self) -> Tensor:
        """sum over groups of |L|^2 |R|^2."""
        left, right = self.sides
        return (left.squared_norms() * right.squared_norms()).sum()

    def of_spectrum(self, function: Callable[[Tensor], Tensor]) -> EigenBlock:
        """A scaling of the Kronecker eigenbasis."""
        return self.to_eigen().of_spectrum(function)

    def power(self, exponent: float) -> Block:
        """L^p x R^p."""
        left, right = (
            side.of_eigen(sym_pow(values, exponent), basis)
            for side, (values, basis) in zip(self.sides, self.bases, strict=True)
        )
        return KronBlock(left, right, self.form)

    def inverse(self, damping: float) -> Block:
        """A Kronecker product without damping, a scaling of the Kronecker eigenbasis with damping."""
        return self.power(-1) if damping == 0 else self.to_eigen().inverse(damping)

    def parts(self) -> tuple[KronBlock, KronBlock]:
        """The diagonal blocks of the weight and of the bias."""
        (left, right), (groups, rows, columns) = self.sides, self.form.shape
        shapes = (groups, rows, columns), (groups, rows, 1)
        weight, bias = (
            KronBlock(left, part, MatrixForm(shape, bias=False, inputs_left=self.form.inputs_left))
            for part, shape in zip(right.parts(), shapes, strict=True)
        )
        return weight, bias

    def inner(self, other: Block) -> Tensor:
        """sum over groups of <L, L'> <R, R'>."""
        if not isinstance(other, KronBlock) or self.form.shape != other.form.shape:
            return super().inner(other)
        products = [(mine * its).sum((-1, -2)) for mine, its in ((self.left, other.left), (self.right, other.right))]
        return (products[0] * products[1]).sum()

    def scaled(self, factor: Any) -> KronBlock:
        """factor F."""
        return KronBlock(self.sides[0].scaled(factor), self.sides[1], self.form)

    def map(self, function: Callable[[Tensor], Tensor]) -> KronBlock:
        """The same with other sides."""
        return KronBlock(self.sides[0].map(function), self.sides[1].map(function), self.form)

    def tensors(self) -> list[Tensor]:
        """The sides as they are stored."""
        return [tensor for side in self.sides for tensor in side.tensors()]


class EigenBlock(Block):
    """(U_L x U_R) diag(scale) (U_L x U_R)^T for bases U (groups, features, k) and scale (groups, k_L, k_R).

    Bases of sides that were made from few rows are thin (k < features): on those samples the second moments outside are
    exactly zero. `completed` extends them to full bases for anything that reaches outside. Tensors are dense bases.
    """

    def __init__(self, left: Basis | Tensor, right: Basis | Tensor, scale: Tensor, form: MatrixForm) -> None:
        first, second = (basis if isinstance(basis, Basis) else DenseBasis(basis) for basis in (left, right))
        self.bases, self.scale, self.form, self.dim = (first, second), scale, form, form.dim

    @property
    def is_thin(self) -> bool:
        """Whether a basis does not span its whole space."""
        return self.scale.numel() < self.dim

    def completed(self) -> EigenBlock:
        """The same matrix in full bases."""
        if not self.is_thin:
            return self
        left, right = (basis.completed() for basis in self.bases)
        outside = (0, right.kept - self.scale.shape[2], 0, left.kept - self.scale.shape[1])
        return EigenBlock(left, right, torch.nn.functional.pad(self.scale, outside), self.form)

    def _spectrum(self) -> Spectrum:
        (left, right), form, shape = self.bases, self.form, self.scale.shape
        return Spectrum(
            self.scale.flatten(),
            form.dim,
            lambda x: both(form.to_matrix(x), left.into, right.into).flatten(-3),
            lambda y: form.to_flat(both(y.unflatten(-1, shape), left.out_of, right.out_of)),
        )

    def product(self, rows: Tensor) -> Tensor:
        """Into the basis, scale, back."""
        return self.spectrum.apply(rows, self.spectrum.values, 0.0)

    def trace(self) -> Tensor:
        """Sum of the scales."""
        return self.scale.sum()

    def diag(self) -> Tensor:
        """(U_L^2) scale (U_R^2)^T."""
        left, right = self.bases
        return self.form.to_flat(both(self.scale, left.squares_out_of, right.squares_out_of))

    def of_spectrum(self, function: Callable[[Tensor], Tensor]) -> EigenBlock:
        """Other scales in the same bases."""
        return self.with_scale(function(self.scale.flatten()).reshape(self.scale.shape))

    def inverse(self, damping: float) -> Block:
        """1 / (scale + damping), in full bases."""
        return Block.inverse(self.completed() if damping else self, damping)

    def with_scale(self, scale: Tensor) -> EigenBlock:
        """Another scale in the same bases."""
        return EigenBlock(*self.bases, scale, self.form)

    def scaled(self, factor: Any) -> EigenBlock:
        """factor F."""
        return self.with_scale(self.scale * factor)

    def plus(self, other: Block) -> Block | None:
        """Sums in one and the same basis stay in it."""
        return self.with_scale(self.scale + other.scale) if self._has_basis_of(other) else None  # type: ignore[attr-defined]

    def times(self, other: Block) -> Block | None:
        """Products in one and the same basis stay in it."""
        return self.with_scale(self.scale * other.scale) if self._has_basis_of(other) else None  # type: ignore[attr-defined]

    def _has_basis_of(self, other: Block) -> bool:
        same_kind = isinstance(other, EigenBlock)
        return same_kind and all(mine is its for mine, its in zip(self.bases, other.bases, strict=True))  # type: ignore[attr-defined]

    def less_outer(self, vector: Tensor) -> EigenBlock:
        """The second moments without the squared coordinates of v."""
        coordinates = self.spectrum.into(vector[None]).reshape(self.scale.shape)
        return self.with_scale((self.scale - coordinates.square()).clamp_min(0))

    def map(self, function: Callable[[Tensor], Tensor]) -> EigenBlock:
        """The same with other tensors."""
        left, right = (basis.map(function) for basis in self.bases)
        return EigenBlock(left, right, function(self.scale), self.form)

    def tensors(self) -> list[Tensor]:
        """Bases and scale."""
        return [*(tensor for basis in self.bases for tensor in basis.tensors()), self.scale]


def prepare(blocks: list[KronBlock]) -> None:
    """Eigendecompositions of all sides of all blocks, side by side; kept on the blocks."""
    todo = [block for block in blocks if "_cached_bases" not in vars(block)]
    found = iter(decompose([side for block in todo for side in block.sides]))
    for block in todo:
        block._cached_bases = next(found), next(found)


def squares_in_bases(outer: OuterSum, left: Basis, right: Basis) -> Tensor:
    """sum over cotangents and examples of the squared entries of U_L^T gradient U_R, (groups, k_L, k_R).

    By the cheaper order: the factors of T positions turned first, or the finished gradients.
    """
    if isinstance(left, DenseBasis) and isinstance(right, DenseBasis):
        return outer.rotated_square_sum(left.vectors, right.vectors)
    if isinstance(left, IdentityBasis) and isinstance(outer, LookupSum):
        return outer.square_sum_of(right.into(outer.right))
    groups, rows, columns = outer.matrix_shape
    of_factors = outer.positions * (rows * left.cost + columns * right.cost)
    of_gradient = rows * columns * (left.cost + right.cost)
    step = max(1, _CELLS // (groups * max(1, outer.positions) * max(columns, outer.outputs * rows)))
    total: Tensor | None = None
    for start in range(0, outer.examples, step):
        part = outer.take_examples(start, min(start + step, outer.examples))
        squares = _squares(part.left, part.homogeneous(), left, right, of_factors <= of_gradient)
        total = squares if total is None else total.add_(squares)
    assert total is not None, "no examples"
    return total


def _squares(left_rows: Tensor, right_rows: Tensor, left: Basis, right: Basis, factors_first: bool) -> Tensor:
    if left_rows.shape[3] == 1 and 1 in (left_rows.shape[0], right_rows.shape[0]):
        turned = left.into(left_rows), right.into(right_rows)
        return torch.einsum("ngo,ngi->goi", *(side[..., 0, :].square().sum(0) for side in turned))
    if factors_first:
        return square_sum_of_products(left.into(left_rows), right.into(right_rows))
    return square_sum_of_products(left_rows, right_rows, lambda gradient: both(gradient, left.into, right.into))
