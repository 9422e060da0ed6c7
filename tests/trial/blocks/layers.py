"""Ordinary layers with all their options: linear, convolutions, norms, recurrence, attention, activations."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.trial.blocks.base import FEATURES, MAPS, Apply, Site, block, parameter, shape_after

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "softmax": lambda x: x.softmax(-1),
    "leaky": F.leaky_relu,
    "hardtanh": F.hardtanh,
}


def divisors(number: int, *candidates: int) -> list[int]:
    """Those of the candidates that divide the number; 1 always does."""
    return [1, *(c for c in candidates if c > 1 and number % c == 0)]


def tied(site: Site, layer: nn.Module) -> nn.Module:
    """The layer, at times with the weight of an earlier one of its class and shape."""
    every = [m for made, *_ in site.earlier for m in made.modules() if type(m) is type(layer)]
    twins = [m for m in every if m.weight.shape == layer.weight.shape]  # type: ignore[union-attr]
    if twins and site.choices.chance("tied"):
        layer.weight = twins[-1].weight  # type: ignore[assignment]
    return layer


def finished(site: Site, layer: nn.Module) -> nn.Module:
    """The layer, at times followed by an activation in place."""
    return nn.Sequential(layer, nn.ReLU(inplace=True)) if site.choices.chance("in place", 0.3) else layer


@block(weight=6)
def linear(site: Site) -> Any:
    o, width = site.choices, site.choices.number("width", 1, 4)
    layer = tied(site, nn.Linear(site.width, width, bias=o.pick("bias", [True, False], [3, 1])))
    return finished(site, layer), (*site.shape[:-1], width)


@block("", weight=3)
def activation(site: Site) -> Any:
    function = ACTIVATIONS[site.choices.pick("function", list(ACTIVATIONS))]
    return Apply(lambda m, x: function(x))


@block("", weight=1.5)
def prelu(site: Site) -> Any:
    channels = site.shape[0] if site.form == MAPS or len(site.shape) == 1 else 1
    return nn.PReLU(site.choices.pick("slopes", [1, channels]))


@block(rank=1)
def bilinear(site: Site) -> Any:
    width = site.choices.number("width", 1, 3)
    layer = nn.Bilinear(site.width, site.width, width, bias=site.choices.chance("bias"))
    return Apply(lambda m, x: m.fc(x, x.sin()), fc=layer), (width,)


@block(weight=2)
def last_norm(site: Site) -> Any:
    o = site.choices
    trailing = site.shape[len(site.shape) - o.number("axes", 1, len(site.shape)) :]
    kind = o.pick("norm", ["layer", "without bias", "rms", "without parameters"])
    if kind == "rms":
        return nn.RMSNorm(trailing, eps=1e-3)
    return nn.LayerNorm(trailing, bias=kind == "layer", elementwise_affine=kind != "without parameters")


@block(MAPS, weight=2)
def first_norm(site: Site) -> Any:
    o, channels, dims = site.choices, site.width, len(site.shape) - 2
    kind = o.pick("norm", ["batch", "group", "instance"])
    if kind == "group":
        groups = o.pick("groups", divisors(channels, 2, 3, 4))
        return nn.GroupNorm(groups, channels, affine=o.pick("affine", [True, False], [4, 1]))
    if kind == "instance" and prod(site.shape[1:]) > 1:
        layer = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims]
        return layer(channels, affine=True, track_running_stats=o.chance("statistics"))
    return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims](channels)


@block(MAPS, weight=6)
def convolution(site: Site) -> Any:
    o, channels, sizes = site.choices, site.width, site.shape[1:]
    kernel = [o.number(f"kernel {axis}", 1, min(3, size)) for axis, size in enumerate(sizes)]
    groups = o.pick("groups", divisors(channels, 2, 3, 4))
    options: dict[str, Any] = {"groups": groups, "bias": o.pick("bias", [True, False], [2, 1])}
    if o.chance("same"):
        options["padding"] = "same"
        options["dilation"] = o.number("dilation", 1, 2)
        modes = ["zeros", "circular", "replicate", "reflect"]
        options["padding_mode"] = o.pick("mode", modes if min(sizes) > 2 and options["dilation"] == 1 else modes[:1])
    else:
        options["stride"] = [o.number(f"stride {axis}", 1, 2) for axis in range(len(sizes))]
        options["padding"] = [o.number(f"padding {axis}", 0, 1) for axis in range(len(sizes))]
        options["dilation"] = 2 if all(2 * (k - 1) < s for k, s in zip(kernel, sizes)) and o.chance("dilated") else 1
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(sizes) - 1]
    layer = tied(site, kind(channels, groups * o.number("width", 1, 2), kernel, **options))
    return finished(site, layer), shape_after(layer, site.shape)


@block(MAPS)
def transposed_convolution(site: Site) -> Any:
    o, channels, sizes = site.choices, site.width, site.shape[1:]
    if prod(sizes) > 16:
        return nn.Identity()
    groups, stride = o.pick("groups", divisors(channels, 2)), o.number("stride", 1, 2)
    options = {"stride": stride, "groups": groups, "bias": o.chance("bias")}
    options["output_padding"] = o.number("output padding", 0, stride - 1)
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(sizes) - 1]
    layer = kind(channels, groups * o.number("width", 1, 2), o.number("kernel", 1, 2), **options)
    return layer, shape_after(layer, site.shape)


@block(MAPS)
def pooling(site: Site) -> Any:
    dims = len(site.shape) - 2
    if min(site.shape[1:]) < 2:
        return nn.Identity()
    kind = site.choices.pick("pool", ["average", "maximum"])
    layer = ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d))
    pool = layer[kind == "maximum"][dims](2)
    return pool, shape_after(pool, site.shape)


@block(MAPS)
def to_features(site: Site) -> Any:
    """Positions become a sequence, or all axes one."""
    if site.choices.chance("sequence"):
        return Apply(lambda m, x: x.flatten(2).transpose(1, 2)), (prod(site.shape[1:]), site.shape[0]), FEATURES
    return nn.Flatten(), (prod(site.shape),), FEATURES


@block(MAPS)
def channels_last(site: Site) -> Any:
    """A linear layer on the channels of every pixel."""
    layer = nn.Linear(site.width, site.width, bias=site.choices.chance("bias"))
    return Apply(lambda m, x: m.fc(x.movedim(1, -1)).movedim(-1, 1), fc=layer)


@block(MAPS)
def squeeze_and_excite(site: Site) -> Any:
    def gated(m: Any, x: Tensor) -> Tensor:
        weights = m.fc(x.flatten(2).mean(2)).sigmoid()
        return x * weights.reshape(*weights.shape, *[1] * (x.ndim - 2))

    return Apply(gated, fc=nn.Linear(site.width, site.width))


@block(rank=2, weight=2)
def recurrent(site: Site) -> Any:
    o, width = site.choices, site.choices.number("width", 1, 2)
    kind = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[o.pick("cell", ["rnn", "gru", "lstm"])]
    first, both = o.chance("sequence first"), o.chance("both directions", 0.25)
    options = {"num_layers": o.number("layers", 1, 2), "bidirectional": both, "bias": o.pick("bias", [True, False])}
    layer = kind(site.width, width, batch_first=not first, **options)

    def run(m: Any, x: Tensor) -> Tensor:
        return m.rnn(x.transpose(0, 1))[0].transpose(0, 1) if first else m.rnn(x)[0]

    return Apply(run, rnn=layer), (site.shape[0], width * (1 + both))


@block(rank=1)
def recurrent_cell(site: Site) -> Any:
    """A cell called several times on the same input."""
    kind = {"gru": nn.GRUCell, "rnn": nn.RNNCell}[site.choices.pick("cell", ["gru", "rnn"])]
    width = site.choices.number("width", 1, 3)

    def run(m: Any, x: Tensor) -> Tensor:
        state = x.new_zeros((len(x), width))
        for _ in range(2):
            state = m.cell(x, state)
        return state

    return Apply(run, cell=kind(site.width, width)), (width,)


@block(rank=2, weight=2)
def attention(site: Site) -> Any:
    """nn.MultiheadAttention with masks, batch or sequence first."""
    o = site.choices
    first, mask = o.chance("sequence first"), o.pick("mask", ["none", "causal", "padding", "additive"])
    heads = o.pick("heads", divisors(site.width, 2))
    layer = nn.MultiheadAttention(site.width, heads, batch_first=not first, bias=o.pick("bias", [True, False]))

    def run(m: Any, x: Tensor) -> Tensor:
        n, t = x.shape[:2]
        options: dict[str, Any] = {"need_weights": False}
        if mask == "causal":
            options["attn_mask"] = torch.ones(t, t, dtype=torch.bool).triu(1)
        elif mask == "additive":
            options["attn_mask"] = torch.linspace(0, 1, t * t, dtype=x.dtype).reshape(t, t)
        elif mask == "padding":
            options["key_padding_mask"] = (torch.arange(t) == t - 1).expand(n, t) & (t > 1)
        x = x.transpose(0, 1) if first else x
        out = m.attention(x, x, x, **options)[0]
        return out.transpose(0, 1) if first else out

    return Apply(run, attention=layer)


@block(rank=2, weight=2)
def projected_attention(site: Site) -> Any:
    """Projections by linear layers around scaled_dot_product_attention, or the same written out."""
    causal, plain = site.choices.chance("causal"), site.choices.chance("written out")

    def run(m: Any, x: Tensor) -> Tensor:
        q, k, v = m.project(x).chunk(3, -1)
        if not plain:
            return m.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=causal)[:, 0])
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        return m.out(scores.softmax(-1) @ v)

    return Apply(run, project=nn.Linear(site.width, 3 * site.width), out=nn.Linear(site.width, site.width))


@block(rank=2, weight=0.7)
def encoder_layer(site: Site) -> Any:
    options = {"batch_first": True, "norm_first": site.choices.chance("norm first"), "dropout": 0.0}
    return nn.TransformerEncoderLayer(site.width, 1, 3, **options)


@block(rank=2)
def position_embedding(site: Site) -> Any:
    """Looked up once for all examples, or once for each."""
    each = site.choices.chance("each")

    def run(m: Any, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        return x + m.position(positions.expand(x.shape[:2]) if each else positions)

    return Apply(run, position=nn.Embedding(site.shape[0], site.width))


@block(rank=2)
def learned_position(site: Site) -> Any:
    return Apply(lambda m, x: x + m.position, position=parameter(1, *site.shape))
