"""Statistical queries: learning from answers about averages, which an adversary may move by a tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.limits.population import Population

Answers = Literal["honest", "noise", "adversarial"]
Query = Callable[[Tensor, Tensor], Tensor]
"""(inputs (m, n), labels (m,)) -> values (m,) or (m, k) in [-1, 1]."""


class QueryOracle:
    """STAT(tau): answers `E phi(X, F(X))` for any phi in [-1, 1], up to a tolerance.

    Args:
        population: inputs and their probabilities.
        labels: F at the inputs of the population, `(m,)`.
        tolerance: tau.
        answers: `"honest"`: the mean itself; `"noise"`: moved uniformly within the tolerance; `"adversarial"`: the
            answer that junk labels would give wherever the tolerance allows it, else as close to that as allowed.
        generator: source of the noise.

    Attributes:
        asked: number of queries so far.
        revealing: number of queries whose adversarial answer was not that of junk: what was learnt.
    """

    def __init__(
        self,
        population: Population,
        labels: Tensor,
        tolerance: float,
        answers: Answers = "adversarial",
        generator: Generator | None = None,
    ) -> None:
        if not tolerance >= 0:
            raise InputError(f"A tolerance is not negative, not {tolerance}.")
        if answers not in ("honest", "noise", "adversarial"):
            raise InputError(f"Answers are honest, noise or adversarial, not {answers!r}.")
        self.population, self.labels, self.tolerance, self.answers = population, labels, tolerance, answers
        self.generator = generator
        self.asked = self.revealing = 0

    def __call__(self, query: Query) -> Tensor:
        """The answer to one query, or to k of them asked at once: a scalar, or `(k,)`."""
        x, w = self.population.inputs, self.population.weights
        up, down = self._values(query, x, torch.ones_like(w)), self._values(query, x, -torch.ones_like(w))
        positive = (self.labels > 0).view(-1, *([1] * (up.ndim - 1)))
        truth = torch.tensordot(w.double(), torch.where(positive, up, down), 1)
        return self.answer(truth, torch.tensordot(w.double(), (up + down) / 2, 1))

    def answer(self, truth: Tensor, junk: Tensor) -> Tensor:
        """What is told instead of the means `truth`, given those on junk labels."""
        self.asked += truth.numel()
        if self.answers == "honest":
            return truth
        if self.answers == "noise":
            return truth + self.tolerance * (2 * torch.rand(truth.shape, generator=self.generator).to(truth) - 1)
        self.revealing += int(((truth - junk).abs() > self.tolerance).sum())
        return junk.clamp(truth - self.tolerance, truth + self.tolerance)

    @staticmethod
    def _values(query: Query, x: Tensor, y: Tensor) -> Tensor:
        values = query(x, y).double()
        if not bool((values.abs() <= 1 + 1e-9).all()):
            raise InputError(
                f"A query has values in [-1, 1]; this one has {float(values.abs().max()):.4g}: scale it down."
            )
        return values


def query_bound(queries: int, tolerance: float, largest: float, baseline: float = 0.5) -> float:
    """The largest accuracy after q adversarial queries: `baseline + q lambda_max / tau^2`, at most 1.

    A query separates F from junk by `E_X g(X) F(X)`, whose square has mean at most `lambda_max E g^2` over F; so at
    most a share `lambda_max / tau^2` of the functions is told apart by each (Chebyshev), and on the others the learner
    has seen junk answers.

    Args:
        queries: q.
        tolerance: tau.
        largest: lambda_max of the label kernel, or an upper bound such as sqrt(CP): `CrossPredictability.largest`.
        baseline: accuracy without data.
    """
    if queries < 0 or not tolerance > 0 or not 0 <= largest <= 1:
        raise InputError("A query bound needs a number of queries, a positive tolerance and an eigenvalue in [0, 1].")
    return min(1.0, baseline + queries * largest / tolerance**2)


def queries_needed(accuracy: float, tolerance: float, largest: float, baseline: float = 0.5) -> float:
    """Fewest queries with which `query_bound` allows an accuracy: `(accuracy - baseline) tau^2 / lambda_max`."""
    return max(0.0, accuracy - baseline) * tolerance**2 / largest if largest > 0 else math.inf


def sq_dimension(correlations: Tensor) -> int:
    """A lower estimate of the SQ dimension: the largest d found with d functions whose pairwise |correlation| is <= 1/d.

    Greedy, for every threshold: functions are taken in order while they are uncorrelated enough with those taken before.

    Args:
        correlations: `E_X F_a(X) F_b(X)`, `(count, count)`, from `correlations`.

    Cost: `count^2` for each of up to `log2(count) + 1` thresholds, and a few more around the best.
    """
    if correlations.ndim != 2 or correlations.shape[0] != correlations.shape[1] or not len(correlations):
        raise InputError(f"Correlations are a square matrix, got shape {tuple(correlations.shape)}.")
    off = correlations.abs().clone()
    off.fill_diagonal_(0)
    order = off.sum(1).argsort()
    off = off[order][:, order]
    best, low, high = 1, 2, len(off)
    while low <= high:
        middle = (low + high) // 2
        found = _uncorrelated(off, 1 / middle, middle)
        if found >= middle:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def _uncorrelated(correlation: Tensor, limit: float, enough: int) -> int:
    """How many functions, up to `enough`, a greedy choice finds with pairwise correlations within the limit."""
    free = torch.ones(len(correlation), dtype=torch.bool)
    taken = 0
    for k in range(len(correlation)):
        if free[k]:
            taken += 1
            if taken >= enough:
                break
            free &= correlation[k] <= limit + 1e-12
    return taken
