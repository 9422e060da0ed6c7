"""Weights used several times, by several modules, partly, never, or by layers without closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.animals.base import NO_FORM, animal, images, tokens


@animal(images(4, 3))
@animal(images(4, 5, 3), name="TiedLinear-sequence")
class TiedLinear(nn.Module):
    """One weight in two linear layers with biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x).tanh()).sin())


@animal(tokens(4, 3))
@animal(tokens(3), name="TiedEmbedding-one-token")
class TiedEmbedding(nn.Module):
    """The output layer shares the weight of the embedding, whose padding row it does train."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.fc = nn.Embedding(5, 4, padding_idx=1), nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(self.token(x)).tanh())


@animal(images(3, 2, 6))
class TiedTransposedConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(2, 3, 3, stride=2), nn.ConvTranspose1d(3, 2, 3, stride=2)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).tanh())


@animal(images(3, 4, 7))
class TiedAcrossGroups(nn.Module):
    """One weight that a grouped and a full convolution see as matrices of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped, self.full = nn.Conv1d(4, 4, 3, groups=2), nn.Conv1d(2, 4, 3)
        self.full.weight = self.grouped.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.full(self.grouped(x).tanh()[:, :2])


@animal(images(4, 3))
@animal(images(4, 5, 3), name="ThreeCalls-sequence")
class ThreeCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.norm(self.fc(x)).tanh() + x
        return self.head(x)


@animal(images(3, 2, 8, 8))
class ReusedConvolution(nn.Module):
    """One convolution on maps of different sizes, with skip connections around and between its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Linear(2, 2)
        self.bn.running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.bn(self.conv(x)).relu()
        z = y + self.conv(self.conv(y).tanh() + x)
        pooled = nn.functional.avg_pool2d(z, 2)
        return self.head((pooled + self.bn(self.conv(pooled))).mean((2, 3)))


@animal(images(4, 3))
class SharedModuleList(nn.Module):
    """The same list of modules under two parents."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.left, self.right = nn.Module(), nn.Module()
        self.left.layers, self.right.layers, self.head = layers, layers, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.left.layers:
            x = layer(x).tanh()
        for layer in self.right.layers:
            x = layer(x).sin()
        return self.head(x)


@animal(images(4, 3))
class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(3, 3) for _ in range(4))
        self.a.weight.requires_grad_(False)
        self.b.bias.requires_grad_(False)  # type: ignore[union-attr]
        self.c.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.c(self.b(self.a(x).tanh()).tanh()).tanh())


@animal(images(4, 3), fallback={"scale": NO_FORM, "shift": NO_FORM, "idle": NO_FORM}, unused=("dead", "never"))
class BareAndUnused(nn.Module):
    """Parameters of the model itself, one that is never used, a module never called and one whose output is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(1, 2))
        self.idle = nn.Parameter(torch.randn(2))
        self.fc, self.dead, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.dead(x)
        return self.fc(x) * self.scale + self.shift


@animal(images(4, 3), fallback={"nothing": NO_FORM, "added": NO_FORM})
class EmptyParameters(nn.Module):
    """Parameters without entries, one of them part of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing, self.added = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0, 2))
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).tanh() + self.added.sum()


_routed = dict.fromkeys(
    [f"experts.{number}.{layer}.{kind}" for number in range(3) for layer in (0, 1) for kind in ("weight", "bias")],
    "no axis",
)


@animal(images(4, 3), 10.0, fallback=_routed, name="Experts-one-without-tokens")
@animal(images(1, 3), 10.0, name="Experts-one-example")
class Experts(nn.Module):
    """Examples are handed to experts by index; some get none."""

    def __init__(self, crowd: float) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
        self.experts = nn.ModuleList([nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)) for _ in range(3)])
        self.crowd = torch.tensor([crowd, crowd, -crowd])

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.router(x) + self.crowd.to(x.dtype)).softmax(-1)
        weight, chosen = scores.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        return self.head(out.tanh())


class PReLUOfEqualSizes(nn.Module):
    """As many channels as examples as outputs: vmap takes one axis for the other."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc, self.slope = nn.Linear(2, size), nn.PReLU(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(self.fc(x))


for _size in (1, 3, 4):
    _name = f"PReLUOfEqualSizes-{_size}"
    animal(images(_size, 2), _size, name=_name, fallback={"slope.weight": NO_FORM})(PReLUOfEqualSizes)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


_rnn = [f"rnn.{kind}_{side}_l0" for kind in ("weight", "bias") for side in ("ih", "hh")]
for _kind in (nn.GRU, nn.LSTM, nn.RNN):
    animal(images(4, 5, 3), _kind, name=_kind.__name__, fallback=dict.fromkeys(_rnn, NO_FORM))(Recurrent)


@animal(tokens(4, 3), fallback={"bag.weight": NO_FORM})
class Unregistered(nn.Module):
    """A layer without closed form, next to an embedding with sparse gradients and a layer of two inputs, which have one."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse, self.bag, self.mix = nn.Embedding(5, 3, sparse=True), nn.EmbeddingBag(5, 3), nn.Bilinear(3, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.sparse(x).tanh().sum(1), self.bag(x))


@animal(images(3, 4, 6, 6))
class GroupedResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.pointwise = (
            nn.Conv2d(4, 8, 3, padding=1, groups=4),
            nn.Conv2d(8, 4, 1, groups=2, bias=False),
        )
        self.norm, self.up = nn.InstanceNorm2d(4, affine=True), nn.ConvTranspose2d(4, 2, 2, stride=2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x + self.norm(self.pointwise(self.depthwise(x).relu()))).sin().mean((2, 3))


@animal(images(4, 3), fallback={"a": NO_FORM, "b": NO_FORM})
class ParametersInAList(nn.Module):
    """Parameters that the forward reads from a list of its own: replacing the attributes changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 2))
        self.steps = [self.a, self.b]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = (x @ step).tanh()
        return x
