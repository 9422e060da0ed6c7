"""Functions {-1, 1}^n -> {-1, 1}, several at a time, and families of them: the P_F of cross-predictability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Generator, Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.errors import InputError
from tangentlab.limits.cube import check_dimension, codes_of, input_chunks, require_enumerable, require_signs

Number = float | Fraction


@dataclass(frozen=True)
class Functions:
    """`count` functions of n signs.

    Attributes:
        n: number of coordinates.
        count: number of functions.
        rule: values at inputs, `(m, n) -> (count, m)`, of -1 and 1.
    """

    n: int
    count: int
    rule: Callable[[Tensor], Tensor]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Values `(count, m)`, int8, checked to be -1 or 1."""
        if inputs.ndim != 2 or inputs.shape[1] != self.n:
            raise InputError(f"Inputs are (m, {self.n}), got shape {tuple(inputs.shape)}.")
        values = self.rule(inputs)
        if values.shape != (self.count, len(inputs)):
            raise InputError(
                f"{self.count} functions of {len(inputs)} inputs have values {(self.count, len(inputs))}, not "
                f"{tuple(values.shape)}."
            )
        return require_signs(values, "A function").to(torch.int8)

    def labels(self, inputs: Tensor) -> Tensor:
        """Values `(m,)` of a single function, float32."""
        if self.count != 1:
            raise InputError(f"Labels are those of one function; here are {self.count}: draw one with sample(1).")
        return self(inputs)[0].float()

    def table(self) -> Tensor:
        """Values at all inputs in order, `(count, 2^n)` int8."""
        require_enumerable(self.n, 2 * self.count, f"The table of {self.count} functions")
        return torch.cat([self(chunk) for chunk in input_chunks(self.n)], 1)


class Family(ABC):
    """A distribution over functions of n signs.

    A family must be sampled; the rest is what may be known of it exactly, and None or an error where it is not. The three
    exact facts are about uniform inputs.
    """

    n: int

    @abstractmethod
    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Independent draws."""

    def size(self) -> int | None:
        """The number of functions that `members` lists; None where there are too many or infinitely many."""
        return None

    def members(self) -> tuple[Functions, Tensor]:
        """All functions of the family and their probabilities, `(count,)` float64."""
        raise InputError(f"{self!r} cannot be listed: sample from it.")

    def kernel_by_distance(self) -> Sequence[Number] | None:
        """`K(x, x') = E_F F(x) F(x')` at Hamming distance 0 to n, where it depends on nothing else."""
        return None

    def mean_by_weight(self) -> Sequence[Number] | None:
        """`E_F F(x)` for x with 0 to n coordinates at -1, where it depends on nothing else."""
        return None

    def exact_predictability(self) -> Number | None:
        """`E (E_X F(X) F'(X))^2` over two independent draws, where it has a closed form of its own."""
        return None


class TableFamily(Family):
    """Given functions: values at all inputs `(count, 2^n)`, with equal or given probabilities `(count,)`."""

    def __init__(self, tables: Tensor, probabilities: Tensor | None = None) -> None:
        if tables.ndim != 2 or tables.shape[1] < 2 or tables.shape[1].bit_count() != 1 or not len(tables):
            raise InputError(f"Tables are (functions, 2^n), got shape {tuple(tables.shape)}.")
        require_signs(tables, "The table")
        count = len(tables)
        self.n, self.tables = tables.shape[1].bit_length() - 1, tables.to(torch.int8)
        self.weights = (
            torch.full((count,), 1 / count, dtype=torch.float64) if probabilities is None else probabilities.double()
        )
        if self.weights.shape != (count,) or not bool((self.weights >= 0).all()):
            raise InputError(f"There is one probability, not negative, for each of the {count} functions.")
        if abs(float(self.weights.sum()) - 1) > 1e-5:
            raise InputError(f"Probabilities add up to 1, not {float(self.weights.sum())}.")
        self.weights = self.weights / self.weights.sum()

    def __repr__(self) -> str:
        return f"TableFamily({len(self.tables)} functions of {self.n} signs)"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """Draws by the probabilities."""
        return self._chosen(torch.multinomial(self.weights, count, replacement=True, generator=generator))

    def size(self) -> int:
        """Number of tables."""
        return len(self.tables)

    def members(self) -> tuple[Functions, Tensor]:
        """The tables themselves."""
        return self._chosen(torch.arange(len(self.tables))), self.weights

    def _chosen(self, which: Tensor) -> Functions:
        return Functions(self.n, len(which), lambda x: self.tables[which][:, codes_of(x)])


class CallableFamily(Family):
    """A family of one's own: `draw(generator)` returns one function `(m, n) -> (m,)` of -1 and 1."""

    def __init__(self, n: int, draw: Callable[[Generator | None], Callable[[Tensor], Tensor]]) -> None:
        check_dimension(n)
        self.n, self._draw = n, draw

    def __repr__(self) -> str:
        return f"CallableFamily(n={self.n})"

    def sample(self, count: int, generator: Generator | None = None) -> Functions:
        """One call of `draw` for each."""
        drawn = [self._draw(generator) for _ in range(count)]
        return Functions(self.n, count, lambda x: torch.stack([function(x) for function in drawn]))


def listed(functions: Functions) -> tuple[Functions, Tensor]:
    """Functions with equal probabilities."""
    return functions, torch.full((functions.count,), 1 / functions.count, dtype=torch.float64)


def require_listing(size: int, n: int, what: str) -> None:
    """Refuse to list functions whose parameters would not fit."""
    require_memory(8 * size * n, f"The list of the {size} functions of {what}", "Sample from the family instead.")
