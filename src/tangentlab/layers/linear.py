"""Linear layers on inputs of any rank: grad = sum over positions of (output-gradient) (input)^T."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum
from tangentlab.layers.registry import Matrix, register


@register(nn.Linear, joint=True, pointwise=True)
def linear(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """inputs (N, ..., I), grads (K, N, ..., O): all axes between are positions."""
    left = positions_of(grads)
    if group[0].endswith("bias"):
        return OuterSum.explicit(left.sum((2, 3)), kronecker=True)
    return OuterSum(left, positions_of(inputs[None]), bias=len(group) == 2, kronecker=True)


@register(nn.Bilinear, joint=True, pointwise=True, arguments=("input1", "input2"))
def bilinear(module: nn.Module, inputs: tuple[Tensor, Tensor], grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """y_o = x^T W_o z + b_o: a linear layer on the products x_i z_j."""
    one, two = inputs
    return linear(module, (one[..., :, None] * two[..., None, :]).flatten(-2), grads, group)


def _inputs_first(module: nn.Module, weight: Tensor) -> Matrix:
    return Matrix((1, *weight.shape), "right")  # type: ignore[arg-type]


@register(
    "transformers.pytorch_utils.Conv1D", "transformers.modeling_utils.Conv1D", pointwise=True, matrix=_inputs_first
)
def transposed_linear(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """y = x W + b with W (inputs, outputs), as in GPT-2: inputs are on the rows."""
    if group == ("bias",):
        return linear(module, inputs, grads, group)
    return OuterSum(positions_of(inputs[None]), positions_of(grads), gradients="right", kronecker=True)


def positions_of(tensor: Tensor) -> Tensor:
    """(K, N, ..., F) as (K, N, 1, T, F); T is 0 for an expert that gets no tokens."""
    outputs, examples, *between, features = tensor.shape
    return tensor.reshape(outputs, examples, 1, prod(between), features)
