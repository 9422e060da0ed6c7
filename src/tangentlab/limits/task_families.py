"""Families from tasks: random formulas and decision trees, communities in graphs, and addition with a secret number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.limits.cube import check_dimension, codes_of, inputs_of
from tangentlab.limits.families import LARGEST_LISTING, random_subsets, untouched
from tangentlab.limits.functions import Family, Functions, Number, listed


class DNFs(Family):
    """An OR of random terms, each an AND of `width` literals on different coordinates; 1 where a term is true.

    With q = 2^-width, terms are independent, so `P(F(x) = -1) = (1 - q)^terms` at every input, and both inputs of a pair
    at distance d miss every term with probability `(1 - 2 q + q C(n - d, width) / C(n, width))^terms`.
    """

    def __init__(self, n: int, terms: int, width: int) -> None:
        check_dimension(n)
        if terms < 1 or not 1 <= width <= n:
            raise InputError(f"A DNF has at least one term of 1 to {n} literals, not {terms} terms of {width}.")
        self.n, self.terms, self.width = n, terms, width

    def __repr__(self) -> str:
        return f"DNFs({self.n}, terms={self.terms}, width={self.width})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform literals."""
        places = random_subsets(count * self.terms, self.n, self.width, generator)
        signs = 1 - 2 * torch.randint(2, places.shape, generator=generator).float()
        literals = torch.zeros(count * self.terms, self.n).scatter(1, places, signs)

        def rule(x: Tensor) -> Tensor:
            true = literals @ x.float().t() > self.width - 1
            return torch.where(true.view(count, self.terms, -1).any(1), 1, -1)

        return Functions(self.n, count, rule)

    def kernel_by_distance(self) -> Sequence[Number]:
        """`1 - 4 P(x misses) + 4 P(both miss)`."""
        q = Fraction(1, 1 << self.width)
        one = (1 - q) ** self.terms
        return [1 - 4 * one + 4 * (1 - 2 * q + q * both) ** self.terms for both in untouched(self.n, self.width)]

    def mean_by_weight(self) -> Sequence[Number]:
        """The same at every input, and not 0."""
        return [1 - 2 * (1 - Fraction(1, 1 << self.width)) ** self.terms] * (self.n + 1)


class DecisionTrees(Family):
    """Complete trees that ask for `depth` different coordinates on every path, at random, with random signs in the leaves.

    Two inputs share a leaf when they agree on all that is asked: K is that of `Juntas` with k = depth.
    """

    def __init__(self, n: int, depth: int) -> None:
        check_dimension(n)
        if not 1 <= depth <= n:
            raise InputError(f"A decision tree over {n} coordinates has depth 1 to {n}, not {depth}.")
        self.n, self.depth = n, depth

    def __repr__(self) -> str:
        return f"DecisionTrees({self.n}, depth={self.depth})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Node v has the children 2 v + 1 and 2 v + 2."""
        inner = (1 << self.depth) - 1
        asked = torch.zeros(count, inner, dtype=torch.int64)
        free = torch.ones(count, inner, self.n)
        for node in range(inner):
            if node:
                parent = (node - 1) // 2
                free[:, node] = free[:, parent].scatter(1, asked[:, parent, None], 0.0)
            asked[:, node] = torch.multinomial(free[:, node], 1, generator=generator)[:, 0]
        leaves = 1 - 2 * torch.randint(2, (count, inner + 1), generator=generator)

        def rule(x: Tensor) -> Tensor:
            bits = (x < 0).long().t()
            node = torch.zeros(count, len(x), dtype=torch.int64)
            for _ in range(self.depth):
                node = 2 * node + 1 + bits.gather(0, asked.gather(1, node))
            return leaves.gather(1, node - inner)

        return Functions(self.n, count, rule)

    def kernel_by_distance(self) -> Sequence[Number]:
        """The probability of a common leaf."""
        return untouched(self.n, self.depth)

    def mean_by_weight(self) -> Sequence[Number]:
        """0."""
        return [Fraction(0)] * (self.n + 1)


