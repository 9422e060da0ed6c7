"""Per-example gradients of one group of parameters, kept as sums of outer products.

Every layer with a closed form has per-example gradients of the shape

    grad[k, n, g] = sum_t left[k, n, g, t] right[k, n, g, t]^T            (group, rows, columns)

for cotangent k and example n: `left` are output-gradients and `right` inputs for linear and convolutional layers (one
term per position t), the other way round for embeddings and transposed convolutions, and a vector times 1 for anything
without structure. All that geometry needs (rows of the Jacobian, norms, products, covariances, Gram matrices) is written
once here, on that form, and nothing below ever builds a Jacobian unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tangentlab.layers.contractions import (
    CACHE_BYTES,
    products_by_example,
    products_of_rows,
    square_sum_of_products,
    squared_norms_by_positions,
    sum_of_cotangents,
    turned,
    write_products,
)
from tangentlab.layers.covariance import stacked_rows
from tangentlab.linalg.symmetric import symmetric_product

if TYPE_CHECKING:
    from tangentlab.layers.contractions import Workspace


class OuterSum:
    """Gradients `sum_t left_t right_t^T` of a parameter group, for K cotangents and N examples.

    Parameters
    ----------
    left: (K or 1, N, groups, T, rows). A leading 1 means: the same for every cotangent.
    right: (K or 1, N, groups, T, columns).
    bias: whether the group also holds a bias, i.e. `right` stands for the homogeneous (right; 1). The flat order of the
        group is then: weight (groups, rows, columns) row-major, followed by the bias (groups, rows).
    gradients: the side that carries output-gradients, "left" or "right", or "both" for tied embeddings.
    kronecker: whether a Kronecker approximation (KFAC) is defined for this group.
    """

    def __init__(
        self, left: Tensor, right: Tensor, *, bias: bool = False, gradients: str = "left", kronecker: bool = False
    ) -> None:
        self._left, self._right, self.bias, self.gradients, self.kronecker = left, right, bias, gradients, kronecker

    @classmethod
    def explicit(cls, rows: Tensor, kronecker: bool = False) -> OuterSum:
        """Gradients given as rows (K, N, numel): one term, times 1."""
        left = rows[:, :, None, None, :]
        return cls(left, left.new_ones((1, rows.shape[1], 1, 1, 1)), kronecker=kronecker)

    @property
    def left(self) -> Tensor:
        """Left factors (K or 1, N, groups, T, rows)."""
        return self._left

    @property
    def right(self) -> Tensor:
        """Right factors (K or 1, N, groups, T, columns), without the homogeneous 1."""
        return self._right

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, rows, columns) of the weight, without the bias column."""
        return self.left.shape[2], self.left.shape[-1], self.right.shape[-1]

    @property
    def outputs(self) -> int:
        """K, the number of cotangents."""
        return max(self.left.shape[0], self.right.shape[0])

    @property
    def examples(self) -> int:
        """N."""
        return self.left.shape[1]

    @property
    def positions(self) -> int:
        """T, the number of terms in the sum; 0 where nothing reached the layer."""
        return self.left.shape[3]

    @property
    def numel(self) -> int:
        """Number of parameters in the group."""
        groups, rows, columns = self.matrix_shape
        return groups * rows * (columns + self.bias)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the gradients."""
        return self._right.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self._right.element_size()

    def nbytes(self) -> int:
        """Memory of the factors as they are held (patches of a convolution are not)."""
        return sum(side.numel() * side.element_size() for side in (self._left, self._right))

    @property
    def is_explicit(self) -> bool:
        """True when the rows are there but for one number per example: a weight with one column, one term."""
        return self.positions == 1 and self.matrix_shape[2] == 1 and not self.bias

    @property
    def gradient_factors(self) -> Tensor:
        """The side that carries output-gradients, (K, N, groups, T, O)."""
        return self.left if self.gradients == "left" else self.right

    @property
    def input_factors(self) -> Tensor:
        """The side that carries inputs, (1, N, groups, T, I), without the homogeneous 1."""
        return self.right if self.gradients == "left" else self.left

    def homogeneous(self) -> Tensor:
        """`right` with the column of ones appended when the group has a bias."""
        right = self.right
        return torch.cat([right, right.new_ones((*right.shape[:-1], 1))], -1) if self.bias else right

    def take_examples(self, start: int, stop: int) -> OuterSum:
        """The same for examples start..stop only."""
        sides = self.left[:, start:stop], self.right[:, start:stop]
        return OuterSum(*sides, bias=self.bias, gradients=self.gradients, kronecker=self.kronecker)

    def join_examples(self, others: Sequence[OuterSum]) -> OuterSum | None:
        """One object for the examples of several batches, or None when their positions differ."""
        every = [self, *others]
        if len({(one.matrix_shape, one.bias, one.positions, one.gradients, *_leading(one)) for one in every}) > 1:
            return None
        sides = [torch.cat([getattr(one, side) for one in every], 1) for side in ("left", "right")]
        return OuterSum(*sides, bias=self.bias, gradients=self.gradients, kronecker=self.kronecker)

    def join_positions(self, others: Sequence[OuterSum]) -> OuterSum | None:
        """The sum of gradients of the same examples as more positions, where a subclass has a form of its own for it."""
        return None

    def weight_rows(self) -> Tensor:
        """Per-example weight gradients (K, N, groups, rows, columns). Cost: K N T rows columns."""
        return self.left.transpose(-1, -2) @ self.right

    def weight_row_blocks(self, count: int, workspace: Workspace, name: str) -> Iterator[Tensor]:
        """The same in about `count` blocks of rows or columns; one lies in the workspace until the next is asked for."""
        for left in self.left.split(-(-self.left.shape[-1] // count), -1):
            yield left.transpose(-1, -2) @ self.right

    def rows(self) -> Tensor:
        """Rows of the Jacobian (K, N, numel) in the flat order of the group."""
        weight = self.weight_rows().flatten(2).expand(self.outputs, -1, -1)
        if not self.bias:
            return weight
        return torch.cat([weight, self.left.sum(3).flatten(2).expand(self.outputs, -1, -1)], -1)

    def write_rows(self, out: Tensor, zeros: bool = False) -> None:
        """The same into `out` (K, N, numel), contiguous along its last axis at least, without a copy in between.

        zeros: `out` holds zeros.
        """
        weight, bias = self.split(out)
        if self.positions == 1:
            torch.mul(self.left[..., 0, :, None], self.right[..., 0, None, :], out=weight)
        else:
            write_products(self.left, self.right, weight)
        if bias is not None:
            bias.copy_(self.left.sum(3))

    def split(self, flat: Tensor) -> tuple[Tensor, Tensor | None]:
        """A flat group vector (..., numel) as weight (..., groups, rows, columns) and bias (..., groups, rows)."""
        groups, rows, columns = self.matrix_shape
        size = groups * rows * columns
        weight = flat[..., :size].unflatten(-1, (groups, rows, columns))
        return weight, flat[..., size:].unflatten(-1, (groups, rows)) if self.bias else None

    def push(self, flat: Tensor) -> Tensor:
        """Jacobian-vector product: (numel) -> (K, N). Cost: N T rows columns + K N T rows."""
        weight, bias = self.split(flat)
        image = torch.einsum("kngti,goi->kngto", self.right, weight)
        if bias is not None:
            image = image + bias[:, None, :]
        if image.shape[0] > 1:
            return (self.left * image).sum((2, 3, 4))
        return products_by_example(self.left.flatten(2), image[0].flatten(1))

    def pull(self, weights: Tensor) -> Tensor:
        """Vector-Jacobian product: (K, N) -> (numel)."""
        out = weights.new_empty(self.numel)
        self.pull_into(out, weights)
        return out

    def pull_into(self, out: Tensor, weights: Tensor, add: bool = False) -> None:
        """The same written into `out`, or added to it."""
        left, right = self.left, self.right
        if right.shape[0] == 1:
            left = sum_of_cotangents(left.flatten(2), weights).reshape(1, *left.shape[1:])
        else:
            left = left * weights[:, :, None, None, None]
        weight, bias = self.split(out)
        rows, columns = (side.permute(2, 0, 1, 3, 4).flatten(1, 3) for side in (left, right))
        weight.baddbmm_(rows.transpose(1, 2), columns, beta=int(add))
        if bias is not None:
            sums = left.sum((0, 1, 3))
            bias.copy_(bias + sums if add else sums)

    def square_sum(self) -> Tensor:
        """sum over cotangents and examples of the squared gradient entries, (numel)."""
        if self.positions != 1:
            flat = square_sum_of_products(self.left, self.right).flatten()
            return torch.cat([flat, self.left.sum(3).square().sum((0, 1)).flatten()]) if self.bias else flat
        left, right = self.left[..., 0, :].square(), self.right[..., 0, :].square()
        if right.shape[0] == 1:
            left = left.sum(0, keepdim=True)
        elif left.shape[0] == 1:
            right = right.sum(0, keepdim=True)
        flat = torch.einsum("kngo,kngi->goi", left, right).flatten()
        return torch.cat([flat, left.sum((0, 1)).flatten()]) if self.bias else flat

    def squared_norms(self) -> Tensor:
        """|grad[k, n]|^2, (K, N), at least in float32; for one position |left|^2 |right|^2 without building the gradient.

        Of T positions sum_{t, s} <left_t, left_s> <right_t, right_s> where that is cheaper, T^2 (rows + columns) operations in
        place of T rows columns.
        """
        wide = wide_type(self.left)
        if self.positions == 1:
            left, right = (side.to(wide).square().sum((3, 4)) for side in (self.left, self.right))
            right = right + self.bias
            return (left * right).sum(2).expand(self.outputs, -1)
        if self._positions_are_cheaper() and self.left.dtype == wide:
            squares, reliable = squared_norms_by_positions(self.left, self.right, self.bias)
            if reliable:
                return squares
        return self._squared_norms_of_rows(wide)

    def _positions_are_cheaper(self) -> bool:
        """Whether products of pairs of positions are fewer than those of the gradient."""
        _, rows, columns = self.matrix_shape
        return 0 < self.positions * (rows + columns) < rows * columns

    def _squared_norms_of_rows(self, wide: torch.dtype) -> Tensor:
        """From gradients that are written out a cache at a time."""
        step = max(1, CACHE_BYTES // (self.outputs * self.numel * self.left.element_size()))
        chunks = [self.take_examples(n, min(n + step, self.examples)) for n in range(0, self.examples, step)]
        return torch.cat([torch.linalg.vector_norm(chunk.rows(), dim=2, dtype=wide).square() for chunk in chunks], 1)

    @property
    def is_single_product(self) -> bool:
        """Whether a gradient is one product (output-gradient) (input)^T per example: s = W a, applied once."""
        one = self.positions == 1 and self.matrix_shape[0] == 1 and self.right.shape[0] == 1
        return one and self.kronecker and self.gradients == "left"

    def pixels(self, taps: int) -> Tensor:
        """Pixels of a convolution's input as columns (groups, channels, M); here those of its patches, (channel, tap)."""
        return self.right[0].unflatten(-1, (-1, taps)).permute(1, 3, 0, 2, 4).flatten(2)

    def side_rows(self, side: str, sharing: str) -> Tensor:
        """Factors of one side as rows (groups, M, features); the right side homogeneous.

        `sharing` says how a weight shared over T positions is treated: "expand" keeps all positions (M = K N T); "reduce"
        takes their sum for the gradient side and their mean for the input side (M = K N).
        """
        factors = self.left if side == "left" else self.homogeneous()
        if sharing == "reduce" and self.positions != 1:
            gradient_side = self.gradients in (side, "both")
            factors = factors.sum(3, keepdim=True) / (1 if gradient_side else max(self.positions, 1))
        return stacked_rows(factors)

    def side_rows_count(self, side: str, sharing: str) -> int:
        """M of `side_rows`."""
        carries = self.gradients in (side, "both")
        return (self.outputs if carries else 1) * self.examples * (self.positions if sharing == "expand" else 1)

    def side_covariance(self, side: str, sharing: str) -> Tensor:
        """sum of outer products of those rows, (groups, features, features)."""
        return symmetric_product(self.side_rows(side, sharing).transpose(-1, -2))

    def rotated_square_sum(self, left_basis: Tensor, right_basis: Tensor) -> Tensor:
        """sum over k, n of the squared entries of U_left^T grad[k, n] U_right, (groups, rows, columns + bias).

        For one position this is one product of squared projections and needs no per-example gradient.
        """
        left, right = self.left_in(left_basis), turned(self.homogeneous(), right_basis)
        if self.positions == 1:
            squares = left[..., 0, :].square().sum(0), right[..., 0, :].square().sum(0)
            return torch.einsum("ngo,ngi->goi", *squares)
        return square_sum_of_products(left, right)

    def left_in(self, basis: Tensor) -> Tensor:
        """Left factors in a basis (groups, rows, k), (K or 1, N, groups, T, k)."""
        return turned(self.left, basis)

    def input_codes(self, group: int) -> Tensor:
        """What products of inputs are computed from: the inputs (N, T, I) of one group."""
        return self.input_factors[0, :, group].contiguous()

    def write_input_products(self, one: Tensor, two: Tensor, out: Tensor) -> None:
        """Products of the inputs at positions of two blocks of examples, from their codes, into out (n, T, m, S)."""
        products_of_rows(one, two, out)


