"""Embeddings without one-hot vectors: gradients of a lookup, kept as indices and output-gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tangentlab.layers import OuterSum


class LookupSum(OuterSum):
    """`grad = sum_t onehot(index_t) g_t^T`, (1, vocabulary, width), with the one-hot vectors never written out.

    Args:
        index: (N, T).
        grads: (K, N, T, width).
        vocabulary: number of rows of the table.
        padding: the row that is never trained, if there is one.
    """

    def __init__(self, index: Tensor, grads: Tensor, vocabulary: int, padding: int | None = None) -> None:
        super().__init__(index, grads[:, :, None], gradients="right", kronecker=True)
        self.index, self.vocabulary, self.padding = index, vocabulary, padding

    @classmethod
    def of(cls, module: nn.Embedding, inputs: Tensor, grads: Tensor) -> LookupSum:
        """From indices (N, ...) and output-gradients (K, N, ..., width)."""
        index = inputs.reshape(inputs.shape[0], -1)
        grads = grads.reshape(*grads.shape[:2], -1, grads.shape[-1])
        return cls(index, grads, module.num_embeddings, module.padding_idx)

    @staticmethod
    def concatenate(terms: Sequence[LookupSum]) -> LookupSum:
        """Several lookups in one table: more positions."""
        if len(terms) == 1:
            return terms[0]
        grads = torch.cat([term.right[:, :, 0] for term in terms], 2)
        return LookupSum(torch.cat([term.index for term in terms], 1), grads, terms[0].vocabulary, terms[0].padding)

    def _trained(self, rows: Tensor) -> Tensor:
        """Rows (..., N, T, width) without those of the padding."""
        return rows if self.padding is None else rows * (self.index != self.padding)[..., None]

    @property
    def left(self) -> Tensor:
        """One-hot vectors (1, N, 1, T, vocabulary): only for those who insist."""
        onehot = nn.functional.one_hot(self.index, self.vocabulary).to(self.right.dtype)[None, :, None]
        if self.padding is not None:
            onehot[..., self.padding] = 0
        return onehot

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

    def counts(self) -> Tensor:
        """sum over examples and positions of onehot(index): the diagonal of the left covariance, (1, vocabulary)."""
        counts = torch.bincount(self.index.flatten(), minlength=self.vocabulary)
        if self.padding is not None:
            counts[self.padding] = 0
        return counts.to(self.right.dtype)[None]

    def square_sum_of(self, rotated: Tensor) -> Tensor:
        """sum over k, n of the squared entries of `sum_t onehot(index_t) rotated_t^T`, (1, vocabulary, width).

        rotated: (K, N, 1, T, width), the output-gradients in any basis. Cost: K N T width.
        """
        example = torch.arange(self.examples, device=self.index.device)[:, None]
        cells, place = torch.unique(example * self.vocabulary + self.index, return_inverse=True)
        total = rotated.new_zeros((self.vocabulary, rotated.shape[-1]))
        for one in self._trained(rotated[:, :, 0]):
            summed = one.new_zeros((len(cells), one.shape[-1])).index_add_(0, place.flatten(), one.flatten(0, 1))
            total.index_add_(0, cells % self.vocabulary, summed.square_())
        return total[None]

    def square_sum(self) -> Tensor:
        """sum over cotangents and examples of the squared gradient entries, (numel)."""
        return self.square_sum_of(self.right).flatten()

    def push(self, flat: Tensor) -> Tensor:
        """Jacobian-vector product: (numel) -> (K, N)."""
        image = flat.unflatten(0, (self.vocabulary, -1))[self.index]
        return (self._trained(self.right[:, :, 0]) * image).sum((2, 3))

    def pull(self, weights: Tensor) -> Tensor:
        """Vector-Jacobian product: (K, N) -> (numel)."""
        grads = (self._trained(self.right[:, :, 0]) * weights[:, :, None, None]).sum(0)
        table = grads.new_zeros((self.vocabulary, grads.shape[-1]))
        return table.index_add_(0, self.index.flatten(), grads.flatten(0, 1)).flatten()
