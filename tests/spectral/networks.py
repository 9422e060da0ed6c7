"""Networks whose regions and transforms are known, and some that are not."""

import numpy as np
import torch
from torch import Tensor, nn


def mlp(
    inputs: int, width: int, depth: int, seed: int = 0, outputs: int = 1, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), activation()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs)).eval()


def shallow(weights: list[list[float]], biases: list[float], last: list[float]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(len(weights[0]), len(weights)), nn.ReLU(), nn.Linear(len(weights), 1, bias=False))
    for parameter, values in zip(model.double().parameters(), (weights, biases, [last])):
        parameter.data = torch.tensor(values, dtype=torch.float64)
    return model


def hat() -> nn.Sequential:
    """max(0, 1 - |x|), with the transform (2 - 2 cos k) / k^2."""
    return shallow([[1.0]] * 3, [1.0, 0.0, -1.0], [1.0, -2.0, 1.0])


class Pyramid(nn.Module):
    """max(0, 1 - |x_1| - ... - |x_d|)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(1 - x.abs().sum(1, keepdim=True))


def patterns_of(model: nn.Module, x: Tensor) -> set[bytes]:
    """The different patterns among points, by brute force."""
    from tangentlab.spectral import activation_pattern

    found = torch.cat([part.flatten(1).to(torch.int16) for part in activation_pattern(model, x)], 1).numpy()
    return {row.tobytes() for row in np.unique(found, axis=0)}


def uniform(points: int, low: float, high: float, dimension: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(points, dimension, generator=generator, dtype=torch.float64)
