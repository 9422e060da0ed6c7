"""Layers that nobody here has seen, registered as the guide says."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tangentlab.layers import OuterSum, register
from tangentlab.layers.linear import positions_of


class OwnLinear(nn.Module):
    """A linear layer by another name."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


@register(OwnLinear, joint=True, pointwise=True)
def own_linear(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    left = positions_of(grads)
    if group == ("bias",):
        return OuterSum.explicit(left.sum((2, 3)), kronecker=True)
    return OuterSum(left, positions_of(inputs[None]), bias=len(group) == 2, kronecker=True)


class Unstructured(OwnLinear):
    """The same with a rule that writes gradients out and claims no structure."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@register(Unstructured, pointwise=True)
def unstructured(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    return OuterSum.explicit(own_linear(module, inputs, grads, group).rows())


class Careless(OwnLinear):
    """The same with a rule that forgets to say that it is a Kronecker product."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@register(Careless, joint=True, pointwise=True)
def careless(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    result = own_linear(module, inputs, grads, group)
    result.kronecker = False
    return result


class LowRank(nn.Module):
    """y = B A x, whose parameters are called A and B."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.A.T @ self.B.T


@register(LowRank, groups=(("A",), ("B",)), pointwise=True)
def low_rank(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    assert isinstance(module, LowRank)
    left, right = positions_of(grads), positions_of(inputs[None])
    if group == ("A",):
        return OuterSum(left @ module.B, right, kronecker=True)
    return OuterSum(left, right @ module.A.T, kronecker=True)


class Transposed(nn.Module):
    """y = x W with W (inputs, outputs): output-gradients are on the columns, which its rule does not announce."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@register(Transposed, pointwise=True)
def transposed(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    return OuterSum(positions_of(inputs[None]), positions_of(grads), gradients="right", kronecker=True)
