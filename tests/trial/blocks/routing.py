"""Examples and tokens that take their own ways: parts, branches, experts, masks, members, other axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.trial.blocks.base import Apply, Site, block, parameter


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


@block(rank=2)
def packed(site: Site) -> Any:
    """A recurrent layer on packed sequences of different lengths."""

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
