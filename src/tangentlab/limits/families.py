"""Families whose label kernel has a closed form: parities, monomials, juntas, halfspaces and majorities.

`K(x, x') = E_F F(x) F(x')` decides what descent by gradients can learn. Where a family is symmetric under permutations and
changes of sign of the coordinates, K is a function of the Hamming distance d alone, and known for every n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.limits.cube import check_dimension, inputs_of
from tangentlab.limits.functions import Family, Functions, Number, listed, require_listing

LARGEST_LISTING = 1 << 16
"""Largest number of functions that `Family.members` lists."""


@cache
def krawtchouk(n: int, k: int, d: int) -> int:
    """`sum_j (-1)^j C(d, j) C(n - d, k - j)`: the sum of all parities of degree k at an input with d coordinates at -1."""
    return sum((-1) ** j * math.comb(d, j) * math.comb(n - d, k - j) for j in range(k + 1))


def products(masks: Tensor) -> Functions:
    """The parities `prod_{i in S} x_i` of sets S given as `(count, n)`, True inside."""
    chosen = masks.float()
    return Functions(masks.shape[1], len(masks), lambda x: 1 - 2 * torch.remainder(chosen @ (x < 0).float().t(), 2))


class Parities(Family):
    """`prod_{i in S} x_i` with S uniform over all subsets. `CP = lambda_max = 2^-n`."""

    def __init__(self, n: int) -> None:
        check_dimension(n)
        self.n = n

    def __repr__(self) -> str:
        return f"Parities({self.n})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform subsets, the empty one included."""
        return products(torch.randint(2, (count, self.n), generator=generator).bool())

    def size(self) -> int | None:
        """2^n."""
        return 1 << self.n if 1 << self.n <= LARGEST_LISTING else None

    def members(self) -> tuple[Functions, Tensor]:
        """All parities, by the number of S."""
        if self.size() is None:
            return super().members()
        return listed(products(inputs_of(torch.arange(1 << self.n), self.n) < 0))

    def kernel_by_distance(self) -> Sequence[Number]:
        """1 at distance 0, else 0."""
        return [Fraction(1)] + [Fraction(0)] * self.n

    def mean_by_weight(self) -> Sequence[Number]:
        """1 for the input of ones, else 0."""
        return self.kernel_by_distance()


class Monomials(Family):
    """`prod_{i in S} x_i` with S uniform over the sets of k elements. `CP = lambda_max = 1 / C(n, k)`."""

    def __init__(self, n: int, k: int) -> None:
        check_dimension(n)
        _check_part(k, n, "The degree k")
        self.n, self.k = n, k

    def __repr__(self) -> str:
        return f"Monomials({self.n}, {self.k})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform subsets of k elements."""
        masks = torch.zeros(count, self.n, dtype=torch.bool)
        return products(masks.scatter(1, random_subsets(count, self.n, self.k, generator), True))

    def size(self) -> int | None:
        """C(n, k)."""
        size = math.comb(self.n, self.k)
        return size if size <= LARGEST_LISTING else None

    def members(self) -> tuple[Functions, Tensor]:
        """All monomials of the degree."""
        if (size := self.size()) is None:
            return super().members()
        require_listing(size, self.n, repr(self))
        sets = torch.tensor(list(combinations(range(self.n), self.k)), dtype=torch.int64)
        return listed(products(torch.zeros(size, self.n, dtype=torch.bool).scatter(1, sets, True)))

    def kernel_by_distance(self) -> Sequence[Number]:
        """Krawtchouk polynomials over C(n, k)."""
        total = math.comb(self.n, self.k)
        return [Fraction(krawtchouk(self.n, self.k, d), total) for d in range(self.n + 1)]

    def mean_by_weight(self) -> Sequence[Number]:
        """The kernel with the input of ones."""
        return self.kernel_by_distance()


class Juntas(Family):
    """A uniformly random table of k coordinates, which are a uniform subset: `K = C(n - d, k) / C(n, k)`."""

    def __init__(self, n: int, k: int) -> None:
        check_dimension(n)
        _check_part(k, n, "The number k of coordinates")
        self.n, self.k = n, k

    def __repr__(self) -> str:
        return f"Juntas({self.n}, {self.k})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform subsets and tables."""
        places = random_subsets(count, self.n, self.k, generator)
        tables = 1 - 2 * torch.randint(2, (count, 1 << self.k), generator=generator)

        def rule(x: Tensor) -> Tensor:
            bits = (x < 0).long()
            codes = sum(bits[:, places[:, j]] << j for j in range(self.k))
            return tables.gather(1, codes.t())  # type: ignore[union-attr]

        return Functions(self.n, count, rule)

    def kernel_by_distance(self) -> Sequence[Number]:
        """The probability that no coordinate of the junta differs."""
        return untouched(self.n, self.k)

    def mean_by_weight(self) -> Sequence[Number]:
        """0."""
        return [Fraction(0)] * (self.n + 1)


