"""Examples that see each other, in as many patterns as we could think of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.trial.blocks.base import MIXES, Apply, Site, block


def largest_divisor(count: int, *sizes: int) -> int:
    """The largest of the sizes that divides the number of examples; else 1."""
    return max((size for size in sizes if count % size == 0), default=1)


def _groups(x: Tensor, *sizes: int) -> Tensor:
    """(examples / size, size, ...)."""
    return x.unflatten(0, (-1, largest_divisor(len(x), *sizes)))


def group_means(x: Tensor) -> Tensor:
    """Every example sees the mean of its pair or group."""
    g = _groups(x, 2, 4)
    return (g + g.mean(1, keepdim=True)).flatten(0, 1)


def temporal_shift(x: Tensor) -> Tensor:
    """In segments of frames, one feature comes from the frame before."""
    g = _groups(x, 2, 4, 7)
    shifted = torch.cat([torch.zeros_like(g[:, :1]), g[:, :-1]], 1)
    return torch.cat([shifted[..., :1], g[..., 1:]], -1).flatten(0, 1)


def graph(x: Tensor) -> Tensor:
    """Nodes of equal graphs flattened into the batch, a fixed adjacency matrix."""
    g = _groups(x, 2, 3, 4, 7)
    m = g.shape[1]
    a = torch.eye(m, dtype=x.dtype) + torch.eye(m, dtype=x.dtype).roll(1, 0)
    return torch.einsum("ij,bj...->bi...", a, g).flatten(0, 1)


def sparse_graph(x: Tensor) -> Tensor:
    """The same as a sparse product over the whole batch."""
    n = len(x)
    index = torch.tensor([list(range(n)) * 2, [*range(n), *((i + 1) % n for i in range(n))]])
    a = torch.sparse_coo_tensor(index, torch.full((2 * n,), 0.5, dtype=x.dtype), (n, n)).coalesce()
    return torch.sparse.mm(a, x.flatten(1)).reshape(x.shape)


def attention_over_batch(x: Tensor) -> Tensor:
    q = x.flatten(1)
    return ((q @ q.t()).softmax(1) @ q).reshape(x.shape)


def batch_statistics(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-2).sqrt()


def from_third(x: Tensor) -> Tensor:
    """Only the examples from the third on see their predecessor."""
    return torch.cat([x[:3], x[3:] + x[2:-1]]) if len(x) > 3 else x


def four_before(x: Tensor) -> Tensor:
    return torch.cat([x[:4], x[4:] * x[:-4].sin()]) if len(x) > 4 else x


def last_sees_all(x: Tensor) -> Tensor:
    return torch.cat([x[:-1], x.sum(0, keepdim=True)])


def first_seen_by_all(x: Tensor) -> Tensor:
    return x + x[:1].sin()


def scatter_sum(x: Tensor) -> Tensor:
    """Messages along edges i -> i // 2, as graph libraries pass them."""
    target = torch.arange(len(x)) // 2
    return x + torch.zeros_like(x).index_add(0, target, x.sin())


def pairwise(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    return x * (flat[:, None] - flat[None]).square().sum((1, 2)).reshape(-1, *[1] * (x.ndim - 1)).tanh()


def swapped_last(x: Tensor) -> Tensor:
    order = [*range(len(x) - 2), len(x) - 1, len(x) - 2] if len(x) > 1 else [0]
    return x[order]


def nearest(x: Tensor) -> Tensor:
    """Every example sees the one that is nearest."""
    flat = x.detach().flatten(1)
    d = torch.cdist(flat, flat) + 1e9 * torch.eye(len(x), dtype=x.dtype)
    return x + x[d.argmin(1)].tanh()


PATTERNS: dict[str, Callable[[Tensor], Tensor]] = {
    "roll by 1": lambda x: x + x.roll(1, 0).sin(),
    "roll by 2": lambda x: x + x.roll(2, 0).sin(),
    "only rolled": lambda x: x.roll(1, 0),
    "reversed": lambda x: x.flip(0),
    "swapped last": swapped_last,
    "group means": group_means,
    "temporal shift": temporal_shift,
    "graph": graph,
    "sparse graph": sparse_graph,
    "attention": attention_over_batch,
    "statistics": batch_statistics,
    "from third": from_third,
    "four before": four_before,
    "last sees all": last_sees_all,
    "first seen by all": first_seen_by_all,
    "messages": scatter_sum,
    "cumulative sum": lambda x: x.cumsum(0) / len(x),
    "maximum": lambda x: x - x.amax(0, keepdim=True),
    "largest": lambda x: x / (x.abs().max() + 1),
    "softmax": lambda x: x.softmax(0),
    "sorted": lambda x: x.sort(0).values,
    "pairwise": pairwise,
    "nearest": nearest,
    "total": lambda x: x * x.sum().tanh(),
    "every other": lambda x: torch.cat([x[:1], x[1:2] + x[:1], x[2:]]) if len(x) > 1 else x,
    "weakly": lambda x: x + 1e-3 * x.roll(1, 0),
}


@block("", MIXES, weight=6)
def mixed(site: Site) -> Any:
    """One of the patterns, around a layer or alone, with or without gradients through the others."""
    pattern = PATTERNS[site.choices.pick("pattern", list(PATTERNS))]
    return Apply(lambda m, x: pattern(x))


@block("", MIXES)
def mixed_values(site: Site) -> Any:
    """Examples see the values of others, and no gradient flows that way."""
    pattern = PATTERNS[site.choices.pick("pattern", list(PATTERNS))]
    return Apply(lambda m, x: x * (1 + pattern(x.detach()).tanh()))


@block("", MIXES)
def mixed_choice(site: Site) -> Any:
    """A branch for all that all examples choose together."""
    return Apply(lambda m, x: x.sin() if x.sum() > 0 else 2 * x)


@block("features", MIXES)
def mixing_layer(site: Site) -> Any:
    """A layer between the examples' own features and the others'."""
    pattern = PATTERNS[site.choices.pick("pattern", list(PATTERNS))]
    return Apply(lambda m, x: m.b(pattern(m.a(x).tanh())), a=nn.Linear(site.width, 3), b=nn.Linear(3, site.width))


@block("features", MIXES, rank=2)
def axes_confused(site: Site) -> Any:
    """Attention that runs over the examples because its axes are in the wrong order."""
    layer = nn.MultiheadAttention(site.width, 1, batch_first=False)
    return Apply(lambda m, x: m.attention(x, x, x, need_weights=False)[0], attention=layer)
