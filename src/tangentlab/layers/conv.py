"""Convolutions and transposed convolutions of any dimension: outer products over output (input) positions.

A convolution is a linear layer on patches, grad = sum_t (output-gradient at t) (patch at t)^T. The patches are a view of
the padded input until something needs them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import grad

from tangentlab.layers.contractions import Workspace, products_by_example, sum_of_cotangents
from tangentlab.layers.covariance import lagged_covariance, lagged_operations, lags_apply, window_sums
from tangentlab.layers.outer import OuterSum
from tangentlab.layers.registry import Matrix, register
from tangentlab.linalg.symmetric import sum_dtype, symmetric_product

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_WEIGHT_GRADIENT = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}
CACHE_BYTES = 2 << 20
"""Patches made at once, so that they are used before they leave the cache."""
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


def patch_columns(module: nn.modules.conv._ConvNd, padded: Tensor, size: tuple[int, ...]) -> Tensor:
    """Patches as columns (M, groups, channels / groups * kernel, T) in the order of the weight's columns.

    A strided view of padded (M, channels, *spatial), copied once; positions are innermost, so the copy runs along memory.
    """
    strides = padded.stride()
    taps = [s * gap for s, gap in zip(strides[2:], module.dilation, strict=True)]
    steps = [s * step for s, step in zip(strides[2:], module.stride, strict=True)]
    shape = (*padded.shape[:2], *module.kernel_size, *size)
    view = padded.as_strided(shape, (*strides[:2], *taps, *steps), padded.storage_offset())
    columns = padded.shape[1] // module.groups * prod(module.kernel_size)
    return view.reshape(padded.shape[0], module.groups, columns, prod(size))


def position_rows(tensor: Tensor, groups: int) -> Tensor:
    """(..., groups * F, *spatial) of (K, N, ...) as (K, N, groups, T, F)."""
    return tensor.flatten(3).unflatten(2, (groups, -1)).transpose(-1, -2)


def known_zeros(module: nn.modules.conv._ConvNd) -> tuple[int, ...]:
    """Rows and columns at each border of the padded input that are certainly zero."""
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return (0,) * len(module.kernel_size)
    return tuple(int(amount) for amount in module.padding)


def pixel_columns(inputs: Tensor, groups: int) -> Tensor:
    """Inputs (N, groups * channels, *spatial) as columns (groups, channels, N * pixels)."""
    return inputs.flatten(2).unflatten(1, (groups, -1)).permute(1, 2, 0, 3).flatten(2)


class ConvSum(OuterSum):
    """Gradients of a convolution; the patches are made when asked for, a few examples at a time where that is enough."""

    def __init__(self, module: nn.modules.conv._ConvNd, padded: Tensor, grads: Tensor, bias: bool) -> None:
        super().__init__(position_rows(grads, module.groups), padded, bias=bias, kronecker=True)
        self.module, self.grads, self.size = module, grads, tuple(grads.shape[3:])

    @property
    def right(self) -> Tensor:
        """Patches (1, N, groups, T, columns)."""
        return patch_columns(self.module, self._right, self.size).transpose(-1, -2)[None]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, rows, columns) of the weight."""
        module = self.module
        columns = module.in_channels // module.groups * prod(module.kernel_size)
        return module.groups, self.grads.shape[2] // module.groups, columns

    @property
    def outputs(self) -> int:
        """K."""
        return self.grads.shape[0]

    def pixels(self, taps: int) -> Tensor:
        """Pixels of the input itself, each once, as columns (groups, channels, N * pixels)."""
        inside, pads = self._right, self.module._reversed_padding_repeated_twice
        for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
            place = inside.ndim - 1 - axis
            inside = inside.narrow(place, before, inside.shape[place] - before - after)
        return pixel_columns(inside, self.module.groups)

    def take_examples(self, start: int, stop: int) -> OuterSum:
        """The same for examples start..stop only."""
        return ConvSum(self.module, self._right[start:stop], self.grads[:, start:stop], self.bias)

    def join_examples(self, others: Sequence[OuterSum]) -> OuterSum | None:
        """One object for the examples of several batches, or None when their positions differ."""
        every = [self, *(other for other in others if isinstance(other, ConvSum))]
        if len(every) <= len(others) or len({tuple(one._right.shape[1:]) for one in every}) > 1:
            return None
        padded, grads = torch.cat([one._right for one in every]), torch.cat([one.grads for one in every], 1)
        return ConvSum(self.module, padded, grads, self.bias)

    def example_chunks(self, padded: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """(examples, their patches (n, groups, columns, T)) in chunks that stay in the processor's cache.

        padded: some channels of the padded input; all by default.
        """
        padded = self._right if padded is None else padded
        columns = padded.shape[1] * prod(self.module.kernel_size)
        step = max(1, CACHE_BYTES // max(1, columns * self.positions * self.grads.element_size()))
        for start in range(0, self.examples, step):
            chunk = slice(start, min(start + step, self.examples))
            yield chunk, patch_columns(self.module, padded[chunk], self.size)

    def example_gradients(self, workspace: Workspace | None = None, name: str = "") -> Tensor:
        """Output-gradients (N, groups, K * rows, T), example-major; where that is a copy, it may lie in a workspace."""
        groups, rows, _ = self.matrix_shape
        by_example = self.grads.flatten(3).unflatten(2, (groups, rows)).permute(1, 2, 0, 3, 4)
        shape = (self.examples, groups, self.outputs * rows, self.positions)
        if self.outputs == 1 or workspace is None:
            return by_example.reshape(shape)
        return workspace.take(f"gradients of {name}", by_example.shape, by_example).copy_(by_example).view(shape)

    def side_covariance(self, side: str, sharing: str) -> Tensor:
        """As for any layer, but patches are summed up in passing, or not made at all where lags are cheaper."""
        if sharing == "reduce":
            return super().side_covariance(side, sharing)
        if side == "left":
            return self._gradient_covariance()
        groups, _, columns = self.matrix_shape
        direct = self.examples * self.positions * columns**2
        if lags_apply(self.module) and 1.5 * lagged_operations(self.module, self.examples, self.size) < direct:
            weight = lagged_covariance(self.module, self._right, self.size, known_zeros(self.module))[None]
        else:
            weight = self._right.new_zeros((groups, columns, columns), dtype=sum_dtype(self._right.dtype))
            for _, patches in self.example_chunks():
                symmetric_product(patches.permute(1, 2, 0, 3).flatten(2), out=weight)
            weight = weight.to(self._right.dtype)
        if not self.bias:
            return weight
        result = weight.new_empty((groups, columns + 1, columns + 1))
        result[:, :-1, :-1] = weight
        result[:, -1, :-1] = result[:, :-1, -1] = window_sums(self.module, self._right, self.size)
        result[:, -1, -1] = self.examples * self.positions
        return result

    def _gradient_covariance(self) -> Tensor:
        """sum over k, n, t of outer products of output-gradients (groups, rows, rows), from maps that stay in the cache."""
        groups, rows, _ = self.matrix_shape
        maps = self.grads.flatten(3).flatten(0, 1).unflatten(1, (groups, rows))
        total = maps.new_zeros((groups, rows, rows), dtype=sum_dtype(maps.dtype))
        for some in maps.split(max(1, CACHE_BYTES // max(1, maps.shape[1:].numel() * maps.element_size()))):
            symmetric_product(some.permute(1, 2, 0, 3).flatten(2), out=total)
        return total.to(maps.dtype)

    def push(self, flat: Tensor) -> Tensor:
        """Jacobian-vector product (numel) -> (K, N): one convolution with the vector as its weight."""
        weight, bias = self.split(flat)
        module = self.module
        shape = (-1, module.in_channels // module.groups, *module.kernel_size)
        convolve = _CONVOLVE[len(module.kernel_size)]
        offset = None if bias is None else bias.reshape(-1)
        image = convolve(self._right, weight.reshape(shape), offset, module.stride, 0, module.dilation, module.groups)
        return products_by_example(self.grads.flatten(2), image.flatten(1))

    def pull_into(self, out: Tensor, weights: Tensor, add: bool = False) -> None:
        """Vector-Jacobian product (K, N) -> (numel), written or added to `out`: one weight gradient."""
        module = self.module
        grads = sum_of_cotangents(self.grads.flatten(2), weights).reshape(self.grads.shape[1:])
        shape = (self.grads.shape[2], module.in_channels // module.groups, *module.kernel_size)
        found = _WEIGHT_GRADIENT[len(self.size)](
            self._right, shape, grads, module.stride, 0, module.dilation, module.groups
        )
        parts = [found.flatten(), *([grads.flatten(2).sum((0, 2))] if self.bias else [])]
        for place, part in zip(out.split([part.numel() for part in parts]), parts, strict=True):
            place.add_(part) if add else place.copy_(part)

    def square_sum(self) -> Tensor:
        """Squares of the gradients, (numel), without holding the gradients of more than a few examples."""
        groups, rows, columns = self.matrix_shape
        grads = self.example_gradients().unflatten(2, (self.outputs, rows))
        total = grads.new_zeros((groups, rows, columns))
        for chunk, patches in self.example_chunks():
            for g in range(groups):
                _add_squares(total[g], grads[chunk, g], patches[:, g])
        flat = total.flatten()
        return torch.cat([flat, self.left.sum(3).square().sum((0, 1)).flatten()]) if self.bias else flat

    def rotated_square_sum(self, left_basis: Tensor, right_basis: Tensor) -> Tensor:
        """As for any layer, by the cheaper order: rotate patches and gradients first, or the finished gradients."""
        _, rows, columns = self.matrix_shape
        k_left, k_right = left_basis.shape[-1], right_basis.shape[-1]
        outputs, positions = self.outputs, self.positions
        factors_first = positions * (columns * k_right + outputs * k_left * (rows + k_right))
        gradients_first = outputs * rows * (positions * columns + columns * k_right + k_left * k_right)
        add = self._add_rotated_factors if factors_first < gradients_first else self._add_rotated_gradients
        grads = self.example_gradients().unflatten(2, (outputs, rows))
        total = grads.new_zeros((left_basis.shape[0], k_left, k_right))
        for chunk, patches in self.example_chunks():
            for g, (left, right) in enumerate(zip(left_basis, right_basis, strict=True)):
                add(total[g], grads[chunk, g], patches[:, g], left, right)
        return total

    def _add_rotated_factors(self, total: Tensor, grads: Tensor, patches: Tensor, left: Tensor, right: Tensor) -> None:
        """Add squares to total (k_left, k_right), from gradients (n, K, rows, T) and patches (n, columns, T) of one group."""
        turned = right[: patches.shape[1]].t() @ patches
        if self.bias:
            turned += right[-1][:, None]
        _add_squares(total, (grads.transpose(-1, -2) @ left).transpose(-1, -2), turned)

    def _add_rotated_gradients(
        self, total: Tensor, grads: Tensor, patches: Tensor, left: Tensor, right: Tensor
    ) -> None:
        """The same, with the gradients of the layer written out for these examples."""
        weight = (grads.flatten(1, 2) @ patches.transpose(-1, -2)) @ right[: patches.shape[1]]
        if self.bias:
            weight += grads.sum(-1).flatten(1)[..., None] * right[-1]
        total += (left.t() @ weight.unflatten(1, grads.shape[1:3])).square_().sum((0, 1))

    def weight_rows(self) -> Tensor:
        """(K, N, groups, rows, columns): one product per example for all cotangents."""
        return next(self.weight_row_blocks(1, Workspace(), ""))

    def write_rows(self, out: Tensor, zeros: bool = False) -> None:
        """As for any layer, some examples at a time."""
        weight, bias = self.split(out)
        grads, (groups, rows, columns) = self.example_gradients(), self.matrix_shape
        step = max(
            1, CACHE_BYTES // max(1, groups * columns * max(self.positions, self.outputs * rows) * out.element_size())
        )
        for start in range(0, self.examples, step):
            chunk = slice(start, min(start + step, self.examples))
            patches = patch_columns(self.module, self._right[chunk], self.size)
            product = grads[chunk] @ patches.transpose(-1, -2)
            weight[:, chunk] = product.unflatten(2, (self.outputs, rows)).permute(2, 0, 1, 3, 4)
        if bias is not None:
            bias.copy_(self.left.sum(3))

    def weight_row_blocks(self, count: int, workspace: Workspace, name: str) -> Iterator[Tensor]:
        """The same in blocks of input channels, each made from its own patches."""
        groups, rows, _ = self.matrix_shape
        grads = self.example_gradients(workspace, name)
        channels = self._right.shape[1]
        step = channels if groups > 1 else -(-channels // count)
        for padded in self._right.split(step, 1):
            columns = padded.shape[1] // groups * prod(self.module.kernel_size)
            result = workspace.take(name, (self.examples, groups, self.outputs * rows, columns), grads)
            for chunk, patches in self.example_chunks(padded):
                torch.matmul(grads[chunk], patches.transpose(-1, -2), out=result[chunk])
            yield result.unflatten(2, (self.outputs, rows)).permute(2, 0, 1, 3, 4)


def _add_squares(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total (R, C) += sum over n, k of (left[n, k] right[n]^T)^2 for left (n, K, R, T) and right (n, C, T).

    As many cotangents at a time as fill the cache.
    """
    step = max(1, CACHE_BYTES // (total.numel() * total.element_size()))
    for gradients, patch in zip(left, right, strict=True):
        for start in range(0, gradients.shape[0], step):
            product = gradients[start : start + step].reshape(-1, patch.shape[1]) @ patch.t()
            if step == 1:
                total.addcmul_(product, product)
            else:
                total += product.square_().unflatten(0, (-1, total.shape[0])).sum(0)


def _ndim(module: nn.Module) -> int:
    """Rank of a batched input; less means an input without example axis."""
    assert isinstance(module, _CONVOLUTIONS + _TRANSPOSED)
    return len(module.kernel_size) + 2


def _matrix(module: nn.Module, weight: Tensor) -> Matrix:
    """Rows along the first axis of the weight, group by group."""
    assert isinstance(module, _CONVOLUTIONS + _TRANSPOSED)
    shape = (module.groups, weight.shape[0] // module.groups, weight.shape[1:].numel())
    if isinstance(module, _TRANSPOSED):
        return Matrix(shape, "right")
    return Matrix(shape, taps=prod(module.kernel_size))


@register(*_CONVOLUTIONS, joint=True, ndim=_ndim, matrix=_matrix)
def convolution(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """inputs (N, C, *spatial), grads (K, N, O, *size)."""
    assert isinstance(module, _CONVOLUTIONS)
    if group == ("bias",):
        return OuterSum.explicit(grads.flatten(3).sum(-1), kronecker=True)
    return ConvSum(module, pad_input(module, inputs), grads, bias=len(group) == 2)


@register(*_TRANSPOSED, ndim=_ndim, matrix=_matrix)
def transposed_convolution(module: nn.Module, inputs: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """The roles swap: inputs meet patches of the output-gradients, one term per input position."""
    assert isinstance(module, _TRANSPOSED)
    if group == ("bias",):
        return OuterSum.explicit(grads.flatten(3).sum(-1), kronecker=True)
    pads = [int(amount) for amount in reversed(module.padding) for _ in range(2)]  # type: ignore[call-overload]
    padded = F.pad(grads.flatten(0, 1), pads)
    size = tuple(inputs.shape[2:])
    right = patch_columns(module, padded, size).transpose(-1, -2).unflatten(0, grads.shape[:2])
    left = position_rows(inputs[None], module.groups)
    return OuterSum(left, right, gradients="right", kronecker=True)
