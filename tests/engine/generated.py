"""Random networks: stacks of registered and unregistered layers with reuse, tying, freezing, residuals and odd axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy], Any]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Scale(nn.Module):
    """A parameter without closed form, one entry per feature on the last axis."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class SequenceFirst(nn.Module):
    """The inner layer sees (steps, examples, features)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x.transpose(0, 1))
        return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class Folded(nn.Module):
    """Steps are folded into the example axis for the inner layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Pool(nn.Module):
    """Mean over all axes but the examples and one."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(self.kept, 1).flatten(2).mean(2) if x.ndim > 2 else x


@dataclass
class Builder:
    """Grows a stack; remembers modules with their shapes (without the example axis) for reuse and tying."""

    draw: Draw
    shape: Shape
    last: bool
    layers: list[nn.Module] = field(default_factory=list)
    known: list[tuple[nn.Module, bool, Shape, Shape]] = field(default_factory=list)

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def add(self, module: nn.Module, shape: Shape | None = None) -> None:
        shape = self.shape if shape is None else shape
        self.known.append((module, self.last, self.shape, shape))
        self.layers.append(module)
        self.shape = shape

    def grow(self) -> None:
        options = [self.activation, self.reuse]
        options += [self.linear, self.linear, self.last_norm, self.scale, self.residual_linear] if self.last else []
        options += [self.convolution, self.convolution, self.transposed, self.first_norm] if not self.last else []
        options += [self.residual_convolution] if not self.last else []
        options += [self.recurrent, self.attention, self.odd_axes] if self.last and len(self.shape) == 2 else []
        self.draw(st.sampled_from(options))()

    # ------------------------------------------------------------------ layers

    def maybe_in_place(self, layer: nn.Module) -> nn.Module:
        return nn.Sequential(layer, nn.ReLU(inplace=True)) if self.chance() else layer

    def maybe_tied(self, layer: nn.Module) -> nn.Module:
        """Share the weight of an earlier layer of the same class and shape."""
        every = [m for known in self.known for m in known[0].modules() if type(m) is type(layer)]
        twins = [m for m in every if m.weight.shape == layer.weight.shape]  # type: ignore[union-attr]
        if twins and self.chance():
            layer.weight = twins[0].weight  # type: ignore[assignment]
        return layer

    def linear(self) -> None:
        width = self.number(1, 4)
        layer = self.maybe_tied(nn.Linear(self.shape[-1], width, bias=self.chance()))
        self.add(self.maybe_in_place(layer), (*self.shape[:-1], width))

    def residual_linear(self) -> None:
        self.add(Residual(self.maybe_tied(nn.Linear(self.shape[-1], self.shape[-1], bias=self.chance()))))

    def scale(self) -> None:
        self.add(Scale(self.shape[-1]))

    def last_norm(self) -> None:
        trailing = self.shape[-self.number(1, len(self.shape)) :]
        kind = self.draw(st.sampled_from(["layer", "layer without bias", "rms"]))
        self.add(nn.RMSNorm(trailing, eps=1e-3) if kind == "rms" else nn.LayerNorm(trailing, bias=kind == "layer"))

    def first_norm(self) -> None:
        channels, dims = self.shape[0], len(self.shape) - 1
        kind = self.draw(st.sampled_from(["batch", "instance", "group"]))
        if kind == "instance" and prod(self.shape[1:]) > 1:
            track = self.chance()
            self.add((nn.InstanceNorm1d, nn.InstanceNorm2d)[dims - 1](channels, affine=True, track_running_stats=track))
        elif kind == "group":
            self.add(nn.GroupNorm(self.draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0])), channels))
        else:
            self.add((nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](channels))

    def activation(self) -> None:
        channels = self.shape[0] if not self.last or len(self.shape) == 1 else 1
        choice = self.draw(st.sampled_from([nn.Tanh(), nn.GELU(), nn.ReLU(), nn.PReLU(), nn.PReLU(channels)]))
        self.add(choice)

    def convolution(self) -> None:
        channels, *sizes = self.shape
        dims = len(sizes)
        kernel = [self.number(1, min(3, size)) for size in sizes]
        groups = self.draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
        options: dict[str, Any] = {"groups": groups, "bias": self.chance()}
        if self.chance():
            options["padding"] = "same"
            options["padding_mode"] = self.draw(st.sampled_from(["zeros", "circular", "replicate"]))
        else:
            options["stride"] = [self.number(1, 2) for _ in sizes]
            options["padding"] = [self.number(0, 1) for _ in sizes]
        out = groups * self.number(1, 2)
        layer = self.maybe_tied((nn.Conv1d, nn.Conv2d)[dims - 1](channels, out, kernel, **options))
        self.add(self.maybe_in_place(layer), tuple(layer(torch.zeros(1, *self.shape)).shape[1:]))

    def transposed(self) -> None:
        channels, *sizes = self.shape
        if prod(sizes) > 16:
            return
        groups = self.draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[len(sizes) - 1]
        layer = kind(channels, groups, self.number(1, 2), stride=self.number(1, 2), groups=groups, bias=self.chance())
        self.add(layer, tuple(layer(torch.zeros(1, *self.shape)).shape[1:]))

    def residual_convolution(self) -> None:
        channels, *sizes = self.shape
        kind = (nn.Conv1d, nn.Conv2d)[len(sizes) - 1]
        self.add(Residual(self.maybe_tied(kind(channels, channels, 3, padding=1, bias=self.chance()))))

    def recurrent(self) -> None:
        width = self.number(1, 2)
        self.add(SequenceFirst(nn.GRU(self.shape[-1], width)), (self.shape[0], width))

    def attention(self) -> None:
        self.add(Attention(self.shape[-1], 1, batch_first=True))

    def odd_axes(self) -> None:
        wrap = self.draw(st.sampled_from([SequenceFirst, Folded]))
        self.add(wrap(nn.Linear(self.shape[-1], self.shape[-1])))

    def reuse(self) -> None:
        fitting = [k for k in self.known if k[1] == self.last and k[2] == self.shape]
        if fitting:
            module, _, _, shape = self.draw(st.sampled_from(fitting))
            self.layers.append(module)
            self.shape = shape

    def finish(self, embedding: nn.Embedding | None) -> nn.Sequential:
        """An optional pooling and a head with few outputs, tied to the embedding where that is possible."""
        if prod(self.shape) > 6 or self.chance():
            kept = len(self.shape) if self.last else 1
            self.layers.append(Pool(kept))
            features = self.shape[-1] if self.last else self.shape[0]
            tied = embedding is not None and features == embedding.embedding_dim and self.chance()
            head = nn.Linear(features, embedding.num_embeddings if tied else self.number(1, 3))  # type: ignore[union-attr]
            if tied:
                head.weight = embedding.weight  # type: ignore[union-attr]
            self.layers.append(head)
        return nn.Sequential(*self.layers)


@st.composite
def networks(draw: Draw) -> tuple[nn.Module, list[Tensor]]:
    """(model in float64 and eval mode, one or two batches)."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(["vectors", "sequences", "tokens", "signals", "images"]))
    size = st.integers(2, 4)
    shape = {
        "vectors": lambda: (draw(size),),
        "sequences": lambda: (draw(size), draw(size)),
        "tokens": lambda: (draw(size), draw(size)),
        "signals": lambda: (draw(st.integers(1, 3)), draw(st.integers(3, 7))),
        "images": lambda: (draw(st.integers(1, 3)), draw(size), draw(size)),
    }[kind]()
    builder = Builder(draw, shape, last=kind in ("vectors", "sequences", "tokens"))
    embedding = None
    if kind == "tokens":
        embedding = nn.Embedding(draw(st.integers(2, 3)), shape[1], padding_idx=draw(st.sampled_from([None, 0])))
        builder.layers.append(embedding)
    (builder.linear if builder.last else builder.convolution)()
    for _ in range(draw(st.integers(0, 4))):
        builder.grow()
    model = builder.finish(embedding).double().eval()
    _randomize(model)
    _freeze(draw, model)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    if embedding is not None:
        return model, [torch.randint(embedding.num_embeddings, (n, shape[0])) for n in sizes]
    return model, [torch.randn(n, *shape, dtype=torch.float64) for n in sizes]


def _randomize(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) + ("norm" in name))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand_like(buffer) + 0.5)


def _freeze(draw: Draw, model: nn.Module) -> None:
    """Freeze some parameters, the last one never, so that the output depends on something."""
    parameters = list(model.parameters())
    for index in draw(st.sets(st.integers(0, len(parameters) - 1), max_size=3)):
        parameters[index].requires_grad_(index == len(parameters) - 1)
