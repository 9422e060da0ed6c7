"""Convolutions and transposed convolutions of any dimension: outer products over output (input) positions.

A convolution is a linear layer on patches, grad = sum_t (output-gradient at t) (patch at t)^T. The patches are a view of
the padded input until something needs them in memory.
"""

from __future__ import annotations

from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.layers.outer import OuterSum
from tangentlab.layers.registry import register

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def pad_input(module: nn.modules.conv._ConvNd, inputs: Tensor) -> Tensor:
    """The input as the convolution sees it: zeros, reflect, replicate or circular padding, 'same' included."""
    if isinstance(module.padding, str):
        pads = list(module._reversed_padding_repeated_twice)
    else:
        pads = [amount for amount in reversed(module.padding) for _ in range(2)]
    if not any(pads):
        return inputs
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(inputs, pads, mode=mode)


def patch_view(
    padded: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], size: tuple[int, ...]
) -> Tensor:
    """View (M, channels, *size, *kernel) of padded (M, channels, *spatial): no copy."""
    strides = padded.stride()
    steps = [s * step for s, step in zip(strides[2:], stride, strict=True)]
    taps = [s * gap for s, gap in zip(strides[2:], dilation, strict=True)]
    shape = (*padded.shape[:2], *size, *kernel)
    return padded.as_strided(shape, (*strides[:2], *steps, *taps), padded.storage_offset())


def patches(module: nn.modules.conv._ConvNd, padded: Tensor, size: tuple[int, ...]) -> Tensor:
    """Patches (M, groups, T, channels / groups * kernel) in the order of the weight's columns."""
    view = patch_view(padded, module.kernel_size, module.stride, module.dilation, size)
    dims, channels = len(size), padded.shape[1] // module.groups
    view = view.unflatten(1, (module.groups, channels))
    positions, taps = range(3, 3 + dims), range(3 + dims, 3 + 2 * dims)
    view = view.permute(0, 1, *positions, 2, *taps)
    return view.reshape(padded.shape[0], module.groups, prod(size), channels * prod(module.kernel_size))


def position_rows(tensor: Tensor, groups: int) -> Tensor:
    """(..., groups * F, *spatial) of (K, N, ...) as (K, N, groups, T, F)."""
    return tensor.flatten(3).unflatten(2, (groups, -1)).transpose(-1, -2)


class ConvSum(OuterSum):
    """Gradients of a convolution; the patches are made when asked for and not kept."""

    def __init__(self, module: nn.modules.conv._ConvNd, padded: Tensor, grads: Tensor, bias: bool) -> None:
        left = position_rows(grads, module.groups)
        super().__init__(left, padded, bias=bias, kronecker=True)
        self.module, self.grads, self.size = module, grads, tuple(grads.shape[3:])

    @property
    def right(self) -> Tensor:
        """Patches (1, N, groups, T, columns)."""
        return patches(self.module, self._right, self.size)[None]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, rows, columns) of the weight."""
        module = self.module
        columns = module.in_channels // module.groups * prod(module.kernel_size)
        return module.groups, module.out_channels // module.groups, columns

    @property
    def outputs(self) -> int:
        """K."""
        return self.left.shape[0]

    def take_examples(self, start: int, stop: int) -> OuterSum:
        """The same for examples start..stop only."""
        return ConvSum(self.module, self._right[start:stop], self.grads[:, start:stop], self.bias)


@register(*_CONVOLUTIONS, joint=True)
def convolution(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """inputs (N, C, *spatial), grads (K, N, O, *size)."""
    assert isinstance(module, _CONVOLUTIONS)
    if group == ("bias",):
        return OuterSum.explicit(grads.flatten(3).sum(-1), kronecker=True)
    return ConvSum(module, pad_input(module, inputs), grads, bias=len(group) == 2)


@register(*_TRANSPOSED)
def transposed_convolution(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """The roles swap: inputs meet patches of the output-gradients, one term per input position."""
    assert isinstance(module, _TRANSPOSED)
    if group == ("bias",):
        return OuterSum.explicit(grads.flatten(3).sum(-1), kronecker=True)
    pads = [int(amount) for amount in reversed(module.padding) for _ in range(2)]  # type: ignore[call-overload]
    padded = F.pad(grads.flatten(0, 1), pads)
    size = tuple(inputs.shape[2:])
    right = patches(module, padded, size).unflatten(0, grads.shape[:2])
    left = position_rows(inputs[None], module.groups)
    return OuterSum(left, right, gradients="right", kronecker=True)


def expected_ndim(module: nn.Module) -> int | None:
    """Rank of a batched input of a convolution (None for other layers); less means an input without example axis."""
    return len(module.kernel_size) + 2 if isinstance(module, _CONVOLUTIONS + _TRANSPOSED) else None
