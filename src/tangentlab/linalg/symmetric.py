"""Symmetric products, with the symmetric half computed once."""

from math import ceil

import torch
from torch import Tensor

_SMALLEST_BLOCK = 32
_ALIGNMENT = 16
"""Blocks of a multiple of this size run at full speed."""
_WORTH_CUTTING = 4e6
"""Products below which one call costs less than several."""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What many products of a dtype are added up in: float32 for 16 bits, in which long sums come to a halt."""
    return torch.promote_types(dtype, torch.float32)


def symmetric_product(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """``rows rows^T`` for rows ``(..., m, k)``: about half the operations of a plain product.

    The result is cut into blocks; those above the diagonal are computed and mirrored. Small results are one plain
    product, because a block must be large enough to run at full speed.

    Args:
        rows: ``(..., m, k)``.
        out: ``(..., m, m)``, contiguous and symmetric, to add to in place, of `sum_dtype` too; a new tensor by default.
    """
    size = rows.shape[-2]
    block = max(_SMALLEST_BLOCK, _ALIGNMENT * ceil(size / (8 * _ALIGNMENT)))
    if size < 2 * block or size**2 * rows.shape[-1] < _WORTH_CUTTING or (out is not None and out.dtype != rows.dtype):
        product = rows @ rows.transpose(-1, -2)
        return product if out is None else out.add_(product)
    result = rows.new_zeros((*rows.shape[:-1], size)) if out is None else out
    for matrix, one in zip(result.view(-1, size, size), rows.reshape(-1, *rows.shape[-2:]), strict=True):
        for start in range(0, size, block):
            stop = min(start + block, size)
            matrix[start:stop, start:].addmm_(one[start:stop], one[start:].t())
            matrix[stop:, start:stop] = matrix[start:stop, stop:].t()
    return result
