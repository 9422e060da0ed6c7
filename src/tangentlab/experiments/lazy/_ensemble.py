"""Many small networks trained side by side: one batched product instead of one per network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """R multi-layer perceptrons of one shape; network r sees the inputs of row r: `(R, n, inputs)` to `(R, n)`.

    Their parameters are stacked and never mix, so the gradient of a sum of their losses is that of each.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        layers = [[module for module in net.modules() if isinstance(module, nn.Linear)] for net in networks]
        places = list(zip(*layers, strict=True))
        self.weights = nn.ParameterList(torch.stack([one.weight.detach().t() for one in place]) for place in places)
        self.biases = nn.ParameterList(torch.stack([one.bias.detach()[None] for one in place]) for place in places)

    def forward(self, x: Tensor) -> Tensor:
        """The only output of every network, with ReLU between layers."""
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x.relu() if place < last else x
        return x[..., 0]

    def keep(self, rows: Tensor) -> None:
        """Go on with these networks only; the parameters are new ones."""
        for group in (self.weights, self.biases):
            for place, parameter in enumerate(group):
                group[place] = nn.Parameter(parameter.detach()[rows], requires_grad=parameter.requires_grad)
