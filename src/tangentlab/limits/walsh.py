"""The Walsh-Hadamard transform: functions on the cube as sums of parities."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError

RADIX = 6
"""Coordinates that one matrix product transforms."""


def walsh_coefficients(tables: Tensor) -> Tensor:
    """`F^(S) = 2^-n sum_x F(x) prod_{i in S} x_i` for every set S, in the order of the inputs: S is the places of -1.

    Parseval: the squares of the coefficients of a function with values -1 and 1 add up to 1.

    Args:
        tables: values at all inputs in order, `(..., 2^n)`; integers, float32 or float64.

    Returns:
        `(..., 2^n)`, float64 for float64 and float32 otherwise: exact up to n = 24 for values -1 and 1. Cost: `2^n n`
        times a small constant, as products with Hadamard matrices of 2^6 rows.
    """
    size = tables.shape[-1] if tables.ndim else 0
    n = size.bit_length() - 1
    if size < 1 or size != 1 << n:
        raise InputError(f"Tables of functions on the cube have 2^n columns, got shape {tuple(tables.shape)}.")
    dtype = torch.float64 if tables.dtype == torch.float64 else torch.float32
    require_memory(
        3 * tables.numel() * dtype.itemsize, f"A Walsh-Hadamard transform of {tuple(tables.shape)}", "Use fewer tables."
    )
    found = tables.to(dtype, copy=True).reshape(-1, size)
    for start in range(0, n, RADIX):
        width = 1 << min(RADIX, n - start)
        matrix = hadamard(width.bit_length() - 1, dtype)
        found = (matrix @ found.view(-1, width, 1 << start)).reshape(-1, size)
    return (found / size).view(tables.shape)


def hadamard(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix of all parities, `(2^n, 2^n)`: entry (S, x) is -1 to the number of common binary digits."""
    matrix = torch.ones(1, 1, dtype=dtype)
    for _ in range(n):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def degrees(n: int) -> Tensor:
    """The number of elements of every set in order, `(2^n,)` int64."""
    found = torch.zeros(1, dtype=torch.int64)
    for _ in range(n):
        found = torch.cat([found, found + 1])
    return found


def weight_by_degree(tables: Tensor) -> Tensor:
    """How much of a function is parities of each degree, `(..., 2^n) -> (..., n + 1)`; rows add up to the mean square."""
    squares = walsh_coefficients(tables).square()
    n = tables.shape[-1].bit_length() - 1
    found = torch.zeros(*tables.shape[:-1], n + 1, dtype=squares.dtype)
    return found.index_add(-1, degrees(n), squares)
