"""One hidden layer with a fixed output layer: the network of the theorems on information spaces and early stopping."""

import math

import torch
from torch import nn

from tangentlab.models.arguments import Activation
from tangentlab.models.mlp import MLP


class FixedOutputMLP(MLP):
    """`x -> V phi(W x)` with standard normal W, which is trained, and entries of V that stay at +-1 / sqrt(k K).

    k is the width and K the number of outputs; signs are random (Oymak, Fabian, Li and Soltanolkotabi 2019, who divide by
    sqrt(log K) as well, which is infinite at K = 1). The Jacobian has the parameters of W only.

    Args:
        inputs: d.
        width: k.
        outputs: K.
        activation: as in `MLP`.
    """

    def __init__(self, inputs: int, width: int, outputs: int = 1, activation: Activation = "softplus") -> None:
        super().__init__((inputs, width, outputs), activation, bias=False)
        hidden, output = self.layers[0], self.layers[2]
        assert isinstance(hidden, nn.Linear) and isinstance(output, nn.Linear)
        with torch.no_grad():
            hidden.weight.normal_()
            output.weight.copy_((torch.randint(0, 2, (outputs, width)) * 2 - 1) / math.sqrt(width * outputs))
        output.weight.requires_grad_(False)
