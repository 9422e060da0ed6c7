"""Derivatives inside the forward, other number systems, modes and patches, noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.trial.blocks.base import NOISE, ODD, ROUNDS, STATEFUL, WRITES, Apply, Site, block, in_train_mode, parameter


def _slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """d sum(function(x)) / dx with a graph, gradients switched on."""
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]


@block(weight=2.5)
def force(site: Site) -> Any:
    """Minus the gradient of an energy in the input, cut off from what is before or not; also beside the energy."""
    o, f = site.choices, site.width
    net = nn.Sequential(nn.Linear(f, 3), nn.Tanh(), nn.Linear(3, o.number("energies", 1, 2)))
    cut, with_value = o.pick("cut", [True, False]), o.chance("with value")

    def run(m: Any, x: Tensor) -> Tensor:
        slope = -_slope(m.net, x.detach() if cut else x)
        return slope + m.net(x)[..., :1] if with_value else slope

    return Apply(run, net=net)


@block()
def physics(site: Site) -> Any:
    """A residual with a second derivative in the input, u'' + u."""
    f = site.width
    net = nn.Sequential(nn.Linear(f, 3), nn.Tanh(), nn.Linear(3, 1))

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            u = m.net(z)
            first = torch.autograd.grad(u.sum(), z, create_graph=True)[0]
            second = torch.autograd.grad(first.sum(), z, create_graph=True)[0]
        return second + u

    return Apply(run, net=net)


@block()
def functional_derivative(site: Site) -> Any:
    """Derivatives by torch.func inside the forward."""
    o, f = site.choices, site.width
    layer = nn.Linear(f, f)
    runs: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "jvp": lambda m, x: torch.func.jvp(lambda z: m.fc(z).tanh(), (x,), (torch.ones_like(x),))[1],
        "vjp": lambda m, x: torch.func.vjp(lambda z: m.fc(z).tanh(), x)[1](torch.ones_like(x))[0],
        "grad": lambda m, x: torch.func.grad(lambda z: m.fc(z).tanh().sum())(x),
    }
    return Apply(runs[o.pick("how", list(runs))], fc=layer)


@block()
def inner_step(site: Site) -> Any:
    """A gradient step on the weights inside the forward, as in meta-learning; every example has its own."""
    f = site.width

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            shift = x.detach().clone().requires_grad_()
            energy = (m.fc(shift) - x).square().sum()
            moved = shift - 0.1 * torch.autograd.grad(energy, shift, create_graph=True)[0]
        return m.fc(moved)

    return Apply(run, fc=nn.Linear(f, f))


@block()
def fourier(site: Site) -> Any:
    """Complex values on the way: a filter in the frequencies of the features."""
    count = site.width // 2 + 1

    def run(m: Any, x: Tensor) -> Tensor:
        z = torch.fft.rfft(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
        w = torch.complex(m.real.to(z.real.dtype), m.imaginary.to(z.real.dtype))
        return torch.fft.irfft(z * w, n=x.shape[-1], dim=-1).to(x.dtype)

    return Apply(run, real=parameter(count), imaginary=parameter(count))


@block()
def complex_layer(site: Site) -> Any:
    """A real layer on the two parts of a complex value."""
    f = site.width
    run = lambda m, x: torch.view_as_real(torch.complex(m.fc(x), m.fc(x.sin()))).prod(-1)  # noqa: E731
    return Apply(run, fc=nn.Linear(f, f))


@block()
def sparse_features(site: Site) -> Any:
    """A sparse matrix on the features of every example."""
    f = site.width

    def run(m: Any, x: Tensor) -> Tensor:
        a = torch.eye(f, dtype=x.dtype).roll(1, 0).to_sparse()
        return m.fc(torch.sparse.mm(a, x.reshape(-1, f).t()).t().reshape(x.shape))

    return Apply(run, fc=nn.Linear(f, f))


@block("features", ROUNDS)
def other_precision(site: Site) -> Any:
    """Part of the forward in another floating type, by casts or by autocast."""
    f, how = site.width, site.choices.pick("how", ["double and back", "float and back", "norm in float"])
    kind = torch.float64 if how == "double and back" else torch.float32

    def run(m: Any, x: Tensor) -> Tensor:
        if how == "norm in float":
            z = x.float()
            return m.fc((z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-3)).to(x.dtype))
        return m.fc(x).to(kind).tanh().to(x.dtype)

    return Apply(run, fc=nn.Linear(f, f))


class Doubling(TorchFunctionMode):
    """Every linear map doubles, or runs on another input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return 2 * func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Sine(TorchFunctionMode):
    """Every linear map sees the sine of its input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            args = (args[0].sin(), *args[1:])
        return func(*args, **(kwargs or {}))


@contextmanager
def patched_function() -> Iterator[None]:
    """F.linear is another function for a while."""
    old = F.linear
    F.linear = lambda x, w, b=None: old(x.sin(), 2 * w, b)  # type: ignore[assignment]
    try:
        yield
    finally:
        F.linear = old  # type: ignore[assignment]


@contextmanager
def patched_forward() -> Iterator[None]:
    """nn.Linear.forward is another function for a while."""
    old = nn.Linear.forward
    nn.Linear.forward = lambda self, x: old(self, x * x.abs())  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Linear.forward = old  # type: ignore[method-assign]


@contextmanager
def quantized_forward() -> Iterator[None]:
    """nn.Linear.forward multiplies its weight and passes the gradient by, as patches for mixed precision do."""
    old = nn.Linear.forward
    nn.Linear.forward = lambda self, x: F.linear(x, self.weight * 1.5, self.bias)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Linear.forward = old  # type: ignore[method-assign]


@contextmanager
def global_hook() -> Iterator[None]:
    """A hook on all modules changes what linear layers give."""
    change = lambda m, args, out: 2 * out if isinstance(m, nn.Linear) else None  # noqa: E731
    handle = nn.modules.module.register_module_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


MODES: dict[str, Callable[[], Any]] = {
    "global hook": global_hook,
    "doubling mode": Doubling,
    "sine mode": Sine,
    "patched function": patched_function,
    "patched forward": patched_forward,
    "quantized forward": quantized_forward,
}


@block(weight=1.5)
def under_mode(site: Site) -> Any:
    """A layer that runs under a mode or patch which its forward sets up."""
    mode = MODES[site.choices.pick("mode", list(MODES))]

    def run(m: Any, x: Tensor) -> Tensor:
        with mode():
            return m.fc(x).tanh()

    return Apply(run, fc=nn.Linear(site.width, site.width))


@block("features", NOISE, weight=0.6)
def noise(site: Site) -> Any:
    """The forward draws at random, always or now and then."""
    f = site.width
    layer = nn.Linear(f, f)
    how = site.choices.pick("how", ["normal", "dropout", "depth", "rare depth", "module", "categorical", "permutation"])

    def depth(m: Any, x: Tensor, p: float) -> Tensor:
        return x + m.fc(x) if float(torch.rand(())) > p else x

    runs: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "normal": lambda m, x: m.fc(x) + 0.1 * torch.randn_like(x),
        "dropout": lambda m, x: F.dropout(m.fc(x), 0.3, training=True),
        "depth": lambda m, x: depth(m, x, 0.5),
        "rare depth": lambda m, x: depth(m, x, 0.01),
        "module": lambda m, x: m.drop(m.fc(x)),
        "categorical": lambda m, x: m.fc(x) * torch.multinomial(torch.ones(2), 1).to(x.dtype),
        "permutation": lambda m, x: m.fc(x) * torch.randperm(3)[0].to(x.dtype),
    }
    parts = {"drop": in_train_mode(nn.Dropout(0.3))} if how == "module" else {}
    return Apply(runs[how], fc=layer, **parts)


@block("features", NOISE, weight=0.3)
def batch_norm_in_train_mode(site: Site) -> Any:
    """Refused like noise: by its mode alone."""
    run = lambda m, x: m.bn(x.flatten(0, -2)).reshape(x.shape)  # noqa: E731
    return Apply(run, bn=in_train_mode(nn.BatchNorm1d(site.width)))


@block("features", STATEFUL, weight=0.6)
def quantizer(site: Site) -> Any:
    """An observer keeps the range of what it saw, and the range scales the values."""
    layer = Apply(_observed, fc=nn.Linear(site.width, site.width))
    layer.register_buffer("range", torch.ones(()))
    return layer


def _observed(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    out = y / m.range
    m.range = 0.9 * m.range + 0.1 * y.detach().abs().max()
    return out


@block("features", ODD, WRITES, weight=0.5)
def writes_parameter(site: Site) -> Any:
    """A constraint that the forward enforces on its weight, in every call or where it is violated."""
    always = site.choices.chance("always")

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            if always or m.fc.weight.norm() > 100:
                m.fc.weight.mul_(0.9)
        return m.fc(x)

    return Apply(run, fc=nn.Linear(site.width, site.width))


@block(weight=0.7)
def odd_memory(site: Site) -> Any:
    """Parameters that are transposed or share their memory with others."""
    f, how = site.width, site.choices.pick("how", ["transposed", "shared", "expanded input"])
    layer = nn.Linear(f, f)
    if how == "transposed":
        layer.weight = nn.Parameter(torch.randn(f, f).t())
    if how == "expanded input":
        return Apply(lambda m, x: m.fc(x[..., :1].expand_as(x)).tanh(), fc=layer)
    return Apply(lambda m, x: m.fc(x) + x @ m.w, fc=layer, w=nn.Parameter(layer.weight.detach()))


@block(weight=0.7)
def reversed_gradient(site: Site) -> Any:
    """As in adversarial training: forward it is nothing, backward a change of sign."""
    return Apply(lambda m, x: _Reversed.apply(m.fc(x)), fc=nn.Linear(site.width, site.width))


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


@block("features", ROUNDS, weight=0.5)
def autocast(site: Site) -> Any:
    """A layer in bfloat16 by autocast."""

    def run(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.fc(x).to(x.dtype).tanh()

    return Apply(run, fc=nn.Linear(site.width, site.width))


@block(weight=0.4)
def traced(site: Site) -> Any:
    """A layer behind torch.jit."""
    layer = nn.Linear(site.width, site.width)
    return Apply(lambda m, x: m.fc(x).tanh(), fc=torch.jit.trace(layer, torch.zeros(2, *site.shape)))
