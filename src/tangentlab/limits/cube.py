"""Inputs on the cube {-1, 1}^n: all of them in order, and distributions over them.

Input number k has `x_i = 1 - 2 b_i` with `b_i` the i-th binary digit of k, the lowest first: number 0 is all ones, and
the true bits of a Boolean function are the coordinates at -1, so that a parity of bits is a product of coordinates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError

LARGEST_CUBE = 30
"""Largest n whose 2^n inputs are ever enumerated; memory may refuse earlier."""
CHUNK = 1 << 16
"""Inputs that are looked at together where all of them are visited."""


def require_enumerable(n: int, bytes_per_input: int, what: str) -> None:
    """Refuse what needs all 2^n inputs when n is too large or memory does not hold it, before any work."""
    check_dimension(n)
    instead = "Use an estimate from samples, or a smaller n."
    if n > LARGEST_CUBE:
        raise InputError(f"{what} visits all 2^{n} inputs; enumeration goes up to n = {LARGEST_CUBE}. {instead}")
    require_memory(bytes_per_input << n, f"{what} over the 2^{n} inputs", instead)


def check_dimension(n: int) -> None:
    """Refuse a number of coordinates that is not a positive integer."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"The number of coordinates n is a positive integer, not {n!r}.")


def inputs_of(codes: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The inputs with the given numbers, `(m,) -> (m, n)`."""
    return 1 - 2 * (codes[:, None] >> torch.arange(n) & 1).to(dtype)


def codes_of(inputs: Tensor) -> Tensor:
    """The numbers of inputs `(m, n) -> (m,)`; n up to 62."""
    if inputs.shape[1] > 62:
        raise InputError(f"Inputs are numbered by 64-bit integers, up to n = 62, not {inputs.shape[1]}.")
    return ((inputs < 0).long() << torch.arange(inputs.shape[1])).sum(1)


def all_inputs(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The whole cube in order, `(2^n, n)`."""
    require_enumerable(n, n * dtype.itemsize, "The table of inputs")
    return inputs_of(torch.arange(1 << n), n, dtype)


def input_chunks(n: int, size: int = CHUNK) -> Iterator[Tensor]:
    """The cube in order, in pieces of at most `size` inputs."""
    for start in range(0, 1 << n, size):
        yield inputs_of(torch.arange(start, min(start + size, 1 << n)), n)


class Inputs(ABC):
    """A distribution P_X on {-1, 1}^n."""

    n: int

    @abstractmethod
    def sample(self, count: int, generator: Generator | None = None) -> Tensor:
        """Independent draws, `(count, n)` float32."""

    def probabilities(self) -> Tensor:
        """P_X of every input in order, `(2^n,)` float64."""
        raise InputError(
            f"{type(self).__name__} has no table of probabilities: use an estimate, or give a TableInputs."
        )


class UniformInputs(Inputs):
    """Independent fair coins."""

    def __init__(self, n: int) -> None:
        check_dimension(n)
        self.n = n

    def sample(self, count: int, generator: Generator | None = None) -> Tensor:
        """`(count, n)`."""
        return 1 - 2 * torch.randint(2, (count, self.n), generator=generator).float()

    def probabilities(self) -> Tensor:
        """2^-n everywhere."""
        require_enumerable(self.n, 8, "The table of probabilities")
        return torch.full((1 << self.n,), 2.0**-self.n, dtype=torch.float64)


class ProductInputs(Inputs):
    """Independent coordinates with means `E x_i`, one for all or one for each."""

    def __init__(self, means: Any, n: int | None = None) -> None:
        values = torch.as_tensor(means, dtype=torch.float64)
        if values.ndim == 0 and n is not None:
            check_dimension(n)
            values = values.expand(n)
        if values.ndim != 1 or not len(values) or not bool((values.abs() <= 1).all()):
            raise InputError("Means are numbers in [-1, 1], one for each coordinate, or one for all together with n.")
        self.n, self.means = len(values), values.clone()

    def sample(self, count: int, generator: Generator | None = None) -> Tensor:
        """`(count, n)`."""
        uniform = torch.rand(count, self.n, generator=generator, dtype=torch.float64)
        return torch.where(uniform < (1 + self.means) / 2, 1.0, -1.0)

    def probabilities(self) -> Tensor:
        """The product over coordinates of `(1 + x_i mu_i) / 2`."""
        require_enumerable(self.n, 16, "The table of probabilities")
        table = torch.ones(1, dtype=torch.float64)
        for mean in self.means:
            table = torch.cat([table * (1 + mean) / 2, table * (1 - mean) / 2])
        return table


class TableInputs(Inputs):
    """Any distribution, by the probability of every input in order, `(2^n,)`."""

    def __init__(self, table: Tensor) -> None:
        n = round(math.log2(len(table))) if table.ndim == 1 and len(table) > 1 else 0
        if n < 1 or len(table) != 1 << n:
            raise InputError(f"A table of probabilities has 2^n entries, got shape {tuple(table.shape)}.")
        table = table.double()
        if not bool((table >= 0).all()) or not math.isclose(float(table.sum()), 1, rel_tol=1e-5):
            raise InputError(f"Probabilities are not negative and add up to 1; these add up to {float(table.sum())}.")
        self.n, self._table = n, table / table.sum()

    def sample(self, count: int, generator: Generator | None = None) -> Tensor:
        """`(count, n)`."""
        edges = self._table.cumsum(0)
        draws = torch.rand(count, generator=generator, dtype=torch.float64) * edges[-1]
        codes = torch.searchsorted(edges, draws, right=True)
        return inputs_of(codes.clamp_max(len(edges) - 1), self.n)

    def probabilities(self) -> Tensor:
        """The table."""
        return self._table


class SampledInputs(Inputs):
    """A distribution that is known through a sampler `(count, generator) -> (count, n)` alone."""

    def __init__(self, n: int, sampler: Callable[[int, Generator | None], Tensor]) -> None:
        check_dimension(n)
        self.n, self._sampler = n, sampler

    def sample(self, count: int, generator: Generator | None = None) -> Tensor:
        """`(count, n)`, checked to be on the cube."""
        found = self._sampler(count, generator)
        if found.shape != (count, self.n):
            raise InputError(f"The sampler of inputs gave shape {tuple(found.shape)} instead of {(count, self.n)}.")
        return require_signs(found, "The sampler of inputs").float()


def require_signs(values: Tensor, what: str) -> Tensor:
    """The values, refused unless all of them are -1 or 1."""
    wrong = values[(values != 1) & (values != -1)]
    if len(wrong):
        raise InputError(
            f"{what} gave {wrong[0].item():g}, and values are -1 or 1: map bits b to 1 - 2 b, or take signs."
        )
    return values


def chosen_inputs(n: int, inputs: Inputs | None) -> Inputs:
    """The distribution that was given, uniform by default, checked against n."""
    if inputs is None:
        return UniformInputs(n)
    if inputs.n != n:
        raise InputError(f"The inputs have {inputs.n} coordinates and the functions {n}.")
    return inputs
