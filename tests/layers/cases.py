"""Layers with closed forms in every configuration, with inputs, and their per-example gradients by plain autograd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.layers import OuterSum, rule_of

COTANGENTS = 3


@dataclass(frozen=True)
class Case:
    """A layer type with its arguments and the shape of an input (examples first)."""

    kind: type[nn.Module]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    shape: tuple[int, ...]

    def make(self, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
        """The layer in eval mode, with random affine parameters and statistics, and an input."""
        generator = torch.Generator().manual_seed(0)
        layer = self.kind(*self.arguments, **self.options).to(dtype).eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            for name, buffer in layer.named_buffers():
                if name in ("running_mean", "running_var"):
                    buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
        if isinstance(layer, nn.Embedding):
            return layer, torch.randint(layer.num_embeddings, self.shape, generator=generator)
        return layer, torch.randn(self.shape, generator=generator, dtype=torch.float64).to(dtype)

    def __str__(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items()]
        return f"{self.kind.__name__}({', '.join([*map(str, self.arguments), *options])}) of {self.shape}".replace(
            " ", ""
        )


def case(kind: type[nn.Module], *arguments: Any, shape: tuple[int, ...], **options: Any) -> Case:
    return Case(kind, arguments, options, shape)


def groups_of(layer: nn.Module) -> list[tuple[str, ...]]:
    """The groups in which the engine may ask for the layer's parameters."""
    rule, _ = rule_of(layer)
    assert rule is not None
    own = [name for name in ("weight", "bias") if layer._parameters.get(name) is not None]
    return [(name,) for name in own] + ([("weight", "bias")] if rule.joint and len(own) == 2 else [])


