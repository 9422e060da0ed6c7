"""One input: how parameters move frequencies, exactly from kinks.

A network f of one input is continued beyond an interval by its slopes at the ends. For k != 0 its transform is the sum over
kinks `-1/k^2 sum_j c_j e^{-i k x_j}`. Its derivative by a parameter is a function of x with jumps J_j and slope jumps S_j at
the kinks, and so

    d f~(k) / d theta = sum_j (J_j / (i k) + S_j / (i k)^2) e^{-i k x_j}:

one power slower, as Prop. A.2 says. High frequencies fill little of parameter space (App. A.4), which `high_frequency_volume`
measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError
from tangentlab.spectral.complexes import Floats
from tangentlab.spectral.divided import Waves
from tangentlab.spectral.follow import DTYPE
from tangentlab.spectral.network_fourier import kink_transform, kinks
from tangentlab.spectral.partition import Partition
from tangentlab.spectral.regions import enumerate_regions


def parameter_gradients(model: nn.Module, interval: Sequence[float], k: ArrayLike) -> Waves:
    """`d f~(k) / d theta` for every frequency and parameter, `(frequencies, parameters)`, exactly.

    Args:
        model: one input, one output; all parameters in the order of `named_parameters()`, frozen ones too.
        interval: `(low, high)`; kinks outside of it do not count.
        k: frequencies other than 0.

    Cost: two gradients per region.
    """
    waves = _nonzero(k)
    partition = enumerate_regions(model, interval)
    ends = np.stack([partition.corners(region)[:, 0] for region in range(len(partition))])
    ends = ends[np.argsort(ends[:, 0])]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    require_memory(
        8 * parameters * (6 * len(ends) + 2 * len(waves)), "Gradients of a spectrum", "Use fewer frequencies."
    )
    thirds = [ends @ np.array(weights) for weights in ((2 / 3, 1 / 3), (1 / 3, 2 / 3))]
    low, high = (_gradients(model, torch.from_numpy(points)) for points in thirds)
    slope = (high - low) / (thirds[1] - thirds[0])[:, None]
    left, right = 2 * low - high, 2 * high - low  # values at both ends of each region
    jump, bend = left[1:] - right[:-1], slope[1:] - slope[:-1]
    phases = np.exp(-1j * np.multiply.outer(waves, ends[1:, 0]))
    step = 1j * waves[:, None]
    found: Waves = (phases @ jump) / step + (phases @ bend) / step**2
    return found


def mode_velocities(
    model: nn.Module, inputs: Tensor, targets: Tensor, interval: Sequence[float], k: ArrayLike
) -> Waves:
    """`d f~(k) / dt` under gradient flow on `sum_x (f(x) - target)^2`: the speed at which a frequency is learnt (eq. 9).

    Args:
        model: one input, one output.
        inputs, targets: `(examples, 1)` and `(examples,)` or `(examples, 1)`.
        interval: `(low, high)`; kinks outside of it do not count.
        k: frequencies other than 0.
    """
    if targets.numel() != len(inputs):
        raise InputError(f"{len(inputs)} inputs need as many targets, not {tuple(targets.shape)}.")
    double = _trainable_copy(model)
    with torch.enable_grad():
        loss = (double(inputs.to(DTYPE)).flatten() - targets.to(DTYPE).flatten()).square().sum()
        parts = torch.autograd.grad(loss, list(double.parameters()), materialize_grads=True)
    moving = [parameter.requires_grad for parameter in model.parameters()]  # frozen parameters do not flow
    gradient = torch.cat([part.flatten() * moves for part, moves in zip(parts, moving, strict=True)])
    return -(parameter_gradients(model, interval, k) @ gradient.numpy())


def _gradients(model: nn.Module, points: Tensor) -> Floats:
    """df/dtheta at points `(points,)`, `(points, parameters)`, in float64."""
    double = _trainable_copy(model)
    parameters = list(double.parameters())
    rows = []
    with torch.enable_grad():
        outputs = double(points.view(-1, 1)).flatten()
        if len(outputs) != len(points):
            raise InputError(f"A network with one output is needed, not {len(outputs) // len(points)}.")
        for output in outputs:
            parts = torch.autograd.grad(output, parameters, retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).numpy()


def _trainable_copy(model: nn.Module) -> nn.Module:
    """In float64, with a gradient for every parameter."""
    return deepcopy(model).to(DTYPE).requires_grad_()


def _nonzero(k: ArrayLike) -> Floats:
    waves = np.atleast_1d(np.asarray(k, dtype=np.float64))
    if waves.ndim != 1 or not len(waves) or not np.isfinite(waves).all() or (waves == 0).any():
        raise InputError("Frequencies are finite numbers other than 0, at least one.")
    return waves


@dataclass(frozen=True)
class Volume:
    """The share of parameters with a frequency beyond each k whose size is above a threshold.

    Args:
        frequencies: k, increasing.
        share: `vol(Xi_eps(k)) / vol(Theta)`, never increasing in k.
        error: standard error of the share.
    """

    frequencies: Floats
    share: Floats
    error: Floats


def high_frequency_volume(
    model: nn.Module,
    radius: float,
    threshold: float,
    k: ArrayLike,
    interval: Sequence[float] = (-1.0, 1.0),
    samples: int = 200,
    generator: torch.Generator | None = None,
) -> Volume:
    """Monte-Carlo estimate of `Xi_eps(k) = {theta : |f~_theta(k')| > eps for a k' >= k}` in the ball `|theta|_inf <= radius`.

    Frequencies between those given are not looked at: the grid should be finer than pi over the length of the interval.

    Args:
        model: one input, one output; its parameters give the shapes only.
        radius: K, the bound on every parameter.
        threshold: eps.
        k: increasing, positive frequencies.
        interval: where kinks count.
        samples: parameters drawn, uniformly.
        generator: of the draws.

    Cost: one partition in 1-D per sample.
    """
    waves = _nonzero(k)
    if (np.diff(waves) <= 0).any() or waves[0] <= 0 or radius <= 0 or threshold <= 0 or samples < 1:
        raise InputError("Frequencies increase from a positive one; radius, threshold and samples are positive.")
    source = generator if generator is not None else torch.Generator().manual_seed(0)
    drawn = deepcopy(model).to(DTYPE)
    beyond = np.zeros(len(waves))
    for _ in range(samples):
        with torch.no_grad():
            for parameter in drawn.parameters():
                parameter.copy_(radius * (2 * torch.rand(parameter.shape, generator=source, dtype=DTYPE) - 1))
        large = np.abs(continued_transform(enumerate_regions(drawn, interval), waves)) > threshold
        beyond += np.maximum.accumulate(large[::-1])[::-1]
    share = beyond / samples
    return Volume(waves, share, np.sqrt(share * (1 - share) / samples))


def continued_transform(partition: Partition, k: ArrayLike, output: int | None = None) -> Waves:
    """The transform for k != 0 of a network of one input, continued beyond its interval by the slopes at the ends."""
    places, jumps = kinks(partition, output)
    return kink_transform(places, jumps, _nonzero(k))
