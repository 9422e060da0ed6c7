"""Symmetric products, with the symmetric half computed once."""

from torch import Tensor

_SMALLEST_BLOCK = 192


def symmetric_product(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """``rows rows^T`` for rows ``(..., m, k)``: about half the operations of a plain product.

    The result is cut into blocks; those above the diagonal are computed and mirrored. Small results are one plain
    product, because a block must be large enough to run at full speed.

    Args:
        rows: ``(..., m, k)``.
        out: ``(..., m, m)`` to add to, in place; a new tensor by default.
    """
    size = rows.shape[-2]
    blocks = min(size // _SMALLEST_BLOCK, 8)
    if blocks < 2 or rows.shape[-1] < 32:
        product = rows @ rows.transpose(-1, -2)
        return product if out is None else out.add_(product)
    result = rows.new_empty((*rows.shape[:-1], size)) if out is None else out
    bounds = [size * i // blocks for i in range(blocks + 1)]
    for start, stop in zip(bounds, bounds[1:], strict=False):
        strip = rows[..., start:stop, :] @ rows[..., start:, :].transpose(-1, -2)
        if out is not None:
            strip = strip.add_(out[..., start:stop, start:])
        result[..., start:stop, start:] = strip
        result[..., stop:, start:stop] = strip[..., stop - start :].transpose(-1, -2)
    return result
