"""Modes of a kernel: its principal components as functions, and what one gradient step or a whole training does along them.

With features `Phi = sum_j sqrt(l_j) u_j v_j^T` and `K = Phi Phi^T`, the principal components are the functions
`u_j(x) = <v_j, phi(x)> / sqrt(l_j) = k(x, X) u_j / l_j` (Nystrom): orthonormal on the examples X, where they are the
eigenvectors of K. Everything is in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.centring import AnyKernel, centred, kernel_data
from tangentlab.linalg import safe_eigh
from tangentlab.objects.fmat import FMat
from tangentlab.objects.fvector import FVector


@dataclass(frozen=True)
class KernelModes:
    """Nonzero eigenvalues of a kernel, its eigenvectors on the examples, and what continues them to new points.

    Attributes:
        values: l_j, `(r,)`, the largest first.
        vectors: u_j, `(r, outputs, examples)`, orthonormal.
        offsets: `(r, outputs, 1)`, subtracted at new points: the components' means over the examples before centring.
    """

    values: Tensor
    vectors: Tensor
    offsets: Tensor

    def at(self, cross_kernel: FMat | Tensor) -> Tensor:
        """The principal components at new points, `(r, outputs, points)`.

        Args:
            cross_kernel: `NTK(model, points, examples)`, *not centred* (what centring takes off is known from the examples),
                or a matrix `(points, examples)` for one output.
        """
        data = cross_kernel.tensor() if isinstance(cross_kernel, FMat) else cross_kernel[None, :, None, :]
        if data.shape[2:] != self.vectors.shape[1:] or data.shape[0] != data.shape[2]:
            raise InputError(
                f"The cross kernel is {tuple(data.shape)}; with new points on its rows and the examples of these modes on "
                f"its columns it is (outputs, points, outputs, examples) = ({self.vectors.shape[1]}, points, "
                f"{self.vectors.shape[1]}, {self.vectors.shape[2]})."
            )
        return torch.einsum("cmdn,rdn->rcm", data.double(), self.vectors) / self.values[:, None, None] - self.offsets

    def coefficients(self, function: FVector | Tensor) -> Tensor:
        """`u_j^T f` for values on the examples, `(r,)`."""
        values = function.data if isinstance(function, FVector) else function
        values = values[None] if values.ndim == 1 else values
        if values.shape != self.vectors.shape[1:]:
            raise InputError(
                f"A function on these examples is (outputs, examples) = {tuple(self.vectors.shape[1:])}, "
                f"not {tuple(values.shape)}."
            )
        return torch.einsum("rcn,cn->r", self.vectors, values.double())

    def gradient_step(self, gradient: FVector | Tensor, lr: float) -> Tensor:
        """What a gradient step does to first order, mode by mode: `df_j = -lr l_j u_j^T grad_f L`, `(r,)`.

        The change of the function is `sum_j df_j u_j`, at the examples and at every other point. The eigenvalue is the
        learning rate of its mode (Baratin et al. 2021, lemma 1).

        Args:
            gradient: dL/df at the examples, `(outputs, examples)`.
            lr: learning rate eta.
        """
        return -lr * self.values * self.coefficients(gradient)

    def regression(self, start: FVector | Tensor, target: FVector | Tensor, lr: float, steps: Tensor) -> Tensor:
        """Gradient descent on `1/2 |f - y|^2` of a model linear in its features: coefficients after so many steps.

        `f_jt = f*_j + (1 - lr l_j)^t (f_j0 - f*_j)`, with f* the interpolant of least norm; the initial weights must lie in
        the span of the features.

        Returns:
            `(len(steps), r)`.
        """
        first, last = self.coefficients(start), self.coefficients(target)
        return last + (1 - lr * self.values) ** steps.double()[:, None] * (first - last)

    def time_constants(self, lr: float | None = None) -> Tensor:
        """Steps after which `regression` has shrunk the error of a mode by e: `-1 / log|1 - lr l_j|`, `(r,)`.

        By default `lr = 1 / l_1`, which learns the first mode in one step.
        """
        if lr is not None and not lr > 0:
            raise InputError(f"The argument lr is positive, not {lr}.")
        factors = (1 - self.values * (1 / self.values[0] if lr is None else lr)).abs()
        if bool((factors >= 1).any()):
            raise InputError(
                f"The argument lr = {lr} is above 2 / l_1 = {2 / float(self.values[0]):.3g}: these modes do not converge."
            )
        return -1 / factors.log()


def kernel_modes(kernel: AnyKernel, rank: int | None = None, center: str | None = None) -> KernelModes:
    """Principal components of a kernel.

    Args:
        kernel: `(outputs, examples, outputs, examples)` or a matrix `(n, n)`, not centred.
        rank: how many to keep; by default all above the rounding of the kernel as it was given.
        center: None, `"per_output"` or `"global"`.

    Returns:
        `KernelModes`. Cost: `9 (c n)^3`.
    """
    if rank is not None and rank < 1:
        raise InputError(f"The argument rank is at least 1, not {rank}.")
    data = kernel_data(kernel)
    seen = centred(data, center)
    values, vectors = safe_eigh(seen.matrix())
    kept = min(int((values > seen.tolerance(values)).sum()), len(values) if rank is None else rank)
    if kept < 1:
        raise InputError("The kernel is zero (after centring), so it has no modes.")
    values = values.flip(0)[:kept] * seen.unit
    found = vectors.flip(1)[:, :kept].t().reshape(kept, *data.shape[:2])
    offsets = torch.zeros(kept, data.shape[0], 1, dtype=torch.float64, device=values.device)
    if center is not None:
        means = torch.einsum("cndm,rdm->rcn", data.double(), found) / values[:, None, None]
        offsets = offsets + means.mean((2,) if center == "per_output" else (1, 2), keepdim=True)
    return KernelModes(values, found, offsets)


def fourier_power(vectors: Tensor) -> Tensor:
    """Share of every frequency in functions sampled at n equally spaced points, `(..., n)` to `(..., n // 2 + 1)`.

    Squared magnitudes of the discrete Fourier transform, with the conjugate frequencies added; the shares of a function sum to
    one (Parseval). Frequency k has k periods over the points.
    """
    n = vectors.shape[-1]
    power = torch.fft.rfft(vectors.double(), dim=-1).abs().square()
    twice = torch.full((power.shape[-1],), 2.0, dtype=torch.float64, device=power.device)
    twice[0] = 1
    if n % 2 == 0:
        twice[-1] = 1
    power = power * twice
    total = power.sum(-1, keepdim=True)
    if bool((total == 0).any()):
        raise InputError("A function that is zero everywhere has no frequencies.")
    return power / total


def main_frequency(vectors: Tensor) -> Tensor:
    """The frequency with the largest share, `(..., n)` to `(...)`."""
    return fourier_power(vectors).argmax(-1)
