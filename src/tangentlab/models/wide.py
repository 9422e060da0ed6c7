"""A perceptron in the NTK parametrization, whose tangent kernel has a limit as its width grows."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tangentlab.models.arguments import Activation
from tangentlab.models.mlp import MLP


class Factor(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """`factor * x`."""
        return self.factor * x

    def extra_repr(self) -> str:
        """The constant."""
        return f"{self.factor:g}"


class WideMLP(MLP):
    """`x -> s/sqrt(d_L) W_L phi(... s/sqrt(d_1) W_1 x)` with standard normal weights and no biases (Jacot et al. 2018).

    Its kernels tend to those of `tangentlab.kernels.wide_mlp_kernels` with `bias_std=0` and the same `weight_std` s, at the
    rate of width^-1/2. The factors are modules of their own, so that the linear layers are plain.

    Args:
        widths: sizes of all layers, input and output included.
        activation: as in `MLP`.
        weight_std: s.
    """

    def __init__(
        self, widths: Sequence[int], activation: Activation = "relu", weight_std: float = math.sqrt(2)
    ) -> None:
        super().__init__(widths, activation, bias=False)
        modules: list[nn.Module] = []
        for module in self.layers:
            if isinstance(module, nn.Linear):
                with torch.no_grad():
                    module.weight.normal_()
                modules.append(Factor(weight_std / math.sqrt(module.in_features)))
            modules.append(module)
        self.layers = nn.Sequential(*modules)