class Communities(Family):
    """Does a graph follow a hidden split? `sign(sum_{i < j} s_i s_j x_ij)` for uniform signs s of the vertices.

    An input is a graph: x_ij = 1 where there is an edge, -1 where there is none, `n = v (v - 1) / 2` of them. The function
    asks whether most pairs agree with the split s: an edge inside a community, none between communities. n must be odd, so
    that there are no ties: v = 3, 6, 7, 10, 11, 14, ...
    """

    def __init__(self, vertices: int) -> None:
        n = vertices * (vertices - 1) // 2
        if vertices < 3 or n % 2 == 0:
            raise InputError(
                f"Communities need an odd number of pairs, so that there are no ties: 3, 6, 7, 10, 11, ... "
                f"vertices, not {vertices}."
            )
        self.vertices, self.n = vertices, n

    def __repr__(self) -> str:
        return f"Communities({self.vertices})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform splits."""
        return self._splits(1 - 2 * torch.randint(2, (count, self.vertices), generator=generator).float())

    def size(self) -> int | None:
        """2^(v - 1): a split and its mirror image are one."""
        size = 1 << (self.vertices - 1)
        return size if size <= LARGEST_LISTING else None

    def members(self) -> tuple[Functions, Tensor]:
        """All splits, with the last vertex on the side of 1."""
        if (size := self.size()) is None:
            return super().members()
        return listed(self._splits(inputs_of(torch.arange(size), self.vertices)))

    def exact_predictability(self) -> Number:
        """By the number k of vertices in which two splits differ: they differ in k (v - k) pairs."""
        v = self.vertices
        squares = (math.comb(v, k) * _agreement(self.n - k * (v - k), k * (v - k)) ** 2 for k in range(v + 1))
        return sum(squares, Fraction(0)) / (1 << v)

    def _splits(self, signs: Tensor) -> Functions:
        first, second = torch.triu_indices(self.vertices, self.vertices, 1)
        pairs = signs[:, first] * signs[:, second]
        return Functions(self.n, len(signs), lambda x: torch.where(pairs @ x.float().t() > 0, 1, -1))


def _agreement(same: int, other: int) -> Fraction:
    """`E sign(A + D) sign(A - D) = P(|A| > |D|) - P(|A| < |D|)` for sums of `same` and `other` fair signs."""
    total = sum(
        math.comb(same, a) * math.comb(other, d) * (1 if abs(same - 2 * a) > abs(other - 2 * d) else -1)
        for a in range(same + 1)
        for d in range(other + 1)
    )
    return Fraction(total, 1 << (same + other))


class Additions(Family):
    """A digit of `x + s`: the input is a number of n binary digits, s a secret one, j a secret place, both uniform.

    `F(x) = 1 - 2 (digit j of x + s)`, with digit i of x true where x_i = -1, the lowest first. Digits at different
    places are uncorrelated; those at one place are square waves of period M = 2^(j + 1), correlated by `1 - 4 u / M` for
    secrets that are u <= M/2 apart.
    """

    def __init__(self, n: int) -> None:
        check_dimension(n)
        if n > 62:
            raise InputError(f"Numbers have at most 62 binary digits here, not {n}.")
        self.n = n

    def __repr__(self) -> str:
        return f"Additions({self.n})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform secrets and places."""
        secrets = torch.randint(1 << self.n, (count,), generator=generator)
        return self._digits(secrets, torch.randint(self.n, (count,), generator=generator))

    def size(self) -> int | None:
        """n 2^n."""
        size = self.n << self.n
        return size if size <= LARGEST_LISTING else None

    def members(self) -> tuple[Functions, Tensor]:
        """All secrets at all places."""
        if self.size() is None:
            return super().members()
        secrets, places = torch.meshgrid(torch.arange(1 << self.n), torch.arange(self.n), indexing="ij")
        return listed(self._digits(secrets.flatten(), places.flatten()))

    def mean_by_weight(self) -> Sequence[Number]:
        """0: every digit of the sum is a fair coin over s."""
        return [Fraction(0)] * (self.n + 1)

    def exact_predictability(self) -> Number:
        """The mean square at place j is `1/3 + 8 / (3 M^2)`, and the places agree with probability 1 / n."""
        squares = (Fraction(1, 3) + Fraction(8, 3 * 4 ** (j + 1)) for j in range(self.n))
        return sum(squares, Fraction(0)) / self.n**2

    def _digits(self, secrets: Tensor, places: Tensor) -> Functions:
        def rule(x: Tensor) -> Tensor:
            return 1 - 2 * ((codes_of(x) + secrets[:, None]) >> places[:, None] & 1)

        return Functions(self.n, len(secrets), rule)
