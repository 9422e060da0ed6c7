"""Gram matrices of per-example gradients, K[k, n, l, m] = <grad[k, n], grad'[l, m]>, by the cheapest exact order.

For sums of outer products over positions,

    <grad, grad'> = sum_{t, s} <left_t, left'_s> <right_t, right'_s>,

which can be contracted in different orders; none of them builds a Jacobian over all parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.layers.outer import OuterSum


def gram(first: OuterSum, second: OuterSum) -> Tensor:
    """(K, N, L, M) for one parameter group."""
    if first.positions == 1 and second.positions == 1 and not (first.is_explicit or second.is_explicit):
        return _one_position(first, second)
    return _rows(first, second)


def gram_trace(first: OuterSum, second: OuterSum) -> Tensor:
    """sum_k K[k, n, k, m], (N, M), without the off-diagonal output blocks."""
    one, two = first.rows().transpose(0, 1).flatten(1), second.rows().transpose(0, 1).flatten(1)
    return one @ two.t()


def _one_position(first: OuterSum, second: OuterSum) -> Tensor:
    """Input Gram times output-gradient Gram: N M (I + K L O) operations."""
    left = torch.einsum("kngo,lmgo->gknlm", first.left[..., 0, :], second.left[..., 0, :])
    right = torch.einsum("kngi,lmgi->gknlm", first.right[..., 0, :], second.right[..., 0, :])
    return (left * (right + first.bias)).sum(0).expand(first.outputs, -1, second.outputs, -1)


def _rows(first: OuterSum, second: OuterSum) -> Tensor:
    """Per-example gradients of this group only, contracted."""
    one, two = first.rows(), second.rows()
    return (one.flatten(0, 1) @ two.flatten(0, 1).t()).reshape(*one.shape[:2], *two.shape[:2])
