"""The interpolant that minimizes a separable potential, by Newton's method on its dual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError, SolveError
from tangentlab.implicit_bias.potentials import FlowPotential, Potential

_MOST_STEPS = 500


@dataclass(frozen=True)
class Minimum:
    """The minimizer of a potential on `X beta = y`, with its certificate.

    Attributes:
        beta: `(d,)`.
        multipliers: nu, `(m,)`: `Psi'(beta) = Psi'(start) + X^T nu`, which with `residual = 0` proves the minimum.
        residual: `|X beta - y| / |y|`; over `|X start|` where all targets are zero.
        steps: of Newton's method, those of warm starts included.
    """

    beta: Tensor
    multipliers: Tensor
    residual: float
    steps: int


def minimum_on(
    features: Tensor, targets: Tensor, potential: Potential, *, start: Tensor | None = None, tolerance: float = 1e-10
) -> Minimum:
    """`argmin Psi(beta) - <Psi'(start), beta>` over `X beta = y`: the interpolant that mirror flow from `start` reaches.

    The dual is smooth, convex and has m variables: `min_nu  sum psi*(z_0 + X^T nu) - <y, nu>`, with gradient `X beta - y` and
    Hessian `X diag(h') X^T`. Damped Newton steps cost O(m^2 d) each; a flow that starts at a small alpha is reached through
    larger ones, from which the dual variable is carried over.

    Args:
        features: X, `(m, d)`, of full row rank.
        targets: y, `(m,)`.
        potential: what is minimized.
        start: `(d,)`, the point of which the divergence is minimized; by default that of the dual variable 0.
        tolerance: on the residual.

    Raises:
        InputError: shapes that do not fit.
        SolveError: no beta fits the targets, or rounding keeps the residual above the tolerance.
    """
    x, y = as_problem(features, targets)
    offset = dual_start(potential, x, start)
    nu, steps = torch.zeros(len(y), dtype=x.dtype), 0
    size = float(y.norm()) or float((x @ potential.primal(offset)).norm())
    if size == 0:
        return Minimum(potential.primal(offset), nu, 0.0, 0)
    for stage in _ladder(potential, x, y) if start is None else [potential]:
        last = stage.scale == potential.scale
        nu, taken = _newton(x, y, stage, offset, nu, size * (tolerance if last else 1e-3))
        steps += taken
    beta = potential.primal(offset + x.t() @ nu)
    residual = float((x @ beta - y).norm()) / size
    if not residual <= tolerance:
        limit = " The start may be too small for double precision: raise alpha." if potential.reach < math.inf else ""
        raise SolveError(
            f"The interpolant was not reached: |X beta - y| / |y| = {residual:.1e} after {steps} steps of Newton's method. "
            "The rows of X may be dependent with targets that no beta fits; if they are nearly dependent, raise tolerance=."
            + limit
        )
    return Minimum(beta, nu, residual, steps)


def as_problem(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """X and y in double precision on the CPU, without their graphs."""
    x, y = (torch.as_tensor(one).detach().to("cpu", torch.float64) for one in (features, targets))
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.numel():
        raise InputError(
            f"The features are (m, d) and the targets (m,), not empty, but they are {tuple(x.shape)} and {tuple(y.shape)}."
        )
    if not bool(x.isfinite().all() and y.isfinite().all()):
        raise InputError("The features and the targets must be finite.")
    return x, y


def dual_start(potential: Potential, x: Tensor, start: Tensor | None) -> Tensor:
    """The dual variable of the start, `(d,)`; 0 by default."""
    if start is None:
        return x.new_zeros(x.shape[1])
    if start.shape != x.shape[1:]:
        raise InputError(f"The start has one entry per feature, ({x.shape[1]},), not {tuple(start.shape)}.")
    return potential.gradient(start.detach().to(x))


def signed_rows(features: Tensor, signs: Tensor) -> Tensor:
    """`y_i x_i`, `(m, d)`, of labels +1 and -1."""
    x, y = as_problem(features, signs)
    require_signs(y)
    return y[:, None] * x


def require_signs(labels: Tensor) -> None:
    """Refuse labels other than +1 and -1."""
    if not bool((labels.abs() == 1).all()):
        raise InputError("The labels must be +1 or -1.")


def _ladder(potential: Potential, x: Tensor, y: Tensor) -> Sequence[Potential]:
    """The same flow from larger starts, down to the one that is asked for; others need no help."""
    if not isinstance(potential, FlowPotential):
        return [potential]
    size = float(torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution.abs().max())
    steps = max(0, math.ceil(math.log10(max(size, 1e-300) / potential.scale)))
    ratio = 10 ** (1 / potential.depth)
    return [FlowPotential(potential.alpha * ratio**k, potential.depth) for k in range(steps, 0, -1)] + [potential]


def _newton(x: Tensor, y: Tensor, potential: Potential, offset: Tensor, nu: Tensor, goal: float) -> tuple[Tensor, int]:
    """Damped Newton steps from nu until `|X beta - y|` is at most the goal or rounding stops it."""
    nu = _inside(x, potential, offset, nu)
    value = _dual(x, y, potential, offset, nu)
    for step in range(_MOST_STEPS):
        dual = offset + x.t() @ nu
        gradient = x @ potential.primal(dual) - y
        if float(gradient.norm()) <= goal:
            return nu, step
        slopes = potential.scale * potential.unit_slope(dual)
        direction = -_solved((x * slopes) @ x.t(), gradient)
        decrease, rate = float(gradient @ direction), 1.0
        moved = float((x.t() @ direction).abs().max())
        if potential.reach == math.inf and moved > 2:
            rate = 2 / moved
        while rate > 1e-12:
            trial = nu + rate * direction
            new = _dual(x, y, potential, offset, trial)
            if new <= value + 1e-4 * rate * decrease or _flat(value, new, decrease * rate):
                break
            rate /= 2
        else:
            return nu, step
        nu, value = trial, new
    return nu, _MOST_STEPS


def _flat(value: float, new: float, change: float) -> bool:
    """Whether a promised decrease is below the rounding of the dual's value, so that only the gradient can tell."""
    return math.isfinite(new) and abs(change) < 1e-13 * max(abs(value), abs(new)) and new <= value + 1e-13 * abs(value)


def _inside(x: Tensor, potential: Potential, offset: Tensor, nu: Tensor) -> Tensor:
    """The same direction, shortened until the dual variable is where the potential is defined."""
    while float((offset + x.t() @ nu).abs().max()) >= potential.reach:
        nu = nu / 2
    return nu


def _dual(x: Tensor, y: Tensor, potential: Potential, offset: Tensor, nu: Tensor) -> float:
    """The value of the dual, infinite outside of its domain."""
    dual = offset + x.t() @ nu
    if float(dual.abs().max()) >= potential.reach:
        return math.inf
    value = float(potential.scale * potential.unit_conjugate(dual).sum() - y @ nu)
    return value if math.isfinite(value) else math.inf


def _solved(matrix: Tensor, vector: Tensor) -> Tensor:
    """The solution of a positive definite system, by least squares where rounding makes it singular."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not int(failed):
        return torch.cholesky_solve(vector[:, None], factor)[:, 0]
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > 1e-14 * values[-1]
    return vectors[:, kept] @ ((vectors[:, kept].t() @ vector) / values[kept])
