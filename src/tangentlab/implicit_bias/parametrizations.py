"""Predictors that are linear in the input and not in the weights: diagonal networks, convolutions, products of matrices.

Weights are one flat vector, so that flows and descents know nothing of their shapes. All maps are D-homogeneous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.errors import InputError


def diagonal_predictor(weights: Tensor, depth: int = 2) -> Tensor:
    """`beta = w_+^D - w_-^D`, `(d,)`, of the weights `(2 d,)`."""
    if len(weights) % 2:
        raise InputError(f"A diagonal network has two weights per feature; {len(weights)} is an odd number.")
    positive, negative = weights.chunk(2)
    return positive**depth - negative**depth


def diagonal_start(features: int, alpha: float) -> Tensor:
    """`alpha 1`, `(2 d,)`: the predictor is 0 there."""
    return torch.full((2 * features,), float(alpha), dtype=torch.float64)


def convolutional_predictor(weights: Tensor, depth: int) -> Tensor:
    """The predictor of a linear network of circular convolutions over d positions, `(d,)`, of the weights `(depth * d,)`.

    `beta = w_1 * ... * w_D` with circular convolutions, so that its discrete Fourier transform is the product of theirs; the
    last layer's flip of the order is absorbed in its weights.
    """
    if depth < 1 or len(weights) % depth:
        raise InputError(f"{len(weights)} weights are not {depth} layers of one size.")
    spectra = torch.fft.fft(weights.reshape(depth, -1))
    return torch.fft.ifft(spectra.prod(0)).real


def product_matrix(weights: Tensor, rows: int, columns: int) -> Tensor:
    """`U V^T`, `(rows, columns)`, of the weights `((rows + columns) * k,)`: U `(rows, k)` and V `(columns, k)`."""
    u, v = _factors(weights, rows, columns)
    return u @ v.t()


def orthogonal_start(rows: int, columns: int, alpha: float) -> Tensor:
    """`U = alpha [I 0]`, `V = alpha [0 I]`, flat: `U V^T = 0`, and the tangent kernel is `2 alpha^2` times the identity."""
    return float(alpha) * torch.eye(rows + columns, dtype=torch.float64).flatten()


def product_kernel(weights: Tensor, rows: int, columns: int) -> Tensor:
    """The tangent kernel of all entries of `U V^T`, `(rows * columns, rows * columns)`.

    `K((i, j), (i', j')) = 1[i = i'] <V_j, V_j'> + 1[j = j'] <U_i, U_i'>`.
    """
    u, v = _factors(weights, rows, columns)
    eye = torch.eye
    return torch.kron(eye(rows, dtype=u.dtype), v @ v.t()) + torch.kron(u @ u.t(), eye(columns, dtype=u.dtype))


def _factors(weights: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """U `(rows, k)` and V `(columns, k)`."""
    if len(weights) % (rows + columns):
        raise InputError(f"{len(weights)} weights are not two factors with {rows} + {columns} rows.")
    factors = weights.reshape(rows + columns, -1)
    return factors[:rows], factors[rows:]


def fourier_norm(beta: Tensor, power: float) -> float:
    """`|DFT(beta)|_p` with the unitary transform, for any p > 0 (below 1 it is no norm)."""
    if not power > 0:
        raise InputError(f"The argument power is positive, not {power!r}.")
    sizes = torch.fft.fft(beta.to(torch.float64), norm="ortho").abs()
    return float(sizes.pow(power).sum() ** (1 / power))
