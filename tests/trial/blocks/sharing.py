"""Weights that are tied, reused, computed, borrowed, frozen, bare, tiny, or used behind their module's back."""

from __future__ import annotations

import warnings
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.trial.blocks.base import MAPS, Apply, Site, block, parameter
from tests.trial.choices import NoSuchCase


@block("", weight=3)
def reused(site: Site) -> Any:
    """An earlier block of the same shapes once more."""
    fitting = [
        index for index, (_, form, shape, _) in enumerate(site.earlier) if (form, shape) == (site.form, site.shape)
    ]
    if not fitting:
        raise NoSuchCase("nothing to use again")
    module, _, _, shape = site.earlier[site.choices.pick("which", fitting)]
    return module, shape


@block("", weight=2)
def residual(site: Site) -> Any:
    if site.form == MAPS:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(site.shape) - 2]
        return Apply(lambda m, x: x + m.conv(x), conv=kind(site.width, site.width, 3, padding=1))
    return Apply(lambda m, x: x + m.fc(x), fc=nn.Linear(site.width, site.width))


@block()
def gate(site: Site) -> Any:
    return Apply(lambda m, x: x * m.fc(x).sigmoid(), fc=nn.Linear(site.width, site.width))


@block("")
def bare_scale(site: Site) -> Any:
    """A parameter of the network itself: a number, one per feature, or one per entry."""
    last = (1,) * (len(site.shape) - 1)
    per_feature = (site.width, *last) if site.form == MAPS else (site.width,)
    shapes = [[], list(per_feature), list(site.shape), [1]]
    return Apply(lambda m, x: x * m.scale, scale=parameter(*site.choices.pick("shape", shapes)))


@block("", weight=0.5)
def empty_parameter(site: Site) -> Any:
    """A parameter without entries, used or not."""
    if site.choices.chance("used"):
        return Apply(lambda m, x: x + m.nothing.sum(), nothing=parameter(0, 3))
    return Apply(lambda m, x: x.sin(), nothing=parameter(0))


@block("", weight=0.5)
def unused_parts(site: Site) -> Any:
    """A layer never called, one whose output is dropped, a parameter never used."""
    f = site.shape[-1]

    def run(m: Any, x: Tensor) -> Tensor:
        m.dropped(x)
        return x

    return Apply(run, never=nn.Linear(f, 2), dropped=nn.Linear(f, 2), idle=parameter(2))


