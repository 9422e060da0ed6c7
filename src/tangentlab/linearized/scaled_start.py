"""The scale of the initialization as one knob for any model, and a meter of how far a training was in the kernel regime."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.network import require_module
from tangentlab.errors import InputError
from tangentlab.kernels.matrix import kernel_matrix
from tangentlab.kernels.similarity import kernel_distance
from tangentlab.linearized.alpha import AlphaModel
from tangentlab.linearized.linearize import linearize
from tangentlab.metrics import NTK


def scaled_init(model: nn.Module, alpha: float) -> AlphaModel:
    """`x -> f(w, x) - f(alpha w_0, x)` with the weights starting at `alpha w_0`: outputs are zero at the start for every alpha.

    On a D-homogeneous model, large alpha trains in the kernel regime and small alpha in the rich one (Chizat and Bach 2018):
    `alpha^{D-1} (w_alpha(t / alpha^{2D-2}) - alpha w_0)` tends to the path of the linearized model for alpha -> infinity, so
    the learning rate belongs to alpha as `eta / alpha^{2D-2}`. (The slides print `w_alpha(t / alpha^{D-1}) / alpha`, which
    does not converge.) The model itself is copied, not changed; the copy in `.model` is the network that is trained.

    Args:
        model: at its initialization.
        alpha: the factor on all of its parameters, positive.
    """
    if not 0 < alpha < float("inf"):
        raise InputError(f"The argument alpha must be a positive number, not {alpha!r}.")
    require_module(model)
    start = deepcopy(model)
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.mul_(alpha)
    return AlphaModel(start, 1.0, offset=False)


@dataclass(frozen=True)
class RegimeReading:
    """How far a trained network is from its linearization at the start; all are 0 in the kernel regime.

    Attributes:
        kernel: `|K - K_0|_F / |K_0|_F` of the tangent kernels on the probe inputs.
        kernel_direction: one minus the cosine of the two kernels, blind to their scale.
        parameters: `|w - w_0| / |w_0|`.
        linearity: `|f(w) - f_lin(w)| / |f_lin(w) - f_0|` on the probe inputs, with the tangent model at the same weights.
        function: `|f(w) - f_twin| / |f_twin - f_0|`, with the tangent model trained in the same way; NaN without a twin.
    """

    kernel: float
    kernel_direction: float
    parameters: float
    linearity: float
    function: float


def regime_of(
    start: nn.Module, trained: nn.Module, inputs: Tensor, *, twin: Tensor | None = None, **options: Any
) -> RegimeReading:
    """Compares a trained network with its start on probe inputs.

    Args:
        start: the network at its start.
        trained: the same network with trained weights.
        inputs: the probe.
        twin: outputs on the probe of the linearized network trained in the same way, `(n, ...)`; for squared loss on all
            data until it fits, `tangentlab.kernels.predict` of `ridge_dual` with penalty 0 gives them in closed form.
        options: of `NTK`, for both kernels.

    Cost: two tangent kernels of the probe and one Jacobian product.
    """
    here, there = trained.state_dict(), start.state_dict()
    if {name: value.shape for name, value in here.items()} != {name: value.shape for name, value in there.items()}:
        raise InputError(
            "The start and the trained network are not the same network: their parameters have other names or shapes."
        )
    begun = deepcopy(trained)  # trainable where the trained network is; a start may be frozen
    begun.load_state_dict(there)
    origin = dict(begun.named_parameters())
    first, last = (kernel_matrix(NTK(model, inputs, **options)) for model in (begun, trained))
    with torch.no_grad():
        before, after = begun(inputs), trained(inputs)
    if twin is not None and twin.shape != after.shape:
        raise InputError(f"The twin's outputs on the probe are {tuple(after.shape)}, not {tuple(twin.shape)}.")
    tangent = linearize(begun)
    with torch.no_grad():
        for name, step in tangent.displacements().items():
            step.copy_(here[name] - origin[name])
        steps = tangent.displacements()
        moved, size = (torch.cat([one[name].flatten() for name in steps]) for one in (steps, origin))
        linear = tangent(inputs)
    return RegimeReading(
        kernel=_relative(last - first, first),
        kernel_direction=kernel_distance(first, last),
        parameters=_relative(moved, size),
        linearity=_relative(after - linear, linear - before),
        function=float("nan") if twin is None else _relative(after - twin, twin - before),
    )


def _relative(difference: Tensor, reference: Tensor) -> float:
    """The size of a difference against that of a reference: 0 where nothing differs, infinite where only the reference is 0."""
    size, unit = float(difference.norm()), float(reference.norm())
    if size == 0:
        return 0.0
    return size / unit if unit else math.inf
