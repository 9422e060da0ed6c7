"""Linear layers on inputs of any rank: grad = sum over positions of (output-gradient) (input)^T."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum
from tangentlab.layers.registry import register


@register(nn.Linear, joint=True, pointwise=True)
def linear(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """inputs (N, ..., I), grads (K, N, ..., O): all axes between are positions."""
    left = _positions(grads)
    if group == ("bias",):
        return OuterSum.explicit(left.sum((2, 3)), kronecker=True)
    right = _positions(inputs[None])
    return OuterSum(left, right, bias=len(group) == 2, kronecker=True)


@register(nn.Embedding, pointwise=True, refuse=lambda module: _refuse_embedding(module))
def embedding(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """Row lookup: grad = sum over positions of one-hot(index) (output-gradient)^T; the padding row gets none."""
    assert isinstance(module, nn.Embedding)
    index = _positions(inputs[None, ..., None])[..., 0].long()
    left = torch.nn.functional.one_hot(index, module.num_embeddings).to(grads.dtype)
    if module.padding_idx is not None:
        left[..., module.padding_idx] = 0
    right = _positions(grads)
    return OuterSum(left, right, gradients="right", kronecker=True)


def _positions(tensor: Tensor) -> Tensor:
    """(K, N, ..., F) as (K, N, 1, T, F); T is 0 for an expert that gets no tokens."""
    outputs, examples, *between, features = tensor.shape
    return tensor.reshape(outputs, examples, 1, prod(between), features)


def _refuse_embedding(module: nn.Module) -> str | None:
    if getattr(module, "scale_grad_by_freq", False):
        return "scale_grad_by_freq rescales gradients by batch counts"
    if getattr(module, "max_norm", None) is not None:
        return "max_norm changes the weight during the forward"
    return None
