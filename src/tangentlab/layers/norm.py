"""Normalization layers: weight and bias act entrywise on the normalized input, so rows are cheap to write out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum
from tangentlab.layers.registry import as_vector, register


def _entrywise(normalized: Tensor, grads: Tensor, group: tuple[str, ...], first_axis: int, last_axis: int) -> OuterSum:
    """grad weight = sum of (output-gradient * normalized input) over all axes but the affine ones.

    normalized (N, ...), grads (K, N, ...); the affine axes are first_axis..last_axis of the former.
    """
    products = grads if group == ("bias",) else grads * normalized
    kept = {first_axis % normalized.ndim + 1 + i for i in range((last_axis - first_axis) % normalized.ndim + 1)}
    summed = [axis for axis in range(2, grads.ndim) if axis not in kept]
    return OuterSum.explicit((products.sum(summed) if summed else products).flatten(2))


@register(
    nn.LayerNorm, nn.RMSNorm, pointwise=True, features=lambda module: len(module.normalized_shape), matrix=as_vector
)
def layer_norm(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """LayerNorm and RMSNorm: statistics and affine parameters over the trailing axes."""
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    shape = list(module.normalized_shape)
    if isinstance(module, nn.LayerNorm):
        normalized = F.layer_norm(inputs, shape, eps=module.eps)
    else:
        normalized = F.rms_norm(inputs, shape, eps=module.eps)
    return _entrywise(normalized, grads, group, -len(shape), -1)


@register(nn.GroupNorm)
def group_norm(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """GroupNorm: one scale per channel, channels on axis 1."""
    assert isinstance(module, nn.GroupNorm)
    normalized = torch.group_norm(inputs, module.num_groups, eps=module.eps)  # F's refuses one example of one position
    return _entrywise(normalized, grads, group, 1, 1)


def _refuse_statistics(module: nn.Module) -> str | None:
    if module.training or getattr(module, "running_mean", None) is None:
        return "batch statistics couple the examples"
    return None


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, refuse=_refuse_statistics, couples=True)
def batch_norm(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """BatchNorm in eval mode: a fixed affine map per channel, channels on axis 1."""
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    normalized = F.batch_norm(inputs, module.running_mean, module.running_var, eps=module.eps)
    return _entrywise(normalized, grads, group, 1, 1)


def _refuse_instance_statistics(module: nn.Module) -> str | None:
    return "running statistics are updated in train mode" if module.training and module.track_running_stats else None


@register(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, refuse=_refuse_instance_statistics)
def instance_norm(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """InstanceNorm: per-example (or running) statistics, one scale per channel."""
    assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
    own = module.training or not module.track_running_stats
    normalized = F.instance_norm(inputs, module.running_mean, module.running_var, use_input_stats=own, eps=module.eps)
    return _entrywise(normalized, grads, group, 1, 1)