def wide_type(tensor: Tensor) -> torch.dtype:
    """The type in which squares are added up: those of half precision leave its range."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _leading(one: OuterSum) -> tuple[int, int]:
    """Cotangents on the left and on the right side, 1 where they are alike."""
    return one.left.shape[0], one.right.shape[0]


def concatenate(terms: Sequence[OuterSum]) -> OuterSum:
    """Gradients of a group used at several places: the sum of its use-sites, cross terms included.

    Sites of the same kind are one site with more positions. Where a side carries gradients at some sites and inputs at
    others (an embedding tied to the output layer), both sides are expanded over the cotangents. Sites that see the weight
    in different shapes (convolutions of other groups) are written out.
    """
    if len(terms) == 1:
        return terms[0]
    if (joined := terms[0].join_positions(terms[1:])) is not None:
        return joined
    if len({(term.matrix_shape, term.bias) for term in terms}) > 1:
        return OuterSum.explicit(torch.stack([term.rows() for term in terms]).sum(0))
    outputs = max(term.outputs for term in terms)
    sides = []
    for side in ("left", "right"):
        parts = [getattr(term, side) for term in terms]
        shared = all(part.shape[0] == 1 for part in parts)
        sides.append(torch.cat([part if shared else part.expand(outputs, -1, -1, -1, -1) for part in parts], 3))
    kinds = {term.gradients for term in terms}
    return OuterSum(
        *sides,
        bias=terms[0].bias,
        gradients=kinds.pop() if len(kinds) == 1 else "both",
        kronecker=len({term.gradients for term in terms}) == 1 and all(term.kronecker for term in terms),
    )
