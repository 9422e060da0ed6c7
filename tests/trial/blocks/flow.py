"""Forwards that do odd things: control flow, in-place writes, checkpoints, hooks, books, casts, other axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.trial.blocks.base import MIXES, ODD, STATEFUL, Apply, Site, block, parameter


@block(rank=2)
def sequence_first(site: Site) -> Any:
    """A layer that sees (steps, examples, features)."""
    kinds = {"linear": nn.Linear(site.width, site.width), "norm": nn.LayerNorm(site.width)}
    layer = kinds[site.choices.pick("layer", list(kinds))]
    return Apply(lambda m, x: m.layer(x.transpose(0, 1)).transpose(0, 1), layer=layer)


@block(rank=2)
def folded(site: Site) -> Any:
    """Examples and steps in one axis, in one of two orders."""
    steps_first = site.choices.chance("steps first")

    def run(m: Any, x: Tensor) -> Tensor:
        y = x.transpose(0, 1) if steps_first else x
        y = m.fc(y.flatten(0, 1)).tanh().unflatten(0, y.shape[:2])
        return y.transpose(0, 1) if steps_first else y

    return Apply(run, fc=nn.Linear(site.width, site.width))


@block()
def in_parts(site: Site) -> Any:
    """The batch goes through a layer in parts, row by row, or by vmap."""
    runs = {
        "halves": lambda m, x: torch.cat([m.fc(part) for part in x.split((len(x) + 1) // 2)]).tanh(),
        "rows": lambda m, x: torch.stack([m.fc(row) for row in x]).tanh(),
        "large batches": lambda m, x: torch.cat([m.fc(x[:2]), m.fc(x[2:])]).tanh() if len(x) > 3 else m.fc(x).tanh(),
        "vmap": lambda m, x: torch.vmap(m.fc)(x).tanh(),
        "padded": lambda m, x: m.fc(torch.cat([x, torch.zeros_like(x[:1])]))[: len(x)].tanh(),
        "repeated": lambda m, x: m.fc(torch.cat([x, x.sin()])).unflatten(0, (2, len(x))).prod(0),
        "interleaved": lambda m, x: m.fc(torch.stack([x, x.sin()], 1).flatten(0, 1)).unflatten(0, (len(x), 2)).sum(1),
        "reversed": lambda m, x: m.fc(x.flip(0)).flip(0).tanh(),
        "sorted": lambda m, x: _sorted_call(m.fc, x),
    }
    run = runs[site.choices.pick("how", list(runs))]
    return Apply(run, fc=nn.Linear(site.width, site.width))


def _sorted_call(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer sees the examples sorted, as packed sequences are; what comes out is in the old order."""
    order = x.detach().flatten(1).sum(1).argsort()
    return layer(x[order])[order.argsort()].tanh()


@block()
def branching(site: Site) -> Any:
    """Every example takes the branch that its own values choose."""
    f = site.width
    if site.choices.chance("where"):
        run = lambda m, x: torch.where(x.sum(-1, keepdim=True) > 0, m.a(x), m.b(x))  # noqa: E731
    else:
        run = lambda m, x: torch.stack([m.a(row).tanh() if row.sum() > 0 else m.b(row) for row in x])  # noqa: E731
    return Apply(run, a=nn.Linear(f, f), b=nn.Linear(f, f))


@block(weight=2)
def experts(site: Site) -> Any:
    """Mixture of experts: tokens are routed by index, and some experts may get none."""
    f, o = site.width, site.choices
    top, skip = o.number("top", 1, 2), o.chance("skip empty")
    bias = o.pick("crowded", [0.0, 5.0])

    def run(m: Any, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, f)
        scores = (m.router(tokens) + bias * torch.tensor([1.0, 0.0, 0.0], dtype=x.dtype)).softmax(-1)
        weights, chosen = scores.topk(top, -1)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(m.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            if skip and len(rows) == 0:
                continue
            out = out.index_add(0, rows, weights[rows, place, None] * expert(tokens[rows]))
        return out.reshape(x.shape)

    layers = nn.ModuleList([nn.Linear(f, f) for _ in range(3)])
    return Apply(run, router=nn.Linear(f, 3, bias=False), experts=layers)


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


@block("features", MIXES, rank=2)
def packed(site: Site) -> Any:
    """A recurrent layer on packed sequences whose lengths follow from their places in the batch."""

    def run(m: Any, x: Tensor) -> Tensor:
        lengths = (x.detach()[:, 1:, 0] > 0).sum(1) + 1
        pack = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(m.rnn(pack)[0], batch_first=True, total_length=x.shape[1])
        return out

    return Apply(run, rnn=nn.GRU(site.width, site.width, batch_first=True))


@block(rank=2)
def masked(site: Site) -> Any:
    """Only the marked tokens go through a layer."""

    def run(m: Any, x: Tensor) -> Tensor:
        mark = x.detach().sum(-1) > 0
        out = x.clone()
        out[mark] = m.fc(x[mark]).tanh()
        return out

    return Apply(run, fc=nn.Linear(site.width, site.width))


@block(rank=1)
def ensemble(site: Site) -> Any:
    """Members as an axis of their own: a batched product, or a layer on a repeated batch."""
    f = site.width
    if site.choices.chance("batched product"):
        return Apply(lambda m, x: torch.bmm(x.expand(2, *x.shape), m.w).tanh().mean(0), w=parameter(2, f, f))

    def run(m: Any, x: Tensor) -> Tensor:
        doubled = x[None].expand(2, *x.shape) * m.sign[:, None]
        return m.fc(doubled).tanh().sum(0)

    return Apply(run, fc=nn.Linear(f, f), sign=parameter(2, f))


@block(rank=1)
def pairs(site: Site) -> Any:
    """One layer on two rows per example, beside the axis of the examples or behind it."""
    inside = site.choices.chance("inside")

    def run(m: Any, x: Tensor) -> Tensor:
        axis = 1 if inside else 0
        return F.softplus(m.fc(torch.stack([x, x.cos()], axis))).prod(axis)

    return Apply(run, fc=nn.Linear(site.width, site.width))
