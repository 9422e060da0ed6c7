"""Forwards that do odd things: control flow, in-place writes, checkpoints, hooks, books, casts, other axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.trial.blocks.base import ODD, STATEFUL, Apply, Site, block


@block(weight=2)
def in_place(site: Site) -> Any:
    """Writes into the output of a layer, or into its input after the call."""

    def parts(m: Any, x: Tensor) -> Tensor:
        h = m.fc(x)
        h[..., 0] = 2 * h[..., -1]
        return h.mul_(0.5).tanh_()

    def after(m: Any, x: Tensor) -> Tensor:
        h = x.sin()
        y = m.fc(h.detach())
        h.mul_(2)
        return y + h

    def views(m: Any, x: Tensor) -> Tensor:
        h = m.fc(x)
        h.select(-1, 0).add_(1)
        h.t().mul_(1.5) if h.ndim == 2 else h.transpose(1, 2).mul_(1.5)
        return h

    def scattered(m: Any, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for n in range(len(x)):
            out[n] = m.fc(x[n : n + 1])[0]
        return out

    runs = {"parts": parts, "after": after, "views": views, "scattered": scattered}
    return Apply(runs[site.choices.pick("how", list(runs))], fc=nn.Linear(site.width, site.width))


@block()
def views(site: Site) -> Any:
    def run(m: Any, x: Tensor) -> Tensor:
        a, b = m.fc(x).chunk(2, -1)
        first, *rest = (a.exp().clamp_max(3) + b).unbind(-1)
        return torch.stack([first.expand_as(first), *rest], -1)

    return Apply(run, fc=nn.Linear(site.width, 2 * site.width))


@block()
def checkpointed(site: Site) -> Any:
    """Activation checkpointing without reentry, with books kept in the part that runs twice."""

    def inner(m: Any, x: Tensor) -> Tensor:
        m.runs += 1
        return m.fc(x).tanh()

    run = lambda m, x: checkpoint(lambda y: inner(m, y), x, use_reentrant=False)  # noqa: E731
    return Apply(run, fc=nn.Linear(site.width, site.width), runs=0)


@block("features", ODD, weight=0.5)
def reentrant_checkpoint(site: Site) -> Any:
    run = lambda m, x: checkpoint(m.fc, x, use_reentrant=True)  # noqa: E731
    return Apply(run, fc=nn.Linear(site.width, site.width))


@block()
def without_gradient(site: Site) -> Any:
    """Calls of a layer under no_grad, detached, and one that counts; or values that are cut off."""
    f = site.width

    def three(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = m.fc(x).tanh()
        return target * m.fc(x) + m.fc(2 * x).detach()

    runs = {
        "three calls": three,
        "cut": lambda m, x: m.fc(x.detach()) + x,
        "target": lambda m, x: x + (m.fc(x).sign() - m.fc(x)).detach() + m.fc(x),
        "data": lambda m, x: x @ m.fc.weight.data.T + m.fc(x),
    }
    return Apply(runs[site.choices.pick("how", list(runs))], fc=nn.Linear(f, f))


@block("features", STATEFUL)
def books(site: Site) -> Any:
    """Writes attributes, replaces and updates buffers, grows a list; none of it changes this forward's value."""
    f = site.width
    layer = Apply(_kept_books, fc=nn.Linear(f, f), log=[], calls=0)
    layer.register_buffer("mean", torch.zeros(f))
    layer.register_buffer("count", torch.zeros(()))
    return layer


def _kept_books(m: Any, x: Tensor) -> Tensor:
    out = m.fc(x)
    m.last, m.calls, m.count = out, m.calls + 1, m.count + 1
    m.log.append(out)
    m.mean.add_(out.detach().flatten(0, -2).mean(0))
    return out.tanh()


@block("features", STATEFUL, ODD)
def counter(site: Site) -> Any:
    """The value depends on how often the model was called: every measurement sees the first call."""
    layer = Apply(_counted, fc=nn.Linear(site.width, site.width), python=site.choices.chance("python"), calls=0)
    layer.register_buffer("count", torch.zeros(()))
    return layer


def _counted(m: Any, x: Tensor) -> Tensor:
    if m.python:
        m.calls += 1
        return m.fc(x) * (1 + 0.5 * m.calls)
    m.count += 1
    return m.fc(x) * (1 + 0.5 * m.count.to(x.dtype))