class Halfspaces(Family):
    """`sign <w, x>` with standard normal weights: `K = 1 - (2 / pi) arccos(1 - 2 d / n)`."""

    def __init__(self, n: int) -> None:
        check_dimension(n)
        self.n = n

    def __repr__(self) -> str:
        return f"Halfspaces({self.n})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Normal weights, in float64."""
        weights = torch.randn(count, self.n, generator=generator, dtype=torch.float64)
        return Functions(self.n, count, lambda x: torch.where(weights @ x.double().t() >= 0, 1, -1))

    def kernel_by_distance(self) -> Sequence[Number]:
        """The angle between the inputs."""
        return [1 - 2 / math.pi * math.acos(1 - 2 * d / self.n) for d in range(self.n + 1)]

    def mean_by_weight(self) -> Sequence[Number]:
        """0: w and -w are equally likely."""
        return [Fraction(0)] * (self.n + 1)


class Majorities(Family):
    """The majority of the coordinates in a uniform subset of odd size, or of the given odd size."""

    def __init__(self, n: int, size: int | None = None) -> None:
        check_dimension(n)
        if size is not None and (size % 2 == 0 or not 1 <= size <= n):
            raise InputError(f"A majority without ties is of an odd number of coordinates up to {n}, not {size}.")
        self.n, self.subset = n, size

    def __repr__(self) -> str:
        return f"Majorities({self.n}{'' if self.subset is None else f', {self.subset}'})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Uniform subsets of the allowed sizes."""
        if self.subset is not None:
            masks = torch.zeros(count, self.n, dtype=torch.bool)
            masks = masks.scatter(1, random_subsets(count, self.n, self.subset, generator), True)
        else:
            masks = torch.randint(2, (count, self.n), generator=generator).bool()
            masks[:, -1] = masks[:, :-1].sum(1) % 2 == 0
        return _majorities(masks)

    def size(self) -> int | None:
        """2^(n - 1), or C(n, size)."""
        size = 1 << (self.n - 1) if self.subset is None else math.comb(self.n, self.subset)
        return size if size <= LARGEST_LISTING and self.n <= 20 else None

    def members(self) -> tuple[Functions, Tensor]:
        """All subsets of the allowed sizes."""
        if self.size() is None:
            return super().members()
        masks = inputs_of(torch.arange(1 << self.n), self.n) < 0
        return listed(_majorities(masks[torch.isin(masks.sum(1), torch.tensor(self._sizes()))]))

    def mean_by_weight(self) -> Sequence[Number]:
        """The mean over subsets of the majority, which sees j of the d coordinates at -1."""
        sizes = self._sizes()
        total = sum(math.comb(self.n, s) for s in sizes)
        found = []
        for d in range(self.n + 1):
            votes = sum(
                (1 if 2 * j < s else -1) * math.comb(d, j) * math.comb(self.n - d, s - j)
                for s in sizes
                for j in range(s + 1)
            )
            found.append(Fraction(votes, total))
        return found

    def exact_predictability(self) -> Number:
        """A sum over the sizes of two subsets and of their intersection."""
        sizes, n = self._sizes(), self.n
        total = Fraction(0)
        for s in sizes:
            for t in sizes:
                for i in range(max(0, s + t - n), min(s, t) + 1):
                    pairs = math.comb(n, s) * math.comb(s, i) * math.comb(n - s, t - i)
                    total += pairs * _majority_correlation(i, *sorted((s - i, t - i))) ** 2
        return total / sum(math.comb(n, s) for s in sizes) ** 2

    def _sizes(self) -> list[int]:
        return [self.subset] if self.subset is not None else list(range(1, self.n + 1, 2))


def _majorities(masks: Tensor) -> Functions:
    chosen = masks.float()
    return Functions(masks.shape[1], len(masks), lambda x: torch.where(chosen @ x.float().t() > 0, 1, -1))


@cache
def _majority_correlation(common: int, first: int, second: int) -> Fraction:
    """`E sign(I + U) sign(I + V)` for sums of so many fair signs."""
    total = Fraction(0)
    for j in range(common + 1):
        shift = common - 2 * j
        total += math.comb(common, j) * _vote(shift, first) * _vote(shift, second)
    return total / (1 << common)


@cache
def _vote(shift: int, voters: int) -> Fraction:
    """`E sign(shift + U)` with U a sum of fair signs; never a tie when the sum is odd."""
    ahead = sum(
        math.comb(voters, j) * (1 if shift + voters > 2 * j else -1 if shift + voters < 2 * j else 0)
        for j in range(voters + 1)
    )
    return Fraction(ahead, 1 << voters)


def random_subsets(count: int, n: int, k: int, generator: Generator | None) -> Tensor:
    """Uniform subsets of k places out of n, `(count, k)` int64, in random order."""
    return torch.rand(count, n, generator=generator).argsort(1)[:, :k]


def untouched(n: int, k: int) -> list[Number]:
    """The probability that k places out of n, drawn without replacement, avoid d given ones; for d = 0 to n."""
    return [Fraction(math.comb(n - d, k), math.comb(n, k)) for d in range(n + 1)]


def _check_part(k: int, n: int, what: str) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= n:
        raise InputError(f"{what} is an integer from 1 to n = {n}, not {k!r}.")
