"""The knob between feature learning and linearized training: f0 + alpha (f - f0)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import Batches
from tangentlab.engine.feeding import call_model
from tangentlab.engine.forward_mode import no_fast_path
from tangentlab.engine.network import evaluated, main_tensor, refuse_modes, require_module, without_chance
from tangentlab.errors import InputError, ModelError
from tangentlab.linearized.linearize import frozen_copy

LARGEST_IN_SINGLE_PRECISION = 1000.0
"""f - f0 carries the rounding of f, about 1e-7 |f| in float32, and alpha multiplies it."""


class AlphaModel(nn.Module):
    """`f_alpha(x) = f0(x) + alpha (f(x) - f0(x))`, with f0 the network at its start (Chizat et al. 2019).

    With the learning rate `eta / alpha^2` (see `learning_rate`; the momentum stays) a step moves the parameters by
    O(1 / alpha) and the function by O(1): alpha = 1 is the network itself, alpha -> infinity its linearization, and below
    1 it learns features faster than usual. A network that is linear in its parameters is trained the same by every alpha.

    The model is copied, so that runs with several alphas start from one and the same point; the copy in `model` is the
    network that is trained. Train-mode batch norm and dropout are refused, since alpha would multiply the differences
    between two batches or two draws: call `model.eval()` first, in which batch norms train their weights and biases.

    Args:
        model: the network at its start.
        alpha: positive.
        offset: False leaves `f0(x) +` out, as the authors' own code does.
    """

    def __init__(self, model: nn.Module, alpha: float, *, offset: bool = True) -> None:
        super().__init__()
        require_module(model)
        if not 0 < alpha < float("inf"):
            raise InputError(f"The argument alpha must be a positive number, not {alpha!r}.")
        if "initial" in signature(model.forward).parameters:
            raise ModelError("The network's own argument initial= is that of AlphaModel for f0: rename it.")
        _refuse_train_mode(model)
        self.alpha, self.offset = float(alpha), offset
        self.start = frozen_copy(model)
        for mine, given in zip(self.start.modules(), model.modules(), strict=True):
            mine.training = given.training
        self.model = deepcopy(model)
        self._warned = False
        for parameter in model.parameters():
            self._warn_of_rounding(parameter.dtype)

    def forward(self, *inputs: Any, initial: Tensor | None = None, **options: Any) -> Tensor:
        """f_alpha of a batch; called like the network.

        `initial` is f0 of the batch where it is known, from `initial_outputs`: the step then costs one forward pass.
        """
        _refuse_train_mode(self.model)
        with no_fast_path():
            outputs = _without_chance(lambda: main_tensor(self.model(*inputs, **options)))
            if initial is None:
                initial = evaluated(lambda: main_tensor(self.start(*inputs, **options)))
        self._warn_of_rounding(outputs.dtype)
        if initial.shape != outputs.shape:
            raise InputError(
                f"The argument initial= has the shape {tuple(initial.shape)}, the outputs {tuple(outputs.shape)}."
            )
        change = self.alpha * (outputs - initial)
        return initial + change if self.offset else change

    def initial_outputs(self, data: Any, batch_size: int = 500) -> Tensor:
        """f0 of all examples, (examples, ...), to be stored next to data that are not augmented.

        `data` is a tensor, a tuple whose first entry is the inputs, a dict batch, or an ordered loader of these.
        """
        if isinstance(data, tuple) and data and isinstance(data[0], Tensor):
            data = data[0]
        batches = [(part,) for part in data.split(batch_size)] if isinstance(data, Tensor) else data

        def start_of(batch: Any) -> Tensor:
            return evaluated(lambda: main_tensor(call_model(self.start, batch)))

        with no_fast_path():
            return torch.cat([start_of(batch) for batch in Batches(batches, ordered=True)])

    def learning_rate(self, eta: float) -> float:
        """`eta / alpha^2`: the rate with which the function moves as fast as that of a network trained with eta."""
        return eta / self.alpha**2

    def _warn_of_rounding(self, dtype: torch.dtype) -> None:
        """Once, where alpha times the precision is above what alpha = 1000 makes of float32."""
        rounding = torch.finfo(dtype).eps if dtype.is_floating_point and self.alpha > 1 else 0.0
        if self._warned or self.alpha * rounding <= LARGEST_IN_SINGLE_PRECISION * torch.finfo(torch.float32).eps:
            return
        self._warned = True
        warnings.warn(
            f"alpha = {self.alpha:g} multiplies the rounding of {str(dtype).removeprefix('torch.')} outputs, about "
            f"{rounding:.0e}, by as much: use model.double(), or linearize(model), which needs no difference.",
            stacklevel=3,
        )

    def extra_repr(self) -> str:
        """Alpha and the variant."""
        return f"alpha = {self.alpha:g}, offset = {self.offset}"


def _without_chance(call: Callable[[], Tensor]) -> Tensor:
    """The outputs; a network that draws random numbers on the way has no f - f0."""
    try:
        return without_chance(call)
    except ModelError as error:
        raise ModelError(f"f0 + alpha (f - f0) is not defined for this network. {error}") from None


def _refuse_train_mode(model: nn.Module) -> None:
    try:
        refuse_modes(model)
    except ModelError as error:
        raise ModelError(f"f0 + alpha (f - f0) is not defined for this network: {error}") from None
