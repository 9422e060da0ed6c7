"""Descents whose geometry is not Euclidean: mirror, natural-gradient and coordinate descent on linear predictors."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.implicit_bias.minimizers import as_problem, dual_start, signed_rows
from tangentlab.implicit_bias.potentials import Potential


def mirror_descent(
    features: Tensor,
    targets: Tensor,
    potential: Potential,
    *,
    rate: float,
    steps: int,
    start: Tensor | None = None,
    natural: bool = False,
) -> Tensor:
    """`z <- z - rate * dL/dbeta`, `beta = h(z)`, with `L = |X beta - y|^2 / 2`; the last beta, `(d,)`.

    It interpolates with the least divergence of the potential from its start. `natural=True` takes the same step in beta,
    preconditioned by the metric `Psi''(beta)`: natural gradient descent, which agrees with it as the rate goes to zero.

    Raises:
        NumericsError: the rate is too large.
    """
    x, y = as_problem(features, targets)
    dual = dual_start(potential, x, start)
    beta = potential.primal(dual)
    for _ in range(steps):
        slope = x.t() @ (x @ beta - y)
        if natural:
            beta = beta - rate * potential.scale * potential.unit_slope(potential.gradient(beta)) * slope
        else:
            dual = dual - rate * slope
            beta = potential.primal(dual)
    if not bool(beta.isfinite().all()):
        raise NumericsError(f"Mirror descent diverged at the rate {rate:g}: use a smaller rate=.")
    return beta


def coordinate_descent(features: Tensor, signs: Tensor, *, steps: int, rate: float = 0.1) -> Tensor:
    """The direction of greedy coordinate descent on the exponential loss `sum_i exp(-y_i <beta, x_i>)`, `(d,)`, L1 norm 1.

    Each step moves the coordinate with the largest derivative by `rate` times that derivative over the loss, as boosting
    with small steps does; the direction tends to the largest margin in the L1 sense. Losses are kept as logarithms.
    """
    signed = signed_rows(features, signs)
    margins, beta = signed.new_zeros(signed.shape[0]), signed.new_zeros(signed.shape[1])
    for _ in range(steps):
        slope = torch.softmax(-margins, 0) @ signed
        j = int(slope.abs().argmax())
        move = rate * slope[j]
        beta[j] += move
        margins += move * signed[:, j]
    if float(beta.abs().sum()) == 0:
        raise InputError("The exponential loss is stationary at 0: no coordinate correlates with the labels.")
    return beta / beta.abs().sum()