def cotangents_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Random output-gradients (K, N, ...)."""
    shape = (COTANGENTS, *layer(x).shape)
    dtype = next(layer.parameters()).dtype
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def factors_of(layer: nn.Module, x: Tensor, grads: Tensor, group: tuple[str, ...]) -> OuterSum:
    """What the registered rule makes of them."""
    rule, reason = rule_of(layer)
    assert rule is not None, reason
    return rule.factors(layer, x, grads, group)


def true_rows(layer: nn.Module, x: Tensor, grads: Tensor, group: tuple[str, ...]) -> Tensor:
    """(K, N, numel): one backward pass per cotangent and example."""
    parameters = [layer.get_parameter(name) for name in group]
    outputs = layer(x)
    lines = [
        [torch.autograd.grad(outputs[n], parameters, grads[k, n], retain_graph=True) for n in range(len(x))]
        for k in range(len(grads))
    ]
    return torch.stack(
        [torch.stack([torch.cat([g.to_dense().flatten() for g in grads]) for grads in line]) for line in lines]
    )


def linear_cases() -> Iterator[Case]:
    for shape, bias in product([(3, 4), (3, 5, 4), (3, 2, 5, 4), (2, 2, 1, 3, 4)], [True, False]):
        yield case(nn.Linear, 4, 3, bias=bias, shape=shape)
    yield case(nn.Linear, 1, 3, bias=False, shape=(3, 1))
    yield case(nn.Linear, 4, 1, shape=(1, 4))
    for shape, padding in product([(4,), (4, 3), (2, 3, 2)], [None, 1, -1]):
        yield case(nn.Embedding, 5, 3, padding_idx=padding, shape=shape)
    yield case(nn.Embedding, 5, 3, sparse=True, shape=(4, 3))


def convolution_cases() -> Iterator[Case]:
    """Conv1d over all options; Conv2d and Conv3d with options that differ from axis to axis."""
    kernels, strides, gaps, groups = (1, 2, 3), (1, 2), (1, 2), (1, 2)
    for k, s, d, g in product(kernels, strides, gaps, groups):
        yield case(nn.Conv1d, 4, 6, k, stride=s, dilation=d, groups=g, padding=1, shape=(3, 4, 9))
    for k, d, padding in product((2, 3), gaps, ("same", "valid", 0, 3)):
        yield case(nn.Conv1d, 2, 3, k, dilation=d, padding=padding, bias=False, shape=(3, 2, 8))
    for mode, k, padding in product(("zeros", "reflect", "replicate", "circular"), (2, 3), ("same", 2)):
        yield case(nn.Conv1d, 2, 3, k, padding=padding, padding_mode=mode, shape=(2, 2, 7))
        yield case(nn.Conv2d, 2, 3, (k, 3), padding=padding, padding_mode=mode, dilation=(1, 2), shape=(2, 2, 7, 6))
    for s, d, g in product(((1, 1), (2, 1), (3, 2)), ((1, 1), (2, 1)), (1, 2, 4)):
        yield case(nn.Conv2d, 4, 4, (3, 2), stride=s, dilation=d, groups=g, padding=(1, 0), shape=(2, 4, 7, 6))
    yield case(nn.Conv2d, 4, 8, 3, groups=4, padding="same", bias=False, shape=(3, 4, 5, 5))
    yield case(nn.Conv2d, 3, 4, 3, padding=1, shape=(2, 3, 8, 9))
    yield case(nn.Conv2d, 2, 3, 1, shape=(2, 2, 3, 4))
    yield case(nn.Conv2d, 2, 3, (5, 4), shape=(3, 2, 5, 4))
    for g, mode, padding in product((1, 2), ("zeros", "replicate", "circular"), ("same", (0, 1, 2))):
        options = {"groups": g, "padding_mode": mode, "padding": padding, "dilation": (1, 2, 1)}
        yield case(nn.Conv3d, 2, 2, (3, 2, 3), shape=(2, 2, 4, 5, 3), **options)
    yield case(nn.Conv3d, 2, 2, 2, stride=(1, 2, 2), bias=False, shape=(2, 2, 3, 4, 5))


def transposed_cases() -> Iterator[Case]:
    for k, s, p, d, g in product((1, 2, 3), (1, 2), (0, 1), (1, 2), (1, 2)):
        if d * (k - 1) >= p:
            yield case(nn.ConvTranspose1d, 2, 4, k, stride=s, padding=p, dilation=d, groups=g, shape=(2, 2, 4))
    options = {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "dilation": (1, 2)}
    for g, bias in product((1, 2), (True, False)):
        yield case(nn.ConvTranspose2d, 2, 4, (3, 2), groups=g, bias=bias, shape=(2, 2, 3, 4), **options)
        yield case(nn.ConvTranspose3d, 2, 2, 2, stride=2, output_padding=1, groups=g, bias=bias, shape=(2, 2, 2, 3, 2))


def norm_cases() -> Iterator[Case]:
    for kind, track in product((nn.BatchNorm1d, nn.InstanceNorm1d), (True, False)):
        if not (kind is nn.BatchNorm1d and not track):
            yield case(kind, 3, affine=True, track_running_stats=track, shape=(4, 3, 5))
    yield case(nn.BatchNorm1d, 3, shape=(4, 3))
    yield case(nn.BatchNorm2d, 3, eps=0.1, shape=(2, 3, 4, 2))
    yield case(nn.BatchNorm3d, 3, shape=(2, 3, 2, 2, 3))
    yield case(nn.InstanceNorm2d, 3, affine=True, shape=(2, 3, 4, 2))
    yield case(nn.InstanceNorm3d, 3, affine=True, track_running_stats=True, shape=(2, 3, 2, 2, 3))
    for trailing, shape, bias in product(((5,), (4, 5), (3, 4, 5)), ((2, 3, 4, 5), (2, 2, 3, 4, 5)), (True, False)):
        yield case(nn.LayerNorm, trailing, bias=bias, shape=shape)
        yield case(nn.RMSNorm, trailing, shape=shape)
    yield case(nn.LayerNorm, 5, eps=0.1, shape=(3, 5))
    yield case(nn.RMSNorm, 5, eps=0.1, shape=(3, 5))
    for groups, shape in product((1, 2, 4), ((3, 4), (3, 4, 5), (2, 4, 3, 2))):
        yield case(nn.GroupNorm, groups, 4, shape=shape)


CASES = {str(one): one for make in (linear_cases, convolution_cases, transposed_cases, norm_cases) for one in make()}
