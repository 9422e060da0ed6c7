"""What every matrix-free method needs of its matrix: checked products and random rows."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError

Matvec = Callable[[Tensor], Tensor]
"""A symmetric matrix seen through its products: maps row-batched vectors `(vectors, dim)` to `(vectors, dim)`."""

Distribution = Literal["rademacher", "gaussian"]


def product(matvec: Matvec, rows: Tensor) -> Tensor:
    """`A v` for every row v, refusing a wrong shape or non-finite numbers.

    Args:
        matvec: the matrix, `(vectors, dim) -> (vectors, dim)`.
        rows: the vectors, `(vectors, dim)`; with no vectors at all the matrix is not called.

    Returns:
        The products in the dtype of `rows`, `(vectors, dim)`. Cost: one batched product.
    """
    if not len(rows):
        return rows.clone()
    result = matvec(rows)
    if result.shape != rows.shape:
        raise InputError(
            f"The argument matvec maps {tuple(rows.shape)} to {tuple(result.shape)}; it must map row-batched vectors "
            f"(vectors, dim) to the same shape."
        )
    if not bool(torch.isfinite(result).all()):
        raise NumericsError("A matrix-vector product returned non-finite numbers; check the matrix and its scale.")
    return result.to(rows)


def in_batches(matvec: Matvec, size: int) -> Matvec:
    """The same matrix, asked for at most `size` products at a time; bounds the memory of a batched product."""
    if size < 1:
        raise InputError(f"The batch size must be at least 1, got {size}.")

    def batched(rows: Tensor) -> Tensor:
        return torch.cat([matvec(chunk) for chunk in torch.split(rows, size)])

    return batched


def dense(matvec: Matvec, dim: int, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Tensor:
    """The matrix itself, symmetrized, `(dim, dim)`, from `dim` products with the coordinate vectors."""
    matrix = product(matvec, torch.eye(dim, dtype=dtype, device=device))
    return (matrix + matrix.T) / 2


def random_rows(
    count: int,
    dim: int,
    distribution: Distribution = "gaussian",
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Independent random vectors with zero mean and identity covariance, `(count, dim)`.

    `rademacher`: signs, the least variance for the trace; `gaussian`: rotation invariant. The numbers are drawn
    where the generator lives and then moved, so that a CPU generator gives the same vectors on every device.
    """
    if dim < 1:
        raise InputError(f"The argument dim must be at least 1, got {dim}.")
    source = torch.device(device) if generator is None else generator.device
    if distribution == "rademacher":
        signs = torch.randint(0, 2, (count, dim), generator=generator, device=source, dtype=torch.int8)
        return signs.to(device=device, dtype=dtype or torch.get_default_dtype()).mul_(2).sub_(1)
    if distribution == "gaussian":
        return torch.randn((count, dim), generator=generator, device=source, dtype=dtype).to(device)
    raise InputError(f"Unknown distribution {distribution!r}; known: 'rademacher', 'gaussian'.")


def at_least_one(**counts: int) -> None:
    """Refuses counts (of probes, steps, pairs) below one, by name."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
