"""Rademacher complexities and the bounds built on them: norm balls, learning flows, margins, several classes.

Linear functions `f(x) = <w, phi(x)>` with `|w|_A = sqrt(w^T A A^T w) <= M` are the ball of radius M for the features
`A^-1 phi`, whose kernel is `K_A = Phi (A A^T)^-1 Phi^T`; so every function here takes kernels. `tangentlab.kernels` has the
complexity of one ball: exact over all signs, by Monte Carlo with a confidence interval, and its trace bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.kernels.matrix import Kernel, kernel_matrix
from tangentlab.kernels.rademacher import (
    RademacherEstimate,
    rademacher_exact,
    rademacher_monte_carlo,
    rademacher_trace_bound,
)
from tangentlab.objects.fmat import FMatDense

BRUTE_FORCE_LIMIT = 16
"""Largest number of examples whose sign vectors are enumerated."""

SomeKernel = TypeVar("SomeKernel", bound=Kernel)


def rescaled_kernel(features: Tensor, map_A: Tensor) -> Tensor:
    """`K_A = Phi (A A^T)^-1 Phi^T`, `(n, n)`, for features `(n, p)` and an invertible A `(p, p)`."""
    moved = torch.linalg.solve(map_A, features.t())
    return moved.t() @ moved


def rademacher_of_values(values: Tensor) -> float:
    """`E_sigma sup_f 1/n sum_i sigma_i f(x_i)` by brute force over all `2^n` sign vectors.

    Args:
        values: f(x_i) of every function of a finite class, `(functions, n)` with n at most 16.
    """
    n = values.shape[1]
    if n > BRUTE_FORCE_LIMIT:
        raise InputError(f"{n} examples have 2^{n} sign vectors; brute force is for at most {BRUTE_FORCE_LIMIT}.")
    codes = torch.arange(2**n, device=values.device)[:, None] >> torch.arange(n, device=values.device)
    signs = 1 - 2 * (codes & 1).to(values)
    return float((signs @ values.t()).amax(1).mean()) / n


def flow_exact(kernels: Sequence[Kernel], radii: Sequence[float]) -> float:
    """Complexity of the functions `sum_t <dw_t, phi_t>` with `|dw_t| <= m_t`: `1/n E sum_t m_t sqrt(s^T K_t s)`.

    A learning flow: K_t are the kernels of the features at each step and m_t the lengths of the steps (Baratin et al. 2021,
    section 4). The suprema over the steps are independent, so the complexities of the balls add up. n <= 16.
    """
    return sum(float(rademacher_exact(kernel, radius)) for kernel, radius in _flow(kernels, radii))


def flow_monte_carlo(
    kernels: Sequence[Kernel],
    radii: Sequence[float],
    *,
    samples: int = 1000,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RademacherEstimate:
    """`flow_exact` as a mean over random signs, the signs of each step drawn for themselves, with a confidence interval."""
    options = {"samples": samples, "confidence": confidence, "generator": generator}
    parts = [rademacher_monte_carlo(k, m, **options) for k, m in _flow(kernels, radii)]  # type: ignore[arg-type]
    mean = torch.stack([part.estimate for part in parts]).sum()
    error = torch.stack([part.standard_error for part in parts]).square().sum().sqrt()
    width = error * torch.special.ndtri(torch.tensor((1 + confidence) / 2, dtype=torch.float64)).item()
    return RademacherEstimate(mean, (mean - width).clamp_min(0), mean + width, confidence, error)


def flow_bound(kernels: Sequence[Kernel], radii: Sequence[float]) -> float:
    """`sum_t (m_t / n) sqrt(tr K_t)`, an upper bound of `flow_exact` (Baratin et al. 2021, theorem 2)."""
    return sum(float(rademacher_trace_bound(kernel, radius)) for kernel, radius in _flow(kernels, radii))


def multiclass_bound(kernel: FMatDense, radius: float, margin: float, *, by_class: bool = False) -> float:
    """Bound of the complexity of the ramp loss over a ball of functions with c outputs.

    `c^(3/2) M / (gamma n) sqrt(tr K)` with K over all outputs and examples (Baratin et al. 2021, theorem 13); with
    `by_class` the tighter `(c / gamma) sum_y (M / n) sqrt(tr K^yy)`, which it comes from by Cauchy-Schwarz. For
    flows: `multiclass_flow_bound`.

    Args:
        kernel: `(c, n, c, n)`.
        radius: M.
        margin: gamma.
    """
    _check_margin(margin)
    if radius < 0:
        raise InputError(f"The radius of a norm ball cannot be negative, got {radius}.")
    classes, n = kernel.outputs, kernel.examples
    traces = kernel.diag().data.double().sum(1).clamp_min(0)
    if by_class:
        return classes / margin * radius / n * float(traces.sqrt().sum())
    return classes**1.5 * radius / (margin * n) * math.sqrt(float(traces.sum()))


def multiclass_flow_bound(
    kernels: Sequence[FMatDense], radii: Sequence[float], margin: float, *, by_class: bool = False
) -> float:
    """`multiclass_bound` for a learning flow with steps of norm m_t in features of kernel K_t: its sum over the steps.

    The c outputs of a flow are sums over the steps of those of norm balls, so its complexity is at most the sum of theirs,
    output by output.
    """
    return sum(multiclass_bound(kernel, radius, margin, by_class=by_class) for kernel, radius in _flow(kernels, radii))


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """How clearly each example is on its side, `(n,)`: negative where it is classified wrongly.

    `y f(x)` for one output `(n,)` or `(n, 1)` with labels -1 and 1 (or 0 and 1, or real signs);
    `f[y] - max_{y' != y} f[y']` for outputs `(n, c)`.
    """
    values = outputs[:, None] if outputs.ndim == 1 else outputs
    if len(values) != len(labels) or values.ndim != 2 or labels.ndim != 1:
        raise InputError(
            f"Outputs (n, c) and labels (n,) are expected, not {tuple(outputs.shape)}, {tuple(labels.shape)}."
        )
    if values.shape[1] == 1:
        return torch.where(labels > 0, 1.0, -1.0).to(values) * values[:, 0]
    own = values.gather(1, labels.long()[:, None])
    others = values.scatter(1, labels.long()[:, None], -math.inf)
    return own[:, 0] - others.amax(1)


def ramp_loss(margin_values: Tensor, margin: float) -> Tensor:
    """1 up to a margin of 0, 0 from `margin` on, and linear between: Lipschitz with constant `1 / margin`."""
    _check_margin(margin)
    return (1 - margin_values / margin).clamp(0, 1)


def margin_bound(
    outputs: Tensor, labels: Tensor, margin: float, loss_complexity: float, delta: float = 0.05
) -> dict[str, float]:
    """Bound of the test error `P(margin < 0)` that holds with probability `1 - delta` for all functions of a class.

    `L_0 <= L^_gamma + 2 R^ + 3 sqrt(log(2 / delta) / (2 n))`, with L^_gamma the mean ramp loss on the sample and R^ the
    empirical complexity of the ramp losses of the class: at most that of the class over gamma for one output, and
    `multiclass_bound` for several.

    Returns:
        `bound` and its three parts `empirical`, `complexity`, `confidence`.
    """
    if not 0 < delta < 1 or loss_complexity < 0:
        raise InputError(f"A bound needs 0 < delta < 1 and a complexity >= 0, not {delta} and {loss_complexity}.")
    parts = {
        "empirical": float(ramp_loss(margins(outputs, labels), margin).mean()),
        "complexity": 2 * float(loss_complexity),
        "confidence": 3 * math.sqrt(math.log(2 / delta) / (2 * len(labels))),
    }
    return {"bound": sum(parts.values()), **parts}


def _flow(kernels: Sequence[SomeKernel], radii: Sequence[float]) -> list[tuple[SomeKernel, float]]:
    if len(kernels) != len(radii) or not kernels:
        raise InputError(f"A flow has one radius per kernel and one step or more, not {len(kernels)} and {len(radii)}.")
    if len({len(kernel_matrix(kernel)) for kernel in kernels}) > 1:
        raise InputError("The kernels of a flow are of the same examples; these have different sizes.")
    return list(zip(kernels, radii, strict=True))


def _check_margin(margin: float) -> None:
    if not margin > 0:
        raise InputError(f"A margin is positive, not {margin}.")
