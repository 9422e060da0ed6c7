"""Chains of linear layers with activations and batch norms."""

from collections.abc import Sequence

from torch import nn

from tangentlab.models.arguments import Activation, make_activation


def dense_stack(widths: Sequence[int], activation: Activation, batch_norm: bool, plain_end: bool) -> nn.Sequential:
    """Return a chain of linear layers with activations; `plain_end` leaves the last one linear."""
    modules: list[nn.Module] = []
    for place, (fan_in, fan_out) in enumerate(zip(widths[:-1], widths[1:], strict=True), start=2):
        modules.append(nn.Linear(fan_in, fan_out))
        if place < len(widths) or not plain_end:
            modules += [nn.BatchNorm1d(fan_out)] if batch_norm else []
            modules.append(make_activation(activation))
    return nn.Sequential(*modules)
