"""Frequencies where there is no Fourier transform: the eigenvectors of a kernel, from the smoothest to the roughest.

On equally spaced points the eigenvectors of a smooth kernel are nearly sines, of a frequency that grows with their index; on
any other data the index takes the place of the frequency (Braun et al. 2006). The kernel may be a Gaussian or the tangent
kernel of a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.centring import AnyKernel, centred, kernel_data
from tangentlab.linalg import safe_eigh
from tangentlab.objects.fvector import FVector

BAND_RATIO = 4
"""Every band has this many times the eigenvectors of the one before."""


def gaussian_kernel(points: Tensor, others: Tensor | None = None, *, width: float) -> Tensor:
    """`exp(-|x - y|^2 / width^2)`, `(n, m)`; by default between the points themselves."""
    if not width > 0:
        raise InputError(f"The argument width is positive, not {width}.")
    if points.ndim < 2 or (others is not None and others.ndim < 2):
        raise InputError("Points are (n, ...), with an axis of examples and at least one of coordinates.")
    rows = points.flatten(1).double()
    columns = rows if others is None else others.flatten(1).double()
    if rows.shape[1] != columns.shape[1]:
        raise InputError(f"Points with {rows.shape[1]} and {columns.shape[1]} coordinates have no distance.")
    squares = torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.exp(-squares / width**2)


@dataclass(frozen=True)
class KernelBasis:
    """All eigenvectors of a kernel on n examples, which span all functions on them.

    Attributes:
        values: `(c n,)` eigenvalues, the largest first.
        vectors: `(c n, c n)`, one eigenvector per row, outputs before examples; the largest entry of each is positive.
        outputs: c.
    """

    values: Tensor
    vectors: Tensor
    outputs: int = 1

    @classmethod
    def of(cls, kernel: AnyKernel, center: str | None = None) -> KernelBasis:
        """From a matrix `(n, n)` or a tangent kernel `(c, n, c, n)`, not centred; `center` does. Cost: `9 (c n)^3`.

        Centring, `"per_output"` or `"global"`, puts constants, which otherwise come first, at the end with eigenvalue 0.
        """
        data = kernel_data(kernel)
        seen = centred(data, center)
        values, vectors = safe_eigh(seen.matrix())
        rows = vectors.flip(1).t().contiguous()
        signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
        return cls(values.flip(0) * seen.unit, rows * signs, data.shape[0])

    def spectrum(self, function: FVector | Tensor) -> Tensor:
        """`f[n] = f . v_n`, the coefficients of functions on the examples: `(..., n)` or `(..., c, n)` to `(..., c n)`."""
        values = function.data if isinstance(function, FVector) else function
        size = len(self.values)
        axes = 1 if values.ndim and values.shape[-1] == size else 2
        if values.ndim < axes or values.shape[values.ndim - axes :].numel() != size:
            raise InputError(
                f"A function on these examples has (outputs, examples) = ({self.outputs}, {size // self.outputs}) values, "
                f"not {tuple(values.shape)}."
            )
        return values.double().flatten(values.ndim - axes) @ self.vectors.t()

    def noise(self, exponent: float = 2.0) -> Tensor:
        """`psi = sum_n (n / N)^exponent v_n`, `(c n,)`: a function that has the more of an eigenvector, the rougher it is."""
        size = len(self.values)
        weights = (torch.arange(1, size + 1, dtype=torch.float64, device=self.values.device) / size) ** exponent
        return weights @ self.vectors

    def bands(self, ratio: int = BAND_RATIO) -> list[range]:
        """Eigenvectors by index in bands that grow `ratio` times: with 4 the first, 2 to 4, 5 to 16, 17 to 64, ... ."""
        return index_bands(len(self.values), ratio)


def wave_rates(kernel: AnyKernel, frequencies: Sequence[int]) -> Tensor:
    """How fast gradient descent learns waves of these frequencies to first order: Rayleigh quotients of the kernel.

    `w^* K w / n` with `w_j = e^(2 pi i k j / n)`, `(len(frequencies),)`: the mean over all phases of a sine. Where a wave is an
    eigenvector of the kernel, this is its eigenvalue.

    Args:
        kernel: `(n, n)`, or `(1, n, 1, n)`, on inputs at which the latent variable is 0, 1/n, ..., (n-1)/n.
        frequencies: periods over the points.
    """
    data = kernel_data(kernel)
    if data.shape[0] != 1:
        raise InputError(f"A kernel of one output is needed, not of {data.shape[0]}: choose one by outputs=.")
    matrix, n = data[0, :, 0].double(), data.shape[1]
    k = torch.tensor(list(frequencies), dtype=torch.float64, device=matrix.device)
    angles = 2 * math.pi * k[:, None] * torch.arange(n, dtype=torch.float64, device=matrix.device) / n
    waves = torch.cat([angles.cos(), angles.sin()])
    return ((waves @ matrix) * waves).sum(1).view(2, -1).sum(0) / n


def index_bands(size: int, ratio: int = BAND_RATIO) -> list[range]:
    """0, then `[ratio^k, ratio^(k+1))`, up to `size` indices."""
    if ratio < 2 or size < 1:
        raise InputError(f"Bands need a ratio of at least 2 and an index, not {ratio} and {size}.")
    edges, edge = [0], 1
    while edge < size:
        edges.append(edge)
        edge *= ratio
    return [range(first, last) for first, last in zip(edges, [*edges[1:], size], strict=True)]


def band_norms(coefficients: Tensor, bands: Sequence[range]) -> Tensor:
    """The length of a function's part in every band, `(..., c n)` to `(..., len(bands))`."""
    if not bands:
        raise InputError("At least one band is needed.")
    parts = [coefficients[..., band.start : band.stop].norm(dim=-1) for band in bands]
    return torch.stack(parts, dim=-1)
