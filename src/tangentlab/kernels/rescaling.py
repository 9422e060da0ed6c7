"""Which norm measures the capacity of an interpolating linear model: feature rescalings that minimize its bound.

The maps `A_nu = sum_j sqrt(nu_j) v_j v_j^T` (and the identity on the complement) stretch the right singular vectors of the
features. The interpolant of least norm `w* = Phi^T K^-1 y = sum_j (u_j^T y / sqrt(l_j)) v_j` then has the norm
`|w*|_A^2 = sum_j nu_j (u_j^T y)^2 / l_j` in a class whose kernel has the trace `sum_j l_j / nu_j`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.matrix import Kernel
from tangentlab.kernels.modes import KernelModes, kernel_modes
from tangentlab.objects.fmat import FMat
from tangentlab.objects.fvector import FVector


@dataclass(frozen=True)
class Rescaling:
    """A rescaling of features and the capacity it gives.

    Attributes:
        nu: the rescaling of every mode, `(r,)`; infinite where a mode is switched off at no cost.
        norm: `|w*|_A` (or `|dw|_A`).
        trace: `tr K_A`.
        examples: n.
    """

    nu: Tensor
    norm: float
    trace: float
    examples: int

    @property
    def bound(self) -> float:
        """`(|w*|_A / n) sqrt(tr K_A)`, which bounds the Rademacher complexity of the ball that w* lies on."""
        return self.norm * math.sqrt(self.trace) / self.examples


def interpolant_capacity(kernel: Kernel | FMat, targets: FVector | Tensor, nu: Tensor | None = None) -> Rescaling:
    """Norm, trace and bound of the interpolant of least norm under a rescaling; without `nu`, under the plain l2 norm.

    Targets outside of the range of a singular kernel have no interpolant; their part in the range is meant then. With c
    outputs n counts examples, not rows: c times the bound of `flow_bound`, which counts rows.
    """
    modes, energies = _norm_energies(kernel, targets)
    factors = torch.ones_like(modes.values) if nu is None else nu.double()
    if factors.shape != modes.values.shape or not bool((factors > 0).all()):
        raise InputError(
            f"One positive nu per mode is needed, {tuple(modes.values.shape)}, not {tuple(factors.shape)}."
        )
    return _capacity(factors, energies, modes.values, modes.vectors.shape[2])


def optimal_rescaling(kernel: Kernel | FMat, targets: FVector | Tensor, kappa: float = 1.0) -> Rescaling:
    """The rescaling that minimizes the bound: `nu_j = kappa l_j / |u_j^T y|` (Baratin et al. 2021, proposition 14).

    The least bound is `1/n sum_j |u_j^T y|`: it depends on the labels through the modes' share of them, and on the features
    through their singular vectors only.
    """
    modes, energies = _norm_energies(kernel, targets)
    return _least(energies, modes.values, kappa, modes.vectors.shape[2])


def step_rescaling(modes: KernelModes, gradient: FVector | Tensor, lr: float, kappa: float = 1.0) -> Rescaling:
    """The rescaling that minimizes `|dw|_A sqrt(tr K_A)` of one gradient step `dw = -lr Phi^T grad_f L`.

    `nu_j = kappa / |u_j^T grad_f L|`, with the least product `lr sum_j l_j |u_j^T grad_f L|` (proposition 3). kappa is
    free: it scales the features as a whole.
    """
    signal = modes.coefficients(gradient).abs()
    energies = lr**2 * modes.values * signal.square()
    return _least(energies, modes.values, kappa * lr, modes.vectors.shape[2])


def _norm_energies(kernel: Kernel | FMat, targets: FVector | Tensor) -> tuple[KernelModes, Tensor]:
    modes = kernel_modes(kernel)
    return modes, modes.coefficients(targets).square() / modes.values


def _least(energies: Tensor, traces: Tensor, kappa: float, examples: int) -> Rescaling:
    """Minimize `sum nu e * sum l / nu`: nu = kappa sqrt(l / e), infinite (at no cost in either sum) where e = 0."""
    if not kappa > 0:
        raise InputError(f"The argument kappa must be positive, not {kappa}.")
    return _capacity(kappa * (traces / energies).sqrt(), energies, traces, examples)


def _capacity(nu: Tensor, energies: Tensor, traces: Tensor, examples: int) -> Rescaling:
    norm = math.sqrt(float(torch.where(energies > 0, nu * energies, 0.0).sum()))
    return Rescaling(nu, norm, float((traces / nu).sum()), examples)
