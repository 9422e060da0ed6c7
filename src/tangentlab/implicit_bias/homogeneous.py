"""Homogeneous models on losses with an exponential tail: degree, margins, and how far a direction is from stationary.

Gradient descent that drives such a loss to zero ends, in direction, at a first-order stationary point of
`min |w|_2` over `y_i f(w, x_i) >= 1` (Nacson et al. 2019, Lyu and Li 2019): w is a combination of the gradients
`y_i df(w, x_i)/dw` with non-negative weights, on examples of least margin only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tangentlab.alignment.directions import outputs_at
from tangentlab.engine.network import (
    Network,
    Options,
    evaluated,
    main_tensor,
    refuse_modes,
    require_module,
    spelled_out,
)
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError, ModelError
from tangentlab.implicit_bias.minimizers import require_signs
from tangentlab.implicit_bias.oracles import nonnegative_least_squares
from tangentlab.metrics import Jacobian
from tangentlab.objects.pvector import PVector


def homogeneity(model: nn.Module, inputs: Tensor, *, factor: float = 2.0, tolerance: float = 1e-4) -> float:
    """The degree D with `f(c w, x) = c^D f(w, x)`, measured at c = `factor` on all parameters at once.

    Raises:
        InputError: a factor that is not positive, or 1.
        ModelError: outputs do not scale by one power (biases, normalization, residual connections of other depth).
    """
    require_module(model)
    refuse_modes(model)
    if not 0 < factor < math.inf or factor == 1:
        raise InputError(f"The argument factor is a positive number other than 1, not {factor!r}.")
    scaled = {name: factor * parameter.detach() for name, parameter in model.named_parameters()}
    with untouched(model):
        before = evaluated(lambda: main_tensor(model(inputs))).double().flatten()
        after = evaluated(lambda: main_tensor(functional_call(model, scaled, (inputs,)))).double().flatten()
    if not float(before.norm()) > 0:
        raise ModelError("All outputs are zero on these inputs, so they tell no degree: use other inputs.")
    ratio = float((before @ after) / before.square().sum())
    off = float((after - ratio * before).norm() / after.norm().clamp_min(1e-300))
    if not ratio > 0 or off > tolerance:
        raise ModelError(
            f"The model is not homogeneous in its parameters: with all of them times {factor:g}, outputs change by other "
            f"than one factor (a relative {off:.1e}). Biases, normalization and unequal depths of branches do that."
        )
    return math.log(ratio) / math.log(factor)


@dataclass(frozen=True)
class Stationarity:
    """How far the direction of the weights is from a first-order stationary point of the margin problem.

    Attributes:
        margins: `y_i f(w, x_i)`, `(n,)`.
        normalized_margin: `min_i y_i f(w, x_i) / |w|^D`; negative while an example is misclassified.
        multipliers: `(n,)`, non-negative: `sum_i m_i y_i df_i/dw` is the combination of gradients nearest to w.
        alignment: the cosine of w and that combination; 1 at a stationary point.
        slackness: `sum_i m_i (margin_i - least) / sum_i m_i margin_i`, the weight on examples beyond the least margin; 0 at
            a stationary point.
    """

    margins: Tensor
    normalized_margin: float
    multipliers: Tensor
    alignment: float
    slackness: float


@spelled_out
def margin_stationarity(
    model: nn.Module, inputs: Any, signs: Tensor, *, degree: float, **options: Unpack[Options]
) -> Stationarity:
    """Margins of a model with one output and its first-order stationarity, from its Jacobian `(n, p)`.

    Args:
        model: homogeneous of the given degree, one output per example.
        inputs: as in `tangentlab.Jacobian`.
        signs: labels +1 and -1, `(n,)`.
        degree: D, as `homogeneity` measures it.
        options: as in `tangentlab.NTK`.

    Raises:
        InputError: more than one output, or labels that are not signs.
        ModelError: outputs are not homogeneous of this degree in the selected parameters (others are frozen, say).
    """
    rows = Jacobian(model, inputs, **options)
    jacobian = rows.tensor().detach().cpu()
    if jacobian.shape[0] != 1 or signs.shape != (jacobian.shape[1],):
        raise InputError(
            f"One output and one sign per example are needed, not {jacobian.shape[0]} outputs of {jacobian.shape[1]} "
            f"examples and labels {tuple(signs.shape)}: pick an output by function=."
        )
    require_signs(signs)
    signed = (signs[:, None].to(jacobian) * jacobian[0]).double()
    weights = PVector.from_model(model, layers=rows.layout).flat.detach().double().cpu()
    network = Network.of(model, options.get("layers"), options.get("forward"), options.get("function"))
    outputs = torch.cat(outputs_at(network, inputs, None)).double().flatten().cpu()
    margins = signs.to(outputs) * outputs
    _require_euler(signed @ weights, margins, degree, torch.finfo(jacobian.dtype).eps)
    multipliers, _ = nonnegative_least_squares(signed.t().numpy(), weights.numpy())
    found = torch.from_numpy(multipliers)
    combination = found @ signed
    size = float(combination.norm() * weights.norm())
    least, total = margins.min(), float(found @ margins)
    return Stationarity(
        margins=margins,
        normalized_margin=float(least / weights.norm() ** degree),
        multipliers=found,
        alignment=float(combination @ weights) / size if size > 0 else 0.0,
        slackness=float(found @ (margins - least)) / total if total > 0 else 1.0,
    )


def _require_euler(products: Tensor, margins: Tensor, degree: float, rounding: float) -> None:
    """Refuse a model without `<w, df/dw> = D f`, which holds for homogeneous functions of degree D only."""
    off = float((products - degree * margins).norm())
    if not off <= max(1e-4, 100 * rounding) * float(products.norm() + degree * margins.norm()):
        raise ModelError(
            f"The outputs are not homogeneous of degree {degree:g} in the selected parameters: <w, df/dw> differs from D f "
            f"by {off:.1e}. Measure the degree by homogeneity(model, inputs); all parameters must be trainable and selected."
        )
