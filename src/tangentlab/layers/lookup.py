"""Embeddings: gradients of a lookup, kept as indices and output-gradients. One-hot vectors are never written out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tangentlab.layers.contractions import Workspace
from tangentlab.layers.linear import positions_of
from tangentlab.layers.outer import OuterSum, wide_type
from tangentlab.layers.registry import Matrix, register


class LookupSum(OuterSum):
    """`grad = sum_t onehot(index_t) g_t^T`, (1, vocabulary, width), in K N T width numbers and N T indices.

    Args:
        index: (N, T).
        grads: (K, N, T, width).
        vocabulary: number of rows of the table.
        padding: the row that is never trained, if there is one: its one-hot vector is zero.
    """

    def __init__(self, index: Tensor, grads: Tensor, vocabulary: int, padding: int | None = None) -> None:
        super().__init__(index, grads[:, :, None], gradients="right", kronecker=True)
        self.index, self.vocabulary, self.padding = index, vocabulary, padding

    def _with(self, index: Tensor, grads: Tensor) -> LookupSum:
        return LookupSum(index, grads, self.vocabulary, self.padding)

    def _trained(self, rows: Tensor) -> Tensor:
        """Rows (..., N, T, width) with zeros in the place of the padding."""
        return rows if self.padding is None else rows * (self.index != self.padding)[..., None]

    @property
    def left(self) -> Tensor:
        """One-hot vectors (1, N, 1, T, vocabulary): only for those who insist."""
        return self._trained(nn.functional.one_hot(self.index, self.vocabulary).to(self.dtype))[None, :, None]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(1, vocabulary, width)."""
        return 1, self.vocabulary, self.right.shape[-1]

    @property
    def outputs(self) -> int:
        """K."""
        return self.right.shape[0]

    @property
    def examples(self) -> int:
        """N."""
        return self.index.shape[0]

    @property
    def positions(self) -> int:
        """T."""
        return self.index.shape[1]

    def take_examples(self, start: int, stop: int) -> OuterSum:
        """The same for examples start..stop only."""
        return self._with(self.index[start:stop], self.right[:, start:stop, 0])

    def join_examples(self, others: Sequence[OuterSum]) -> OuterSum | None:
        """One object for the examples of several batches, or None when their positions differ."""
        every = [one for one in (self, *others) if isinstance(one, LookupSum)]
        if len(every) <= len(others) or len({(one.positions, one.outputs) for one in every}) > 1:
            return None
        grads = torch.cat([one.right[:, :, 0] for one in every], 1)
        return self._with(torch.cat([one.index for one in every]), grads)

    def join_positions(self, others: Sequence[OuterSum]) -> OuterSum | None:
        """Several lookups in one table: more positions."""
        every = [one for one in (self, *others) if isinstance(one, LookupSum)]
        if len(every) <= len(others):
            return None
        outputs = max(one.outputs for one in every)
        grads = torch.cat([one.right[:, :, 0].expand(outputs, -1, -1, -1) for one in every], 2)
        return self._with(torch.cat([one.index for one in every], 1), grads)

    def weight_rows(self) -> Tensor:
        """(K, N, 1, vocabulary, width)."""
        return self._scattered(self.right.new_zeros((self.outputs, self.examples, *self.matrix_shape)))

    def _scattered(self, out: Tensor, start: int = 0) -> Tensor:
        """Add the gradients of a part of the table to out (K, N, 1, rows, width), whose first row is row `start`."""
        inside = (self.index >= start) & (self.index < start + out.shape[3])
        example, position = inside.nonzero(as_tuple=True)
        row = self.index[example, position] - start
        for one, grads in zip(out[:, :, 0], self._trained(self.right[:, :, 0]), strict=True):
            one.index_put_((example, row), grads[example, position], accumulate=True)
        return out

    def write_rows(self, out: Tensor, zeros: bool = False) -> None:
        """As for any layer."""
        weight, _ = self.split(out if zeros else out.zero_())
        self._scattered(weight)

    def weight_row_blocks(self, count: int, workspace: Workspace, name: str) -> Iterator[Tensor]:
        """The same in blocks of rows of the table."""
        _, rows, width = self.matrix_shape
        step = -(-rows // count)
        for start in range(0, rows, step):
            shape = (self.outputs, self.examples, 1, min(step, rows - start), width)
            yield self._scattered(workspace.take(name, shape, self.right).zero_(), start)

    def push(self, flat: Tensor) -> Tensor:
        """Jacobian-vector product: (numel) -> (K, N)."""
        image = flat.unflatten(0, (self.vocabulary, -1))[self.index]
        return (self._trained(self.right[:, :, 0]) * image).sum((2, 3))

    def pull_into(self, out: Tensor, weights: Tensor, add: bool = False) -> None:
        """Vector-Jacobian product (K, N) -> (numel), written or added to `out`."""
        grads = (self._trained(self.right[:, :, 0]) * weights[:, :, None, None]).sum(0)
        table = (out if add else out.zero_()).unflatten(0, (self.vocabulary, -1))
        table.index_add_(0, self.index.flatten(), grads.flatten(0, 1))

    def _cells(self) -> tuple[Tensor, Tensor]:
        """The pairs (example, row of the table) that occur, as numbers, and the one of every position (N T)."""
        example = torch.arange(self.examples, device=self.index.device)[:, None]
        cells, place = torch.unique(example * self.vocabulary + self.index, return_inverse=True)
        return cells, place.flatten()

    def _in_cells(self, grads: Tensor, count: int, place: Tensor) -> Tensor:
        """Gradients (N, T, width) of one cotangent, summed up by cell."""
        return grads.new_zeros((count, grads.shape[-1])).index_add_(0, place, grads.flatten(0, 1))

    def square_sum_of(self, rotated: Tensor) -> Tensor:
        """sum over k, n of the squared entries of `sum_t onehot(index_t) rotated_t^T`, (1, vocabulary, width).

        rotated: (K, N, 1, T, width), the output-gradients in any basis. Cost: K N T width.
        """
        cells, place = self._cells()
        total = rotated.new_zeros((self.vocabulary, rotated.shape[-1]))
        for one in self._trained(rotated[:, :, 0]):
            total.index_add_(0, cells % self.vocabulary, self._in_cells(one, len(cells), place).square_())
        return total[None]

    def square_sum(self) -> Tensor:
        """sum over cotangents and examples of the squared gradient entries, (numel)."""
        return self.square_sum_of(self.right).flatten()

    def squared_norms(self) -> Tensor:
        """|grad[k, n]|^2, (K, N), at least in float32."""
        cells, place = self._cells()
        trained = self._trained(self.right[:, :, 0])
        wide = wide_type(trained)
        squares = [self._in_cells(one, len(cells), place).to(wide).square().sum(1) for one in trained]
        total = trained.new_zeros((self.outputs, self.examples), dtype=wide)
        return total.index_add_(1, cells // self.vocabulary, torch.stack(squares))

    def counts(self) -> Tensor:
        """sum over examples and positions of onehot(index): the diagonal of the left covariance, (1, vocabulary)."""
        counts = torch.bincount(self.index.flatten(), minlength=self.vocabulary)
        if self.padding is not None:
            counts[self.padding] = 0
        return counts.to(self.dtype)[None]

    def side_covariance(self, side: str, sharing: str) -> Tensor:
        """As for any layer; that of one-hot vectors is diagonal."""
        if side == "left" and (sharing == "expand" or self.positions == 1):
            return torch.diag_embed(self.counts())
        return super().side_covariance(side, sharing)

    def left_in(self, basis: Tensor) -> Tensor:
        """As for any layer: a one-hot vector in a basis is a row of it."""
        return self._trained(basis[0][self.index])[None, :, None]

    def input_codes(self, group: int) -> Tensor:
        """The indices (N, T); not a number where the row is not trained, which equals nothing."""
        codes = self.index.double()
        return codes if self.padding is None else codes.masked_fill(self.index == self.padding, torch.nan)

    def write_input_products(self, one: Tensor, two: Tensor, out: Tensor) -> None:
        """1 where two positions look up the same row."""
        out.copy_(one[:, :, None, None] == two)


def _refuse(module: nn.Module) -> str | None:
    if getattr(module, "scale_grad_by_freq", False):
        return "scale_grad_by_freq rescales gradients by batch counts"
    if getattr(module, "max_norm", None) is not None:
        return "max_norm changes the weight during the forward"
    return None


def _matrix(module: nn.Module, weight: Tensor) -> Matrix:
    return Matrix((1, *weight.shape), "right", one_hot=True)  # type: ignore[arg-type]


@register(nn.Embedding, pointwise=True, features=lambda module: 0, matrix=_matrix, refuse=_refuse)
def embedding(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """Row lookup, inputs (N, ...), grads (K, N, ..., width); the padding row gets no gradient."""
    assert isinstance(module, nn.Embedding)
    index = inputs.reshape(inputs.shape[0], -1).long()
    return LookupSum(index, positions_of(grads)[:, :, 0], module.num_embeddings, module.padding_idx)
