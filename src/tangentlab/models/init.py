"""Initializations: normal with a variance relative to the fan-in, and Glorot's for sigmoids."""

import torch
from torch import nn

from tangentlab.errors import InputError

HE = 2.0
"""Variance times fan-in of a layer directly preceded by a ReLU (He et al. 2015)."""
LECUN = 1.0
"""Variance times fan-in of a layer not directly preceded by an activation."""
LAST_OF_BLOCK = 0.2
"""Variance times fan-in of the last convolution of a residual block without normalization: He divided by 10."""


@torch.no_grad()
def fan_in_normal_(layer: nn.Module, variance: float = HE, generator: torch.Generator | None = None) -> None:
    """Draw `W ~ N(0, variance / n)`, with n the fan-in, and set `b = 0`.

    Args:
        layer: a linear or convolutional layer; for a weight `(out, in, *kernel)`, n is the product of all but `out`.
        variance: the variance times the fan-in: `HE`, `LECUN` or `LAST_OF_BLOCK`, or any other number.
        generator: source of randomness; torch's global one by default.
    """
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    if not isinstance(weight, torch.Tensor) or weight.dim() < 2 or transposed:
        raise InputError(f"A fan-in is defined for linear and convolutional layers, not for {type(layer).__name__}.")
    weight.normal_(0.0, (variance / weight[0].numel()) ** 0.5, generator=generator)
    if bias is not None:
        bias.zero_()


def glorot_(model: nn.Module, gain: float = 4.0) -> nn.Module:
    """Draw `W ~ N(0, 2 gain^2 / (fan_in + fan_out))` in all linear layers, set `b = 0`, and return the model.

    A gain of 4, the inverse of a sigmoid's slope at 0, keeps the signal alive through a chain of sigmoids (Glorot & Bengio
    2010), where torch's own initialization lets it die out.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, gain=gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def initialize_plain_(model: nn.Module, first: float = LECUN, hidden: float = HE, last: float = HE) -> None:
    """Initialize a chain of layers with `fan_in_normal_`, by their place in it.

    Args:
        model: a network whose `nn.Linear` and `nn.Conv2d` modules are registered in the order of the chain.
        first: variance times fan-in of the first layer.
        hidden: the same for the layers in between.
        last: the same for the last layer.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for place, layer in enumerate(layers):
        fan_in_normal_(layer, first if place == 0 else last if place == len(layers) - 1 else hidden)
