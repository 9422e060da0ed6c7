"""SuperNat: gradient descent on linear features that are rescaled after every step so as to minimize the step's capacity.

Each iteration (Baratin et al. 2021, figure 5) takes a gradient step in the present features, finds the map A in the class
`A_nu = sum_j sqrt(nu_j) v_j v_j^T` that minimizes `|dw|_A |A^-1 Phi_t^T|_F`, and reparametrizes: `w <- A^T w`,
`Phi_t <- A^-1 Phi_t`, which leaves the function as it is. In modes, with `g_j = u_j^T grad_f L`:
`nu_j = kappa / |g_j|`, so `l_j <- l_j |g_j| / kappa` while singular vectors stay. This is natural gradient in the original
coordinates with the metric `A_t A_t^T`, `A_t = A_0 ... A_t`. Modes in which there is nothing to learn slow down.

**The free constants decide.** The paper gives neither the learning rate nor kappa. Write `l_j <- rate |g_j| l_j`:

* `normalization="trace"` or `"max"` chooses the rate anew at every step so that the trace, or the largest eigenvalue, is
  kept. Then noise modes are *not* frozen: once the signal's residual falls below theirs, they grow back, and the final error is
  that of gradient descent, although the best error along the way is lower.
* `normalization="fixed"` keeps one rate, and with about `2 / max_j |g_j|` at the start all modes slow down for good once
  their residual is below `1 / rate`: noise stays frozen. A smaller rate freezes too early, a larger one later or never.

The iteration runs in modes: explicit features would overflow as the rescalings accumulate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import rounding_rtol

Normalization = Literal["fixed", "trace", "max", "none"]


@dataclass(frozen=True)
class SuperNatPath:
    """A run, in float64.

    Attributes:
        weights: in the original coordinates, `(steps + 1, p)`.
        eigenvalues: of the rescaled features' kernel, `(steps + 1, r)`, in the order of the original ones.
        singular_values: of the original features, `(r,)`, largest first.
        lr: the learning rate that was used.
        rate: the rate of a fixed normalization, else 0.
    """

    weights: Tensor
    eigenvalues: Tensor
    singular_values: Tensor
    lr: float
    rate: float

    def predictions(self, features: Tensor) -> Tensor:
        """`<w_t, phi(x)>` at every step, `(steps + 1, examples)`."""
        return self.weights @ features.double().t()


def supernat_descent(
    features: Tensor,
    targets: Tensor,
    steps: int,
    *,
    lr_scale: float = 0.3,
    rate_scale: float = 2.0,
    normalization: Normalization = "fixed",
) -> SuperNatPath:
    """SuperNat on `L = 1/(2n) |Phi w - y|^2` from w = 0.

    Args:
        features: Phi, `(n, p)`.
        targets: y, `(n,)`.
        steps: iterations.
        lr_scale: learning rate in units of `n / l_1`, at which gradient descent learns the first mode in one step.
        rate_scale: with a fixed normalization, the rate (1 / kappa of the module's formulas) in units of
            `1 / max_j |g_j|` at the start.
        normalization: `"fixed"`, `"trace"`, `"max"` (see the module), or `"none"`: no rescaling at all, which is plain
            gradient descent.

    Returns:
        A `SuperNatPath`. Cost: one singular value decomposition and `r p` per step.

    Raises:
        NumericsError: the run diverged; a smaller `lr_scale` or `rate_scale` is the way out.
    """
    if features.ndim != 2 or targets.shape != features.shape[:1] or not targets.numel():
        raise InputError(f"Features (n, p) and targets (n,) are needed, not {features.shape} and {targets.shape}.")
    if normalization not in ("fixed", "trace", "max", "none"):
        raise InputError(
            f"The argument normalization must be 'fixed', 'trace', 'max' or 'none', not {normalization!r}."
        )
    if not (lr_scale > 0 and rate_scale > 0 and steps >= 0):
        raise InputError(
            f"The arguments lr_scale, rate_scale and steps are positive, not {lr_scale}, {rate_scale}, {steps}."
        )
    n = len(targets)
    left, singular, right = torch.linalg.svd(features.double(), full_matrices=False)
    rank = int((singular > rounding_rtol(features.dtype, max(features.shape)) * singular[0]).sum())
    if rank == 0:
        raise InputError("The features are zero: there is nothing to learn from.")
    left, singular, right = left[:, :rank], singular[:rank], right[:rank]
    aims = left.t() @ targets.double()  # u_j^T y
    eigenvalues = singular.square()
    lr = lr_scale * n / float(eigenvalues[0])
    size = float(aims.abs().max()) / n
    rate = rate_scale / size if normalization == "fixed" and size > 0 else 0.0
    coefficients = torch.zeros(rank, dtype=torch.float64)  # of w along v_j
    path, spectra = [coefficients], [eigenvalues]
    for _ in range(steps):
        gradient = (singular * coefficients - aims) / n
        coefficients = coefficients - lr * eigenvalues / singular * gradient
        eigenvalues = _rescaled(eigenvalues, gradient, normalization, rate)
        if not bool(torch.isfinite(coefficients).all() and torch.isfinite(eigenvalues).all()):
            raise NumericsError("SuperNat diverged: take a smaller lr_scale or rate_scale.")
        path.append(coefficients)
        spectra.append(eigenvalues)
    return SuperNatPath(torch.stack(path) @ right, torch.stack(spectra), singular, lr, rate)


def _rescaled(eigenvalues: Tensor, gradient: Tensor, normalization: Normalization, rate: float) -> Tensor:
    """`l_j |g_j|` up to the common factor of the normalization; nothing changes where the gradient vanishes."""
    if normalization == "none":
        return eigenvalues
    moved = eigenvalues * gradient.abs()
    if normalization == "fixed":
        return rate * moved
    size, kept = (moved.sum(), eigenvalues.sum()) if normalization == "trace" else (moved.max(), eigenvalues.max())
    return moved * (kept / size) if float(size) > 0 else eigenvalues
