"""Contractions of factors over examples, cotangents and positions, a cache at a time, and the memory that they work in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tangentlab.layers.covariance import stacked_rows
from tangentlab.linalg.symmetric import symmetric_product

CACHE_BYTES = 4 << 20
"""Bytes of gradients at a time, where each is used up at once."""
_SQUARES_BYTES = 1 << 20
"""The same where they are squared: beyond the cache of one core they take up to a fifth longer."""
_CANCELLED = 100
"""How much larger than their sum terms may be whose rounding does not show in it."""
_LONG = 1 << 12
"""Length from which a matrix-vector product per example costs less than products of whole cotangents."""


class Workspace:
    """Memory for intermediate results, used again from layer to layer: fresh pages cost as much as the work done in them.

    limit: bytes that the rows of a layer may take at once.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialized tensor; the last one taken under the same name is overwritten."""
        numel = torch.Size(shape).numel()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < numel or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[name] = like.new_empty(numel)
        return buffer[:numel].view(shape)


def products_of_rows(one: Tensor, two: Tensor, out: Tensor) -> None:
    """<one[i, t], two[j, s]> of (n, T, d) and (m, S, d) into out (n, T, m, S)."""
    left, right, matrix = one.flatten(0, 1), two.flatten(0, 1), out.flatten(0, 1).flatten(1)
    if one is two:
        symmetric_product(left, out=matrix.zero_())
    else:
        torch.mm(left, right.t(), out=matrix)


def products_by_example(rows: Tensor, vectors: Tensor) -> Tensor:
    """<rows[k, n], vectors[n]>, (K, N, F) and (N, F) -> (K, N); by parts where the whole would leave the cache."""
    if rows.numel() * rows.element_size() <= CACHE_BYTES:
        return torch.linalg.vecdot(rows, vectors)
    if len(rows) < rows.shape[1] and rows.shape[2] < _LONG:
        return torch.stack([torch.linalg.vecdot(one, vectors) for one in rows])
    return torch.stack([own @ vector for own, vector in zip(rows.unbind(1), vectors, strict=True)], 1)


def sum_of_cotangents(rows: Tensor, weights: Tensor) -> Tensor:
    """sum over k of weights[k, n] rows[k, n], (K or 1, N, F) and (K, N) -> (N, F); by cotangents in the same way."""
    if len(rows) == 1:
        return rows[0] * weights.sum(0)[:, None]
    if rows.numel() * rows.element_size() <= CACHE_BYTES:
        return (rows * weights[..., None]).sum(0)
    total = rows[0] * weights[0, :, None]
    for one, weight in zip(rows[1:], weights[1:], strict=True):
        total.addcmul_(one, weight[:, None])
    return total


def write_products(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left[k, n]^T right[k, n] of (K or 1, N, groups, T, rows or columns) into out (K, N, groups, rows, columns)."""
    for k, target in enumerate(out):
        one, other = left[min(k, left.shape[0] - 1)], right[min(k, right.shape[0] - 1)]
        for g in range(out.shape[2]):
            torch.bmm(one[:, g].mT, other[:, g], out=target[:, g])


def squared_norms_by_positions(left: Tensor, right: Tensor, bias: bool) -> tuple[Tensor, bool]:
    """sum_{t, s} <left_t, left_s> (<right_t, right_s> + bias) of factors (K or 1, N, groups, T, ...), (K, N), some at a time.

    Also whether it is reliable: where gradients cancel over positions, so do these terms, with the square of the rounding.
    """
    (cotangents, examples), positions = torch.broadcast_shapes(left.shape[:2], right.shape[:2]), left.shape[3]
    step = max(1, CACHE_BYTES // (left.shape[2] * positions**2 * left.element_size()))
    squares, sizes = left.new_empty((2, cotangents, examples))
    for k in range(cotangents):
        one, other = left[min(k, left.shape[0] - 1)], right[min(k, right.shape[0] - 1)]
        for start in range(0, examples, step):
            some = slice(start, start + step)
            terms = (one[some] @ one[some].mT).mul_((other[some] @ other[some].mT).add_(int(bias)))
            squares[k, some], sizes[k, some] = terms.sum((1, 2, 3)), terms.abs_().sum((1, 2, 3))
    return squares, bool((sizes <= _CANCELLED * squares).all())


def turned(factors: Tensor, basis: Tensor) -> Tensor:
    """Factors (K, N, groups, T, features) in a basis (groups, features, k), by one product per group."""
    product = torch.bmm(stacked_rows(factors), basis)
    sizes = (*factors.shape[:2], factors.shape[3])
    return product.unflatten(1, sizes).permute(1, 2, 0, 3, 4)


def square_sum_of_products(left: Tensor, right: Tensor, turn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """sum over k, n of the squared entries of left[k, n]^T right[k, n], (groups, rows, columns).

    As many examples at a time as fill the cache: in memory their gradients would cost four times as much (measured).

    Args:
        left: (K or 1, N, groups, T, rows).
        right: (K or 1, N, groups, T, columns).
        turn: applied to the gradients (n, groups, rows, columns) before they are squared.
    """
    groups, rows, columns = left.shape[2], left.shape[-1], right.shape[-1]
    block = max(1, _SQUARES_BYTES // (groups * columns * left.element_size()))
    if turn is None and rows > block:
        return torch.cat([square_sum_of_products(part, right) for part in left.split(block, -1)], 1)
    step = max(1, _SQUARES_BYTES // (groups * rows * columns * left.element_size()))
    products = left.new_empty((min(step, left.shape[1]), groups, rows, columns))
    total: Tensor | None = None
    for k in range(max(left.shape[0], right.shape[0])):
        one, other = left[min(k, left.shape[0] - 1)], right[min(k, right.shape[0] - 1)]
        for start in range(0, one.shape[0], step):
            part = one[start : start + step].mT
            product = torch.matmul(part, other[start : start + step], out=products[: len(part)])
            product = product if turn is None else turn(product)
            if total is not None and len(product) == 1:
                total.addcmul_(product[0], product[0])
                continue
            squares = product.square_().sum(0)
            total = squares if total is None else total.add_(squares)
    assert total is not None, "no examples"
    return total
