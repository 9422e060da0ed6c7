"""The "positions" order of a Gram matrix: input products over positions meet the output-gradients of pairs of examples.

With A[i, j] = a_i a_j^T the (T, S) products of the inputs of two examples and g their output-gradients (K, T, O),

    K[k, i, l, j] = sum_{t, s} A[i, j][t, s] <g_i[k, t], g_j[l, s]>.

With one output, or summed over outputs, the inner products are a second array like A and the two are multiplied entry by
entry. Otherwise M = A[i, j] g_j is contracted with g_i, some output channels at a time, so that M stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tangentlab.layers.contractions import Workspace, products_of_rows
from tangentlab.layers.outer import OuterSum

CACHE_BYTES = 2 << 20
"""Bytes of M at a time."""
PAIR_BYTES = 256 << 10
"""Bytes of M for one pair of examples; with more, the output channels are taken in blocks."""
TILE_BYTES = 64 << 20
"""Bytes of input products at a time."""
FEW_POSITIONS = 8
"""Up to this many, products along positions would be too thin, and channels are innermost (measured: 4 times as fast)."""


def positions_gram(first: OuterSum, second: OuterSum, trace: bool, workspace: Workspace) -> Tensor:
    """(K, N, L, M), or (N, M) summed over outputs. Of `second is first` only the upper half is computed."""
    same = first is second
    entrywise = trace or first.outputs == second.outputs == 1
    counts = first.examples, second.examples
    result = first.gradient_factors.new_zeros(
        counts if entrywise else (counts[0], first.outputs, counts[1], second.outputs)
    )
    sides = (first,) if same else (first, second)
    pair_bytes = first.positions * second.positions * result.element_size()
    size = max(1, int((min(workspace.limit, TILE_BYTES) / pair_bytes) ** 0.5))
    for group in range(first.matrix_shape[0]):
        inputs = [one.input_codes(group) for one in sides]
        grads = [_gradient_rows(one, group) if entrywise else _gradient_maps(one, group) for one in sides]
        for rows, columns in _tiles(*counts, size, same):
            diagonal = same and rows == columns
            one = inputs[0][rows]
            two = one if diagonal else inputs[-1][columns]
            products = workspace.take("input products", (*one.shape[:2], *two.shape[:2]), result)
            first.write_input_products(one, two, products)
            if first.bias:
                products += 1
            for mine, theirs in zip(grads[0], grads[-1], strict=True):
                one, two = mine[rows], theirs[columns]
                if entrywise:
                    inner = workspace.take("inner products", products.shape, result)
                    products_of_rows(one, one if diagonal else two, inner)
                    result[rows, columns] += inner.mul_(products).sum((1, 3))
                else:
                    _add_pairs(result[rows, :, columns], products, one, two, diagonal, workspace)
    if same:
        _mirror(result)
    if entrywise:
        return result if trace else result[None, :, None]
    return result.permute(1, 0, 3, 2)


def _gradient_rows(one: OuterSum, group: int) -> list[Tensor]:
    """Output-gradients as one block (N, T, K * O)."""
    return [one.gradient_factors[:, :, group].permute(1, 2, 0, 3).flatten(2)]


def _gradient_maps(one: OuterSum, group: int) -> list[Tensor]:
    """Output-gradients in blocks of channels (N, K, T, channels), each small enough for M of a pair to be `PAIR_BYTES`.

    A block lies in memory as its gradients do: channels innermost in a linear layer, positions in a convolution, unless they
    are few.
    """
    maps = one.gradient_factors[:, :, group].transpose(0, 1)
    step = max(1, PAIR_BYTES // (one.outputs * one.positions * maps.element_size()))
    blocks = maps.split(step, 3)
    if maps.stride(3) == 1 or one.positions <= FEW_POSITIONS:
        return [block.contiguous() for block in blocks]
    return [block.transpose(2, 3).contiguous().transpose(2, 3) for block in blocks]


def _tiles(count: int, others: int, size: int, same: bool) -> Iterator[tuple[slice, slice]]:
    """Squares of `size` examples; with `same`, those on the diagonal and above it."""
    for start in range(0, count, size):
        rows = slice(start, min(start + size, count))
        for low in range(start if same else 0, others, size):
            yield rows, slice(low, min(low + size, others))


def _add_pairs(result: Tensor, products: Tensor, one: Tensor, two: Tensor, upper: bool, workspace: Workspace) -> None:
    """Add the kernel of a tile to result (n, K, m, L), from products (n, T, m, S) and maps (n, K, T, O), (m, L, S, O).

    upper: only pairs i <= j.
    """
    outputs, (positions, channels) = two.shape[1], one.shape[2:]
    step = max(1, CACHE_BYTES // (two[0].numel() * two.element_size()))
    inner_channels = one.is_contiguous()
    mine = (one if inner_channels else one.transpose(2, 3)).flatten(2)
    theirs = two if inner_channels else two.transpose(2, 3).flatten(1, 2)
    for i in range(one.shape[0]):
        for start in range(i if upper else 0, two.shape[0], step):
            chunk = slice(start, min(start + step, two.shape[0]))
            applied = workspace.take("applied", ((chunk.stop - start) * outputs, positions * channels), one)
            pair = products[i, :, chunk]
            if inner_channels:
                image = applied.view(-1, outputs, positions, channels)
                torch.matmul(pair.transpose(0, 1)[:, None], theirs[chunk], out=image)
            else:
                torch.bmm(theirs[chunk], pair.permute(1, 2, 0), out=applied.view(-1, outputs * channels, positions))
            result[i, :, chunk] += (mine[i] @ applied.t()).unflatten(1, (-1, outputs))


def _mirror(result: Tensor) -> None:
    """Fill the lower half of (N, M) or (N, K, M, L) from the upper one."""
    for i in range(1, result.shape[0]):
        if result.ndim == 2:
            result[i, :i] = result[:i, i]
        else:
            result[i, :, :i] = result[:i, :, i].permute(2, 0, 1)
