"""A fitted critic on held-out examples: one pass over all pairs gives the value of every objective and its influence function.

The n (n - 1) pairs of n examples are not independent. Replacing one example changes a row and a column, so the standard error
of the value comes from the influence of every example, `phi_i`, with row and column means: for Donsker-Varadhan

    phi_i = T_ii - (r_i + c_i) / Z,   Z = mean of e^T over pairs, r_i and c_i its means over row and column i,

which is the Hajek projection of the U-statistic inside of the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.information.objectives import Objective
from tangentlab.information.scores import Critic, joint_scores, score_matrix

LARGEST = 2000
"""How many of the largest scores are kept for the tail of e^T."""


@dataclass(frozen=True)
class PairTable:
    """What is left of the scores of n examples and of each with m strangers, in double precision.

    Attributes:
        joint: `T(x_i, z_i)`, (n,).
        rows: `log mean_j e^T(x_i, z_j)` over the strangers of x_i, (n,).
        columns: the same over the strangers of z_j, (n,).
        contrast: `mean_j e^(T(x_j, z_i) - l_j)`, l_j the logarithmic mean over row j and its own pair, (n,).
        log_partition: `log E_Q e^T`.
        log_second: `log E_Q e^(2T)`.
        largest: the largest scores of strangers, in decreasing order, at most `LARGEST`.
        strangers: m.
    """

    joint: Tensor
    rows: Tensor
    columns: Tensor
    contrast: Tensor
    log_partition: float
    log_second: float
    largest: Tensor
    strangers: int

    def __len__(self) -> int:
        return len(self.joint)

    @property
    def pairs(self) -> int:
        """How many pairs of strangers were scored."""
        return len(self.joint) * self.strangers

    @property
    def effective_size(self) -> float:
        """`(sum e^T)^2 / sum e^(2T)`: how many pairs the average of e^T really rests on."""
        return self.pairs * math.exp(min(0.0, 2 * self.log_partition - self.log_second))

    def value(self, reads: str) -> float:
        """The estimate in nats: "dv", "nwj", "infonce" or "joint"."""
        mean = self.joint.mean().item()
        if reads == "joint":
            return mean
        if reads == "dv":
            return mean - self.log_partition
        if reads == "nwj":
            return 1 + mean - math.exp(self.log_partition)
        return (self.joint - self._own_rows()).mean().item()

    def influence(self, reads: str) -> Tensor:
        """(n,) of mean 0: the value with example i counted `1 + e` times changes by `e phi_i / n`."""
        if reads == "joint":
            found = self.joint
        elif reads == "infonce":
            found = self.joint - self._own_rows() - self.contrast
        else:
            reference = self.log_partition if reads == "dv" else 0.0
            found = self.joint - (self.rows - reference).exp() - (self.columns - reference).exp()
        return found - found.mean()

    def pointwise(self, reads: str) -> Tensor:
        """(n,), with the value as their mean: the log-density ratio at every example, as the critic has it."""
        return (
            self.joint - self._own_rows()
            if reads == "infonce"
            else self.joint - (self.joint.mean() - self.value(reads))
        )

    def error_of_partition(self) -> float:
        """Standard error of the log-partition, for which the pairs of one example count as one."""
        found = (self.rows - self.log_partition).exp() + (self.columns - self.log_partition).exp()
        spread = found.var(correction=0) / len(found)
        return math.sqrt(spread.item() + 1 / max(self.effective_size, 1.0))

    def _own_rows(self) -> Tensor:
        return torch.logaddexp(self.joint, self.rows + math.log(self.strangers)) - math.log(self.strangers + 1)


@torch.no_grad()
def pair_table(critic: Critic, x: Tensor, z: Tensor, objective: Objective, most: int | None = None) -> PairTable:
    """Score every example and its strangers, in blocks of rows.

    Args:
        critic: in evaluation mode.
        x, z: `(n, ...)`, in random order.
        objective: whose clipping applies to strangers.
        most: how many pairs at most: x_i meets z_(i+1), z_(i+2), ... in turn. Everything by default.

    Cost: n^2 pairs; for a separable critic 2 n passes, a matrix product and an exponential per pair.
    """
    n = len(x)
    strangers = n - 1 if most is None else max(1, min(n - 1, most // n))
    joint = torch.cat([joint_scores(critic, *part) for part in zip(x.split(4096), z.split(4096), strict=True)]).double()
    sums = _Sums(n)
    for start, scores, index in _blocks(critic, x, z, strangers):
        scores = scores if objective.clip is None else scores.clamp(-objective.clip, objective.clip)
        sums.add(start, scores, index, joint[start : start + len(scores)])
    return sums.table(joint, strangers)


def _blocks(critic: Critic, x: Tensor, z: Tensor, strangers: int) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """First row, scores with -inf at own pairs (r, n) and None; or scores (r, m) with the columns that they belong to."""
    n = len(x)
    if strangers == n - 1:
        rows = max(1, 1_000_000 // n)
        left, right = critic.factors(x, z) if hasattr(critic, "factors") else (x, z)
        for start in range(0, n, rows):
            part = left[start : start + rows]
            scores = part @ right.T if hasattr(critic, "factors") else score_matrix(critic, part, right)
            here = torch.arange(len(scores))
            scores[here, here + start] = -torch.inf
            yield start, scores, None
        return
    rows = max(1, 65_536 // strangers)
    shifts = torch.arange(1, strangers + 1)
    for start in range(0, n, rows):
        index = (torch.arange(start, min(start + rows, n))[:, None] + shifts) % n
        left = x[start : start + rows].repeat_interleave(strangers, 0)
        yield start, joint_scores(critic, left, z[index.flatten()]).view(index.shape), index


class _Sums:
    """Sums of e^T over rows and columns, relative to a running maximum, so that nothing overflows."""

    def __init__(self, n: int) -> None:
        self.rows = torch.empty(n, dtype=torch.float64)
        self.columns, self.contrast = torch.zeros(2, n, dtype=torch.float64)
        self.second, self.offset = 0.0, -math.inf
        self.largest = torch.empty(0, dtype=torch.float64)

    def add(self, start: int, scores: Tensor, index: Tensor | None, joint: Tensor) -> None:
        strangers = scores.shape[1] - (index is None)
        high = scores.amax(1, keepdim=True)
        powers = (scores - high).exp()
        high = high[:, 0].double()
        self.rows[start : start + len(scores)] = high + powers.sum(1).double().log() - math.log(strangers)
        offset = max(self.offset, high.max().item())
        shrink = math.exp(self.offset - offset) if self.offset > -math.inf else 0.0
        weights = (high - offset).exp()
        self.columns = shrink * self.columns + _column_sums(powers, weights, index, len(self.rows))
        self.second = shrink**2 * self.second + (weights**2 @ powers.square().sum(1).double()).item()
        own = torch.logaddexp(joint, self.rows[start : start + len(scores)] + math.log(strangers))
        self.contrast += _column_sums(powers, (high - own + math.log(strangers + 1)).exp(), index, len(self.rows))
        self.offset = offset
        least = self.largest[-1].item() if len(self.largest) == LARGEST else -math.inf
        candidates = scores[high > least].flatten()
        together = torch.cat([self.largest, candidates[candidates > least].double()])
        self.largest = together.topk(min(LARGEST, len(together))).values

    def table(self, joint: Tensor, strangers: int) -> PairTable:
        n, count = len(joint), math.log(len(joint) * strangers)
        log_columns = self.columns.log() + self.offset - math.log(strangers)
        return PairTable(
            joint=joint,
            rows=self.rows,
            columns=log_columns,
            contrast=self.contrast / (strangers + 1)
            + (joint - _own(joint, self.rows, strangers)).exp() / (strangers + 1),
            log_partition=(self.rows.logsumexp(0) - math.log(n)).item(),
            log_second=2 * self.offset + math.log(self.second) - count if self.second > 0 else -math.inf,
            largest=self.largest[self.largest > -math.inf],
            strangers=strangers,
        )


def _own(joint: Tensor, rows: Tensor, strangers: int) -> Tensor:
    return torch.logaddexp(joint, rows + math.log(strangers)) - math.log(strangers + 1)


def _column_sums(powers: Tensor, weights: Tensor, index: Tensor | None, n: int) -> Tensor:
    if index is None:
        return (weights.to(powers) @ powers).double()
    weighted = (weights.to(powers)[:, None] * powers).double()
    return torch.zeros(n, dtype=torch.float64).index_add_(0, index.flatten(), weighted.flatten())