@block(weight=2)
def computed_weight(site: Site) -> Any:
    wraps = {
        "weight norm": parametrizations.weight_norm,
        "spectral norm": parametrizations.spectral_norm,
        "orthogonal": parametrizations.orthogonal,
        "old weight norm": nn.utils.weight_norm,
        "old spectral norm": nn.utils.spectral_norm,
        "own": lambda layer: parametrize.register_parametrization(layer, "weight", _Squared()) or layer,
        "own bias": lambda layer: parametrize.register_parametrization(layer, "bias", _Squared()) or layer,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return wraps[site.choices.pick("how", list(wraps))](nn.Linear(site.width, site.width))


class _Squared(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w * w.abs()


@block(weight=1.5)
def functional_use(site: Site) -> Any:
    """The weight of a module in other operations, beside a call of the module or instead of one."""
    runs = {
        "instead": lambda m, x: F.linear(x, m.fc.weight, m.fc.bias),
        "beside": lambda m, x: m.fc(x).tanh() + F.linear(x, m.fc.weight),
        "forward": lambda m, x: m.fc.forward(x),
        "transposed": lambda m, x: m.fc(x).tanh() @ m.fc.weight,
        "penalty": lambda m, x: m.fc(x) * m.fc.weight.square().sum().tanh(),
        "borrowed": lambda m, x: torch.func.functional_call(m.fc, {"weight": m.other}, (x,)) + F.linear(x, m.fc.weight),
        "normalized": lambda m, x: F.linear(x, m.fc.weight / m.fc.weight.norm(), m.fc.bias),
        "straight": lambda m, x: F.linear(x, m.fc.weight + (m.fc.weight.sign() - m.fc.weight).detach()),
    }
    run = runs[site.choices.pick("how", list(runs))]
    return Apply(run, fc=nn.Linear(site.width, site.width), other=parameter(site.width, site.width))


@block()
def parameter_container(site: Site) -> Any:
    f = site.width
    if site.choices.chance("dict"):
        parts = nn.ParameterDict({"a": parameter(f, f), "b": parameter(f)})
        return Apply(lambda m, x: (x @ m.parts["a"]).tanh() + m.parts["b"], parts=parts)
    return Apply(lambda m, x: (x @ m.parts[0]).tanh() @ m.parts[1], parts=nn.ParameterList([parameter(f, f)] * 2))


@block()
def parameters_in_a_list(site: Site) -> Any:
    """Parameters that the forward reads from a list of its own: replacing the attributes changes nothing."""
    layer = Apply(lambda m, x: (x @ m.steps[0]).tanh(), w=parameter(site.width, site.width))
    layer.steps = [layer.w]
    return layer


@block()
def einsum_weight(site: Site) -> Any:
    return Apply(lambda m, x: torch.einsum("...f,gf->...g", x, m.w).tanh(), w=parameter(site.width, site.width))


@block()
def low_rank_adapter(site: Site) -> Any:
    """A frozen linear layer with a trained low-rank update, as layers or as bare factors."""
    f = site.width
    base = nn.Linear(f, f).requires_grad_(False)
    if site.choices.chance("bare"):
        return Apply(lambda m, x: m.base(x) + 0.5 * x @ m.a @ m.b, base=base, a=parameter(f, 1), b=parameter(1, f))
    down, up = nn.Linear(f, 1, bias=False), nn.Linear(1, f, bias=False)
    return Apply(lambda m, x: m.base(x) + 0.5 * m.up(m.down(x)), base=base, down=down, up=up)


@block()
def merged_adapter(site: Site) -> Any:
    """The update is added to the weight, which is then used at once."""
    f = site.width
    run = lambda m, x: F.linear(x, m.fc.weight + m.b @ m.a, m.fc.bias)  # noqa: E731
    return Apply(run, fc=nn.Linear(f, f), a=parameter(1, f), b=parameter(f, 1))


@block()
def impostor(site: Site) -> Any:
    """A layer that looks registered and computes something else."""
    kind = site.choices.pick("how", ["subclass", "patched", "changed class", "instance attribute"])
    if kind == "subclass":
        return _SquaredLinear(site.width, site.width)
    layer = nn.Linear(site.width, site.width)
    if kind == "patched":
        layer.forward = MethodType(_tripled, layer)  # type: ignore[method-assign]
    elif kind == "changed class":
        layer.__class__ = _SquaredLinear
    else:
        layer.forward = lambda x: F.linear(x.sin(), layer.weight, layer.bias)  # type: ignore[method-assign]
    return layer


class _SquaredLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) ** 2


def _tripled(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, 3 * layer.weight, layer.bias)


@block()
def shared_list(site: Site) -> Any:
    """One list of layers under two parents."""
    layers = nn.ModuleList([nn.Linear(site.width, site.width) for _ in range(2)])

    def run(m: Any, x: Tensor) -> Tensor:
        for layer in (*m.left.layers, *m.right.layers):
            x = layer(x).tanh()
        return x

    left, right = nn.Module(), nn.Module()
    left.layers, right.layers = layers, layers
    return Apply(run, left=left, right=right)


@block(MAPS)
def standardized_weight(site: Site) -> Any:
    """A convolution whose kernels are standardized in every forward."""
    kind, call = ((nn.Conv1d, F.conv1d), (nn.Conv2d, F.conv2d), (nn.Conv3d, F.conv3d))[len(site.shape) - 2]

    def run(m: Any, x: Tensor) -> Tensor:
        w = m.conv.weight
        flat = w.flatten(1) - w.flatten(1).mean(1, keepdim=True)
        return call(x, flat.reshape(w.shape), m.conv.bias, padding=1)

    return Apply(run, conv=kind(site.width, site.width, 3, padding=1))


@block()
def half_frozen(site: Site) -> Any:
    layer = nn.Linear(site.width, site.width)
    frozen = site.choices.pick("frozen", ["bias", "weight", "both"])
    layer.weight.requires_grad_(frozen == "bias")
    layer.bias.requires_grad_(frozen == "weight")
    return Apply(lambda m, x: m.fc(x).tanh(), fc=layer)


@block()
def own_function(site: Site) -> Any:
    """A linear layer whose derivative is written by hand, or rounding with a straight-through gradient."""
    if site.choices.chance("rounding"):
        return Apply(lambda m, x: _Round.apply(3 * m.fc(x)), fc=nn.Linear(site.width, site.width))
    return Apply(lambda m, x: _Matmul.apply(x, m.w), w=parameter(site.width, site.width))


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 1.0


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.flatten(0, -2).mT @ grad.flatten(0, -2)
