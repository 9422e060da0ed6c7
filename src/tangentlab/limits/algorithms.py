"""Learning algorithms, each twice: as a circuit over stored samples, and as plain code that says what it must compute.

A learner gets T samples `(x, y)` and a current input, and answers with a sign. Its circuit is built from the signals of
the stored signs; its code is the truth that tests and the simpler emulations use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.limits.circuits import Circuit, Signal

Sample = tuple[Sequence[Signal], Signal]


class Algorithm(ABC):
    """A learner from T stored samples."""

    @abstractmethod
    def build(self, circuit: Circuit, samples: Sequence[Sample], inputs: Sequence[Signal]) -> Signal:
        """The signal of the prediction at `inputs`."""

    @abstractmethod
    def predict(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """Predictions `(m,)` at inputs `(m, n)` after the samples `(T, n)`, `(T,)`; all of -1 and 1."""


class Elimination(Algorithm):
    """Parities by Gaussian elimination over GF(2), sample by sample.

    Row j of the basis begins at coordinate j. A new row v is reduced: where its digit j is 1 it is added to row j of the
    basis, or becomes that row if there is none, which leaves v = 0. A prediction is the last digit of (x, 0) after reduction.
    Circuit: three gates for each (sample, j, k > j), about `1.5 T n^2` of them.
    """

    def build(self, circuit: Circuit, samples: Sequence[Sample], inputs: Sequence[Signal]) -> Signal:
        """Digits are true where a sign is -1."""
        n = len(inputs)
        basis: list[dict[int, Signal]] = [{} for _ in range(n)]
        for x, y in samples:
            row = [*(~sign for sign in x), ~y]
            for j, own in enumerate(basis):
                lead = row[j]
                take = lead & ~own[j] if own else lead
                new = {j: own[j] | lead if own else lead}
                for k in range(j + 1, n + 1):
                    stored = circuit.gate([own[k], row[k], take], (2, 1, 1), 1) if own else row[k] & take
                    row[k] = _add_product(circuit, row[k], lead, stored)
                    new[k] = stored
                basis[j] = new
        row = [~sign for sign in inputs]
        answer: Signal | None = None
        for j, own in enumerate(basis):
            for k in range(j + 1, n):
                row[k] = _add_product(circuit, row[k], row[j], own[k])
            answer = row[j] & own[n] if answer is None else _add_product(circuit, answer, row[j], own[n])
        assert answer is not None
        return ~answer

    def predict(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """The same elimination on Boolean rows."""
        n = x.shape[1]
        basis = torch.zeros(n, n + 1, dtype=torch.bool)
        for row in torch.cat([x, y[:, None]], 1) < 0:
            for j in range(n):
                if row[j] and not basis[j, j]:
                    basis[j] = row
                if row[j]:
                    row = row ^ basis[j]
        rows = torch.cat([inputs < 0, torch.zeros(len(inputs), 1, dtype=torch.bool)], 1)
        for j in range(n):
            rows = rows ^ (rows[:, j : j + 1] & basis[j])
        return 1 - 2 * rows[:, n].float()


def _add_product(circuit: Circuit, value: Signal, a: Signal, b: Signal) -> Signal:
    """`value XOR (a AND b)` in two gates."""
    every = circuit.gate([value, a, b], (1, 1, 1), -2)
    return circuit.gate([value, a, b, every], (2, 1, 1, -3), -2)


class SparseParity(Algorithm):
    """The first set of k coordinates whose parity fits all samples; about `T C(n, k)` gates. 1 where none fits."""

    def __init__(self, k: int) -> None:
        if k < 1:
            raise InputError(f"The degree of a sparse parity is at least 1, not {k}.")
        self.k = k

    def build(self, circuit: Circuit, samples: Sequence[Sample], inputs: Sequence[Signal]) -> Signal:
        """All sets at once; a chain picks the first."""
        votes, found = [], None
        for chosen in combinations(range(len(inputs)), self.k):
            agree = [~circuit.xor([_parity(circuit, x, chosen), y]) for x, y in samples]
            fits = circuit.all(agree)
            first = fits if found is None else fits & ~found
            found = fits if found is None else found | fits
            votes.append(first & ~_parity(circuit, inputs, chosen))
        return ~circuit.any(votes)

    def predict(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """A loop over sets."""
        for chosen in combinations(range(x.shape[1]), self.k):
            if torch.equal(x[:, chosen].prod(1), y.to(x.dtype)):
                return inputs[:, chosen].prod(1).float()
        return torch.ones(len(inputs))


def _parity(circuit: Circuit, signs: Sequence[Signal], chosen: Sequence[int]) -> Signal:
    """The product of signs, as the negated XOR of those that are -1."""
    return ~circuit.xor([~signs[i] for i in chosen])


class DecisionList(Algorithm):
    """Rivest's greedy learner of 1-decision lists, in n rounds.

    In each round all literals are taken under which the samples that are left have one label, and those samples go. The
    current input gets the label of the first round in which it satisfies one (1 before -1), and 1 if there is none.
    """

    def build(self, circuit: Circuit, samples: Sequence[Sample], inputs: Sequence[Signal]) -> Signal:
        """Rounds of pure literals."""
        left = [circuit.true for _ in samples]
        undecided, votes = circuit.true, []
        for _ in range(len(inputs)):
            hits: list[list[Signal]] = [[], []]
            gone: list[list[Signal]] = [[] for _ in samples]
            for i in range(2 * len(inputs)):
                place, flip = i // 2, i % 2
                holds = [_flipped(x[place], flip) & here for (x, _), here in zip(samples, left, strict=True)]
                seen = [circuit.any([h & _flipped(y, side) for h, (_, y) in zip(holds, samples, strict=True)])
                        for side in (0, 1)]  # fmt: skip
                for side in (0, 1):
                    pure = seen[side] & ~seen[1 - side]
                    hits[side].append(pure & _flipped(inputs[place], flip))
                    for t, hold in enumerate(holds):
                        gone[t].append(pure & hold)
            left = [here & ~circuit.any(by) for here, by in zip(left, gone, strict=True)]
            plus, minus = circuit.any(hits[0]), circuit.any(hits[1])
            votes.append(undecided & (minus & ~plus))
            undecided = undecided & ~(plus | minus)
        return ~circuit.any(votes)

    def predict(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """The same rounds over sets of samples."""
        literals = torch.cat([torch.stack([x > 0, x < 0], 2)]).flatten(1)
        current = torch.stack([inputs > 0, inputs < 0], 2).flatten(1)
        left = torch.ones(len(x), dtype=torch.bool)
        answer = torch.zeros(len(inputs))
        for _ in range(x.shape[1]):
            plus = (literals & (left & (y > 0))[:, None]).any(0)
            minus = (literals & (left & (y < 0))[:, None]).any(0)
            up, down = plus & ~minus, minus & ~plus
            hit_up, hit_down = (current & up).any(1), (current & down).any(1)
            answer = torch.where((answer == 0) & hit_up, 1.0, answer)
            answer = torch.where((answer == 0) & hit_down, -1.0, answer)
            left = left & ~(literals & (up | down)).any(1)
        return torch.where(answer == 0, 1.0, answer)


def _flipped(signal: Signal, flip: int) -> Signal:
    return ~signal if flip else signal


class Perceptron(Algorithm):
    """One pass of the perceptron from w = 0 in its dual form: `w = sum of y x` over the samples that were mistakes.

    A sample is a mistake where `y <w, x> <= 0`; the answer is 1 where `<w, x> > 0`. About `2 T^2 n` gates.
    """

    def build(self, circuit: Circuit, samples: Sequence[Sample], inputs: Sequence[Signal]) -> Signal:
        """A mistake sends its n signs into every later sum, or none: as two gates that cancel."""
        mistakes: list[Signal] = []

        def total(current: Sequence[Signal], upto: int) -> list[tuple[Signal, int]]:
            parts = []
            for (x, y), wrong in zip(samples[:upto], mistakes, strict=False):
                for theirs, mine in zip(x, current, strict=True):
                    agree = circuit.xor([y, theirs, mine])
                    parts += [(wrong & agree, 1), (wrong & ~agree, -1)]
            return parts

        for t, (x, y) in enumerate(samples):
            above, below = _signs(circuit, total(x, t))
            mistakes.append(~((above & y) | (below & ~y)))
        return _signs(circuit, total(inputs, len(samples)))[0]

    def predict(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """One pass."""
        weights = torch.zeros(x.shape[1])
        for sample, label in zip(x.float(), y.float(), strict=True):
            if float(label * (weights @ sample)) <= 0:
                weights = weights + label * sample
        return torch.where(inputs.float() @ weights > 0, 1.0, -1.0)


def _signs(circuit: Circuit, parts: Sequence[tuple[Signal, int]]) -> tuple[Signal, Signal]:
    """Whether half of a sum of pairs of signs is positive, and whether it is negative."""
    if not parts:
        return ~circuit.true, ~circuit.true
    signals, weights = [p for p, _ in parts], [w for _, w in parts]
    return circuit.gate(signals, weights, -1), circuit.gate(signals, [-w for w in weights], -1)
