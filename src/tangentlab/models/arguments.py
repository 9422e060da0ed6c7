"""Arguments that the networks share: activations by name, checked sizes."""

from collections.abc import Callable
from typing import Any

from torch import nn

from tangentlab.errors import InputError

Activation = str | Callable[[], nn.Module]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


def make_activation(activation: Activation) -> nn.Module:
    """Return a new module for a name of `ACTIVATIONS`, or for a callable that makes one (a class such as `nn.ReLU`)."""
    if isinstance(activation, nn.Module):
        raise InputError(
            "The argument activation is a module instance, which would be shared: pass its class or a function instead."
        )
    if callable(activation):
        return activation()
    if activation not in ACTIVATIONS:
        raise InputError(f"Unknown activation {activation!r}; known: {', '.join(ACTIVATIONS)}; or pass a module class.")
    return ACTIVATIONS[activation]()


def check_positive(**values: Any) -> None:
    """Raise `InputError` unless every value is a positive integer; the message names the argument."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be a positive integer, got {value!r}.")
