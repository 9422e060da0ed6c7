"""Layers with closed forms in every configuration, with the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from torch import nn

from tangentlab.testing import LayerCase, layer_case


def linear_cases() -> Iterator[LayerCase]:
    for shape, bias in product([(3, 4), (3, 5, 4), (3, 2, 5, 4), (2, 2, 1, 3, 4)], [True, False]):
        yield layer_case(nn.Linear, 4, 3, bias=bias, shape=shape)
    yield layer_case(nn.Linear, 1, 3, bias=False, shape=(3, 1))
    yield layer_case(nn.Linear, 4, 1, shape=(1, 4))
    for shape, padding in product([(4,), (4, 3), (2, 3, 2)], [None, 1, -1]):
        yield layer_case(nn.Embedding, 5, 3, padding_idx=padding, shape=shape, tokens=5)
    yield layer_case(nn.Embedding, 5, 3, sparse=True, shape=(4, 3), tokens=5)


def convolution_cases() -> Iterator[LayerCase]:
    """Conv1d over all options; Conv2d and Conv3d with options that differ from axis to axis."""
    kernels, strides, gaps, groups = (1, 2, 3), (1, 2), (1, 2), (1, 2)
    for k, s, d, g in product(kernels, strides, gaps, groups):
        yield layer_case(nn.Conv1d, 4, 6, k, stride=s, dilation=d, groups=g, padding=1, shape=(3, 4, 9))
    for k, d, padding in product((2, 3), gaps, ("same", "valid", 0, 3)):
        yield layer_case(nn.Conv1d, 2, 3, k, dilation=d, padding=padding, bias=False, shape=(3, 2, 8))
    for mode, k, padding in product(("zeros", "reflect", "replicate", "circular"), (2, 3), ("same", 2)):
        yield layer_case(nn.Conv1d, 2, 3, k, padding=padding, padding_mode=mode, shape=(2, 2, 7))
        yield layer_case(
            nn.Conv2d, 2, 3, (k, 3), padding=padding, padding_mode=mode, dilation=(1, 2), shape=(2, 2, 7, 6)
        )
    for s, d, g in product(((1, 1), (2, 1), (3, 2)), ((1, 1), (2, 1)), (1, 2, 4)):
        yield layer_case(nn.Conv2d, 4, 4, (3, 2), stride=s, dilation=d, groups=g, padding=(1, 0), shape=(2, 4, 7, 6))
    yield layer_case(nn.Conv2d, 4, 8, 3, groups=4, padding="same", bias=False, shape=(3, 4, 5, 5))
    yield layer_case(nn.Conv2d, 3, 4, 3, padding=1, shape=(2, 3, 8, 9))
    yield layer_case(nn.Conv2d, 2, 3, 1, shape=(2, 2, 3, 4))
    yield layer_case(nn.Conv2d, 2, 3, (5, 4), shape=(3, 2, 5, 4))
    for g, mode, padding in product((1, 2), ("zeros", "replicate", "circular"), ("same", (0, 1, 2))):
        options = {"groups": g, "padding_mode": mode, "padding": padding, "dilation": (1, 2, 1)}
        yield layer_case(nn.Conv3d, 2, 2, (3, 2, 3), shape=(2, 2, 4, 5, 3), **options)
    yield layer_case(nn.Conv3d, 2, 2, 2, stride=(1, 2, 2), bias=False, shape=(2, 2, 3, 4, 5))


def transposed_cases() -> Iterator[LayerCase]:
    for k, s, p, d, g in product((1, 2, 3), (1, 2), (0, 1), (1, 2), (1, 2)):
        if d * (k - 1) >= p:
            yield layer_case(nn.ConvTranspose1d, 2, 4, k, stride=s, padding=p, dilation=d, groups=g, shape=(2, 2, 4))
    options = {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "dilation": (1, 2)}
    for g, bias in product((1, 2), (True, False)):
        yield layer_case(nn.ConvTranspose2d, 2, 4, (3, 2), groups=g, bias=bias, shape=(2, 2, 3, 4), **options)
        yield layer_case(
            nn.ConvTranspose3d, 2, 2, 2, stride=2, output_padding=1, groups=g, bias=bias, shape=(2, 2, 2, 3, 2)
        )


def norm_cases() -> Iterator[LayerCase]:
    for kind, track in product((nn.BatchNorm1d, nn.InstanceNorm1d), (True, False)):
        if not (kind is nn.BatchNorm1d and not track):
            yield layer_case(kind, 3, affine=True, track_running_stats=track, shape=(4, 3, 5))
    yield layer_case(nn.BatchNorm1d, 3, shape=(4, 3))
    yield layer_case(nn.BatchNorm2d, 3, eps=0.1, shape=(2, 3, 4, 2))
    yield layer_case(nn.BatchNorm3d, 3, shape=(2, 3, 2, 2, 3))
    yield layer_case(nn.InstanceNorm2d, 3, affine=True, shape=(2, 3, 4, 2))
    yield layer_case(nn.InstanceNorm3d, 3, affine=True, track_running_stats=True, shape=(2, 3, 2, 2, 3))
    for trailing, shape, bias in product(((5,), (4, 5), (3, 4, 5)), ((2, 3, 4, 5), (2, 2, 3, 4, 5)), (True, False)):
        yield layer_case(nn.LayerNorm, trailing, bias=bias, shape=shape)
        yield layer_case(nn.RMSNorm, trailing, shape=shape)
    yield layer_case(nn.LayerNorm, 5, eps=0.1, shape=(3, 5))
    yield layer_case(nn.RMSNorm, 5, eps=0.1, shape=(3, 5))
    for groups, shape in product((1, 2, 4), ((3, 4), (3, 4, 5), (2, 4, 3, 2))):
        yield layer_case(nn.GroupNorm, groups, 4, shape=shape)


CASES = {str(one): one for make in (linear_cases, convolution_cases, transposed_cases, norm_cases) for one in make()}