@block()
def temperature(site: Site) -> Any:
    """A Python number that the forward reads."""
    return Apply(lambda m, x: m.fc(x) / m.t, fc=nn.Linear(site.width, site.width), t=1.7)


@block(weight=2)
def hooked(site: Site) -> Any:
    """Hooks that observe, and hooks that change."""
    layer = nn.Linear(site.width, site.width)
    seen: list[Any] = []
    hooks = {
        "observing": lambda: layer.register_forward_hook(lambda m, args, out: seen.clear()),
        "observing before": lambda: layer.register_forward_pre_hook(lambda m, args: None),
        "changing": lambda: layer.register_forward_hook(lambda m, args, out: 2 * out),
        "changing in place": lambda: layer.register_forward_hook(lambda m, args, out: out.mul_(2)),
        "changing before": lambda: layer.register_forward_pre_hook(lambda m, args: (args[0].sin(),)),
        "same output": lambda: layer.register_forward_hook(lambda m, args, out: out),
        "backward": lambda: layer.register_full_backward_hook(lambda m, gi, go: None),
        "on the weight": lambda: layer.weight.register_hook(lambda grad: None),
        "scaling the weight": lambda: layer.weight.register_hook(lambda grad: 2 * grad),
        "keywords": lambda: layer.register_forward_hook(lambda m, a, k, out: None, with_kwargs=True),
        "after accumulation": lambda: layer.weight.register_post_accumulate_grad_hook(lambda p: None),
    }
    hooks[site.choices.pick("how", list(hooks))]()
    return layer


@block("features", ODD)
def changed_backward(site: Site) -> Any:
    """A hook scales the gradient that flows back: what autograd gives is no derivative, but it is what autograd gives."""

    def run(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        if y.requires_grad:
            y.register_hook(lambda grad: 0.5 * grad)
        return y.tanh()

    return Apply(run, fc=nn.Linear(site.width, site.width))


@block(weight=1.5)
def mutating(site: Site) -> Any:
    """Modules, buffers and attributes are replaced in the forward, as routers that fix their type do."""
    f = site.width

    def cast_child(m: Any, x: Tensor) -> Tensor:
        m.fc = m.fc.to(x.dtype)
        return m.fc(x).tanh()

    def cast_buffer(m: Any, x: Tensor) -> Tensor:
        m.c = m.c.to(x.dtype)
        return m.fc(x) * m.c

    def new_buffer(m: Any, x: Tensor) -> Tensor:
        m.c = torch.full_like(m.c, 2.0)
        return m.fc(x) * m.c.to(x.dtype)

    def cached(m: Any, x: Tensor) -> Tensor:
        if m.kept is None:
            m.kept = m.fc.weight.detach().clone()
        return m.fc(x) + x @ m.kept

    def set_weight(m: Any, x: Tensor) -> Tensor:
        m.fc.weight = m.fc.weight
        return m.fc(x).tanh()

    runs = {"child": cast_child, "buffer": cast_buffer, "new": new_buffer, "cached": cached, "weight": set_weight}
    layer = Apply(runs[site.choices.pick("how", list(runs))], fc=nn.Linear(f, f), kept=None)
    layer.register_buffer("c", torch.full((f,), 0.5))
    return layer


@block()
def keyword_call(site: Site) -> Any:
    return Apply(
        lambda m, x: m.fc(input=x).tanh() + m.norm(x=x),
        fc=nn.Linear(site.width, site.width),
        norm=nn.RMSNorm(site.width),
    )


@block()
def used_twice(site: Site) -> Any:
    """One output in two operations, and one call per entry of a list."""
    f = site.width

    def run(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        return y * y.sin() + y.cos() + sum(m.fc(z) for z in (x.cos(), y))

    return Apply(run, fc=nn.Linear(f, f))


@block()
def nested_outputs(site: Site) -> Any:
    """A child that takes and gives dicts and tuples."""
    f = site.width
    child = Apply(lambda m, pair: {"out": m.fc(pair["a"]) + pair["b"][0]}, fc=nn.Linear(f, f))
    return Apply(lambda m, x: m.child({"a": x.sin(), "b": (x, None)})["out"], child=child)
