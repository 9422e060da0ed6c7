"""Pairs: the scores of a critic on joint examples and on pairs that were never drawn together.

A critic `T(x, z)` gives one number per pair. Row i of a batch is a joint pair; `x_i` with `z_j`, j other than i, is a pair of
the product of the marginals. A shuffle that leaves an example in place would put joint pairs among them, so shuffles here
are derangements, or all off-diagonal pairs are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError, ModelError

Critic = Callable[[Tensor, Tensor], Tensor]
"""`T(x, z)`: `(n, ...)` and `(n, ...)` to `(n,)` or `(n, 1)`. One with a method `factors` gives all scores by one product."""
Pairs = Literal["all", "deranged"]


@dataclass(frozen=True)
class Scores:
    """Scores of `n` joint pairs, `(n,)`, and of every `x_i` with `m` strangers, `(n, m)`."""

    joint: Tensor
    marginal: Tensor


def score_pairs(
    critic: Critic, x: Tensor, z: Tensor, pairs: Pairs = "all", generator: Generator | None = None
) -> Scores:
    """The scores of a batch.

    Args:
        critic: `T`.
        x, z: `(n, ...)`, examples that belong together.
        pairs: "all" scores the n (n - 1) off-diagonal pairs, one matrix product for a separable critic; "deranged" one
            stranger per example, by a permutation without fixed points.
        generator: of the derangement.

    Returns:
        joint `(n,)` and marginal `(n, n - 1)` or `(n, 1)`.
    """
    if pairs == "deranged":
        return Scores(joint_scores(critic, x, z), joint_scores(critic, x, z[derangement(len(z), generator)])[:, None])
    if pairs != "all":
        raise InputError(f"Pairs are 'all' or 'deranged', not {pairs!r}.")
    return off_diagonal(score_matrix(critic, x, z))


def shifted_scores(critic: Critic, x: Tensor, z: Tensor, strangers: int = 20) -> Scores:
    """`x_i` with `z_(i+1)`, `z_(i+2)`, ..., (n, strangers): some strangers of every example, each as often as any other."""
    shifts = range(1, min(strangers, len(x) - 1) + 1)
    columns = [joint_scores(critic, x, z.roll(-shift, 0)) for shift in shifts]
    return Scores(joint_scores(critic, x, z), torch.stack(columns, 1))


def off_diagonal(matrix: Tensor) -> Scores:
    """A matrix of scores `T(x_i, z_j)`, `(n, n)`, as the diagonal and the rest of every row."""
    n = len(matrix)
    if n < 2:
        raise InputError("A batch of one example has no strangers: at least two are needed.")
    others = matrix.flatten()[1:].view(n - 1, n + 1)[:, :n].reshape(n, n - 1)
    return Scores(matrix.diagonal(), others)


def joint_scores(critic: Critic, x: Tensor, z: Tensor) -> Tensor:
    """`T(x_i, z_i)`, `(n,)`."""
    found = critic(x, z)
    if found.shape not in ((len(x),), (len(x), 1)):
        raise ModelError(f"A critic gives one score per pair: {tuple(found.shape)} came for {len(x)} pairs.")
    return found.reshape(-1)


def score_matrix(critic: Critic, x: Tensor, z: Tensor, most: int = 65_536) -> Tensor:
    """`T(x_i, z_j)`, `(n, m)`: by the critic's own `factors`, else by writing out all pairs, at most `most` at once."""
    if hasattr(critic, "factors"):
        left, right = critic.factors(x, z)
        return left @ right.T
    rows = max(1, most // len(z))
    parts = [
        joint_scores(critic, part.repeat_interleave(len(z), 0), z.repeat(len(part), *(1 for _ in z.shape[1:])))
        for part in x.split(rows)
    ]
    return torch.cat(parts).view(len(x), len(z))


def derangement(n: int, generator: Generator | None = None) -> Tensor:
    """A permutation of n places without fixed points, uniform among all of them, by rejection: e draws on average."""
    if n < 2:
        raise InputError("A derangement needs at least two places.")
    here = torch.arange(n)
    while True:
        order = torch.randperm(n, generator=generator)
        if not (order == here).any():
            return order
