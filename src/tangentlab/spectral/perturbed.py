"""Which frequencies of a network survive when its parameters are shaken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.alignment.directions import outputs_at
from tangentlab.engine.network import Forward, Network, OutputFunction
from tangentlab.errors import InputError, NumericsError
from tangentlab.objects.pvector import PVector
from tangentlab.spectral.discrete import amplitudes


def perturbed_spectrum(
    model: nn.Module,
    points: Any,
    frequencies: Sequence[int],
    sizes: Sequence[float],
    directions: int = 100,
    *,
    forward: Forward | None = None,
    function: OutputFunction | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Amplitudes of a network at randomly perturbed parameters over those of the network itself.

    `S(delta, k) = mean_u |f_(w + delta u)(k)| / |f_w(k)|` over unit vectors u, isotropic in the space of all parameters. It is
    1 at delta = 0.

    Args:
        model: a network with one output; it is not touched.
        points: inputs at which the latent variable is 0, 1/n, ..., (n-1)/n, in this order.
        frequencies: whole numbers below n/2, in which the network must have something.
        sizes: the lengths delta.
        directions: number of unit vectors.
        generator: source of the directions.

    Returns:
        `(len(sizes), len(frequencies))`. Cost: a forward pass over the points for every size and direction.
    """
    if directions < 1:
        raise InputError(f"The argument directions is at least 1, not {directions}.")
    if not len(sizes) or any(not size >= 0 for size in sizes):
        raise InputError(f"The argument sizes holds lengths, 0 or more, not {list(sizes)}.")
    network = Network.of(model, None, forward, function)

    def found(perturbation: Tensor | None) -> Tensor:
        outputs = torch.cat(outputs_at(network, points, perturbation))
        if outputs[0].numel() != 1:
            raise InputError(f"A network with one output is needed, not {outputs[0].numel()}: choose one by function=.")
        return amplitudes(outputs.flatten(), frequencies)

    start = found(None)
    if bool((start == 0).any()):
        raise NumericsError("The network has none of some of these frequencies, so nothing can be relative to it.")
    total = torch.zeros(len(sizes), len(start), dtype=torch.float64)
    for _ in range(directions):
        unit = PVector.random_unit(model, network.layout, generator=generator).flat
        total += torch.stack([found(size * unit) for size in sizes])
    return total / directions / start
