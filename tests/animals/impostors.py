"""Modules that look like a registered layer and compute something else."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.animals.base import NO_FORM, animal, images


class Doubled(nn.MultiheadAttention):
    """Attention that does something else in the end."""

    def forward(self, *args: Tensor, **options: bool) -> tuple[Tensor, Tensor | None]:
        found, weights = super().forward(*args, **options)
        return 2 * found, weights


_projections = [f"attention.{part}" for part in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]
_other_forward = dict.fromkeys(_projections[:2], "Doubled overrides the method forward of MultiheadAttention")
_other_forward |= dict.fromkeys(_projections[2:], "used outside its module")


@animal(images(3, 4, 4), nn.MultiheadAttention, name="Attention")
@animal(images(4, 4, 4), nn.MultiheadAttention, name="Attention-square")
@animal(images(3, 4, 4), Doubled, name="DoubledAttention", fallback=_other_forward)
class Attention(nn.Module):
    def __init__(self, kind: type[nn.MultiheadAttention]) -> None:
        super().__init__()
        self.attention, self.head = kind(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].sum(1))


@animal(images(3, 4, 4))
class AttentionToOthers(nn.Module):
    """Keys and values from elsewhere: the projection is cut in two, and then in three."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        query = x.transpose(0, 1)
        memory = torch.cat([query, query.sin()])
        once, _ = self.attention(query, memory, memory)
        again, _ = self.attention(once, memory, memory.cos())
        return self.head(again.sum(0))


class Wrapped(nn.Module):
    """A linear layer behind a wrapper that computes its weight."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.fc, self.head = wrap(nn.Linear(3, 3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(x).tanh())


_computed = "computed from other parameters"
_original = "fc.parametrizations.weight.original"
for _wrap, _label, _names in (
    (parametrizations.weight_norm, "WeightNorm", {f"{_original}0": NO_FORM, f"{_original}1": NO_FORM}),
    (parametrizations.orthogonal, "Orthogonal", {_original: NO_FORM}),
    (parametrizations.spectral_norm, "SpectralNorm", {_original: NO_FORM}),
    (nn.utils.weight_norm, "OldWeightNorm", {"fc.weight_g": "no closed form", "fc.weight_v": "no closed form"}),
    (nn.utils.spectral_norm, "OldSpectralNorm", {"fc.weight_orig": "no closed form"}),
):
    animal(images(4, 3), _wrap, name=_label, fallback={"fc.bias": _computed, **_names})(Wrapped)


class ScaledConv(nn.Conv1d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight * 2, bias)


class SquaredLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) ** 2


def _tripled(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, 3 * layer.weight, layer.bias)


class PlainLinear(nn.Linear):
    """A subclass that computes what its parent computes."""

    def extra_repr(self) -> str:
        return "plain"


@animal(
    images(4, 2, 5),
    fallback={
        **dict.fromkeys(["scaled.weight", "scaled.bias"], "overrides the method _conv_forward"),
        **dict.fromkeys(
            ["squared.weight", "squared.bias", "patched.weight", "patched.bias"], "overrides the method forward"
        ),
    },
)
class Impostors(nn.Module):
    """Subclasses, an instance with another forward, modules whose hooks change what they compute, and one honest child."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.squared, self.patched = ScaledConv(2, 3, 2), SquaredLinear(4, 3), nn.Linear(3, 3)
        self.hooked, self.prehooked, self.plain = nn.Linear(3, 3), nn.Linear(3, 3), PlainLinear(3, 2)
        self.patched.forward = MethodType(_tripled, self.patched)
        self.hooked.register_forward_hook(lambda module, args, output: 2 * output)
        self.prehooked.register_forward_pre_hook(lambda module, args: (args[0].sin(),))

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.prehooked(self.hooked(self.patched(self.squared(self.scaled(x)))).tanh()).mean(1))


class Straight(torch.autograd.Function):
    """Rounds forward and passes gradients through, by way of numpy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.from_numpy(grad.numpy() * 1.0)


@animal(images(4, 3), fallback={"slope.weight": NO_FORM})
class StraightThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.slope, self.head = nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.slope(Straight.apply(3 * self.fc(x))))


@animal(images(4, 3), fallback={"fc.weight": "a call of its module does not use it", "other": NO_FORM})
class BorrowedModule(nn.Module):
    """The module runs with another weight, while its own is used elsewhere: one call and one use that do not belong."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(3, 2, bias=False), nn.Parameter(torch.randn(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.fc, {"weight": self.other}, (x,)).tanh() + F.linear(
            x.sin(), self.fc.weight
        )


@animal(images(4, 3), fallback=dict.fromkeys(["fc.weight", "fc.bias"], "used outside its module"))
class FunctionalUse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(x).tanh() + F.linear(x, self.fc.weight))


@animal(images(4, 3), fallback=dict.fromkeys(["fc.weight", "fc.bias"], "used outside its module"))
class ForwardCalledDirectly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc.forward(x).tanh())
