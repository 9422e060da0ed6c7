"""Kernels centred in feature space, with a zero where nothing but the rounding of the kernel as it was given is left.

Centring is a difference: features with a large common part (a constant kernel, a deep network at initialization, equal
examples) leave a remainder of the size of rounding, which is neither symmetric nor positive and means nothing. What is small
is therefore judged beside the kernel before centring, in the precision in which it came.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.kernels.matrix import Kernel, kernel_matrix
from tangentlab.linalg import rounding_rtol
from tangentlab.objects.fmat import FMat, FMatDense, center_kernel_

AnyKernel = Kernel | FMat
ASYMMETRY = 1e-3
"""Asymmetry that a kernel may have, relative to its largest entry; that of `safe_eigh`."""


class Centred(NamedTuple):
    """A kernel after centring.

    data: `(c, n, c, n)` in float64, divided by `unit`, so that no sum of squares overflows or vanishes.
    unit: the largest entry before centring.
    removed: the Frobenius norm of what centring took off, divided by `unit`.
    rounding: relative size of rounding in the dtype of the kernel as it was given.
    """

    data: Tensor
    unit: float
    removed: float
    rounding: float

    def matrix(self) -> Tensor:
        """`(c n, c n)`, the average with its transpose; both differ by no more than rounding before centring explains."""
        matrix = FMatDense(self.data).matrix()
        asymmetry = matrix - matrix.T
        allowed = max(ASYMMETRY * float(matrix.abs().max()), 100 * self.rounding * (self.removed > 0))
        if float(asymmetry.amax()) > allowed:
            raise InputError("This kernel is not symmetric.")
        return matrix - asymmetry / 2

    def tolerance(self, eigenvalues: Tensor) -> float:
        """What rounding may make of a zero eigenvalue of `matrix`: relative to a bound on the norm before centring.

        `|K| <= |K_c| + |K - K_c|_F`, with the largest of the eigenvalues as the norm of K_c.
        """
        return self.rounding * (float(eigenvalues.abs().max()) + self.removed)


def kernel_data(kernel: AnyKernel) -> Tensor:
    """`(c, n, c, n)` as it was given, checked; a matrix `(n, n)` is one output."""
    if isinstance(kernel, Tensor) and kernel.ndim == 4:
        data = kernel
    elif isinstance(kernel, FMat):
        data = kernel.tensor()
    else:
        data = kernel_matrix(kernel)[None, :, None, :]
    if not data.is_floating_point():
        raise InputError(f"A kernel is of real numbers, this one of {data.dtype}: pass kernel.double().")
    if data.shape[:2] != data.shape[2:] or not data.numel():
        raise InputError(f"A kernel here is square and nonempty, (c, n, c, n), this one is {tuple(data.shape)}.")
    if not bool(torch.isfinite(data.sum())) and not bool(torch.isfinite(data).all()):  # a finite sum is quick to see
        raise NumericsError("The kernel has non-finite entries.")
    return data.detach()


def centred(data: Tensor, center: str | None) -> Centred:
    """Centre a kernel `(c, n, c, n)` in float64: `"global"`, `"per_output"` or not at all (see `similarity`).

    Zero where no more is left than the rounding of the kernel in its dtype. Cost: `(c n)^2`, and one copy.
    """
    largest = torch.stack(torch.aminmax(data)).abs().max().double().clamp_min(torch.finfo(torch.float64).tiny)
    exact = data.to(torch.float64, copy=True).div_(largest)
    rounding = rounding_rtol(data.dtype, data.shape[0] * data.shape[1])
    if center is None:
        return Centred(exact, float(largest), 0.0, rounding)
    before = frobenius(exact)
    left = center_kernel_(exact, center)
    after = frobenius(left)
    if after <= rounding * before:
        left, after = left.zero_(), 0.0
    removed = math.sqrt(max(0.0, before**2 - after**2))  # centring is an orthogonal projection of kernels
    return Centred(left, float(largest), removed, rounding)


def frobenius(values: Tensor) -> float:
    """The root of the sum of squares."""
    return float(torch.linalg.vector_norm(values))
