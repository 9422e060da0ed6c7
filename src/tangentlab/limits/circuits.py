"""Boolean circuits of threshold gates, written as expressions.

    circuit = Circuit(3)
    a, b, c = circuit.inputs
    majority = circuit.threshold([a, b, c], at_least=2)
    odd = a ^ b ^ ~c

True is the sign 1, false is -1. Every gate is true where a sum of signs with whole weights and a whole bias is positive; the
sum is odd, so that it is never closer to 0 than 1. AND, OR and threshold are one gate, XOR of two or three is two, NOT is a
sign.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tangentlab.errors import InputError

if TYPE_CHECKING:
    from tangentlab.limits.wiring import Wiring


@dataclass(frozen=True)
class Signal:
    """The output of a gate or an input of a circuit, or its negation."""

    circuit: Circuit
    node: int
    sign: int = 1

    def __invert__(self) -> Signal:
        return Signal(self.circuit, self.node, -self.sign)

    def __and__(self, other: Signal) -> Signal:
        return self.circuit.gate([self, other], (1, 1), -1)

    def __or__(self, other: Signal) -> Signal:
        return self.circuit.gate([self, other], (1, 1), 1)

    def __xor__(self, other: Signal) -> Signal:
        both = self & other
        return self.circuit.gate([self, other, both], (1, 1, -2), -1)

    def __bool__(self) -> bool:
        raise InputError("A signal has no value before its circuit runs: use &, |, ^ and ~ instead of and, or, not.")


class Circuit:
    """A circuit under construction: gates are added, never changed, so that it has no cycles.

    Node 0 is the constant 1 and nodes 1 to n are the inputs: the n + 1 roots of a network. A unit computes
    `a(sum_e w_e source_e)` with `a(z) = (s(z - o) + s(z + o)) / 2` and `s(z) = clip(2 z, -1, 1)`: a gate has the offset
    o = 0 and is flat for |z| >= 1/2; a staircase has o = 1, and a third plateau of height 0 for |z| <= 1/2.

    Args:
        n: number of inputs.
    """

    def __init__(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"A circuit has a positive number of inputs, not {n!r}.")
        self.n = n
        self._sources, self._weights = array("q"), array("d")
        self._ends, self._offsets, self._levels = array("q"), array("d"), array("q", [0] * (n + 1))
        self._whole = True

    @property
    def true(self) -> Signal:
        """The constant."""
        return Signal(self, 0)

    @cached_property
    def inputs(self) -> tuple[Signal, ...]:
        """The n inputs."""
        return tuple(Signal(self, node) for node in range(1, self.n + 1))

    @property
    def gates(self) -> int:
        """Number of units."""
        return len(self._ends)

    @property
    def edges(self) -> int:
        """Number of weighted edges, those from the constant included."""
        return len(self._sources)

    @property
    def depth(self) -> int:
        """Number of levels of units."""
        return max(self._levels)

    def __repr__(self) -> str:
        return f"Circuit({self.n} inputs, {self.gates} gates, {self.edges} edges, {self.depth} levels)"

    def unit(self, signals: Sequence[Signal], weights: Sequence[float], bias: float = 0, offset: float = 0) -> Signal:
        """Any unit, with the weights as they are; `gate` for one that is Boolean."""
        self._whole = False
        return self._unit(signals, weights, bias, offset)

    def _unit(self, signals: Sequence[Signal], weights: Sequence[float], bias: float, offset: float = 0) -> Signal:
        level = -1
        for signal, weight in zip(signals, weights, strict=True):
            if signal.circuit is not self:
                raise InputError("A signal of another circuit cannot be an input: embed that circuit first.")
            self._sources.append(signal.node)
            self._weights.append(weight * signal.sign)
            level = max(level, self._levels[signal.node])
        if bias:
            self._sources.append(0)
            self._weights.append(bias)
            level = max(level, 0)
        self._ends.append(len(self._sources))
        self._offsets.append(offset)
        self._levels.append(level + 1)
        return Signal(self, len(self._levels) - 1)

    def gate(self, signals: Sequence[Signal], weights: Sequence[int], bias: int) -> Signal:
        """True where `sum_i w_i signal_i + bias > 0`; weights and bias are whole and their sum is odd."""
        total = sum(weights) + bias
        if total % 2 != 1:
            raise InputError(
                "The weights and the bias of a gate are whole numbers with an odd sum, so that it has no ties."
            )
        return self._unit(signals, weights, bias)

    def threshold(self, signals: Sequence[Signal], at_least: int, weights: Sequence[int] | None = None) -> Signal:
        """True where the weights (1 each by default) of the true signals add up to `at_least` or more."""
        chosen = [1] * len(signals) if weights is None else list(weights)
        return self.gate(signals, chosen, sum(chosen) - 2 * at_least + 1)

    def all(self, signals: Sequence[Signal]) -> Signal:
        """AND of any number."""
        return self.threshold(signals, len(signals))

    def any(self, signals: Sequence[Signal]) -> Signal:
        """OR of any number."""
        return self.threshold(signals, 1)

    def xor(self, signals: Sequence[Signal]) -> Signal:
        """True where an odd number of signals is: two gates for every two of them, as in a full adder."""
        first, *rest = signals
        while len(rest) > 1:
            triple = [first, rest.pop(), rest.pop()]
            most = self.gate(triple, (1, 1, 1), 0)
            first = self.gate([*triple, most], (1, 1, 1, -2), 0)
        return first ^ rest[0] if rest else first

    def embed(self, other: Circuit, inputs: Sequence[Signal], output: Signal) -> Signal:
        """A copy of another circuit inside this one, with these signals as its inputs; its output here."""
        if len(inputs) != other.n:
            raise InputError(f"The circuit has {other.n} inputs, and {len(inputs)} signals were given.")
        if output.circuit is not other:
            raise InputError("The output is a signal of the circuit that is embedded.")
        here: list[Signal] = [self.true, *inputs]
        self._whole &= other._whole
        start = 0
        for end, offset in zip(other._ends, other._offsets, strict=True):
            sources = [here[node] for node in other._sources[start:end]]
            here.append(self._unit(sources, other._weights[start:end], 0, offset))
            start = end
        found = here[output.node]
        return found if output.sign > 0 else ~found

    def wiring(self, outputs: Sequence[tuple[Sequence[Signal], Sequence[float]]]) -> Wiring:
        """Nodes by levels, with linear output nodes; for `PlateauNetwork`."""
        from tangentlab.limits.wiring import Wiring

        ends = np.array(self._ends, dtype=np.int64)
        fan_in = np.diff(ends, prepend=0)
        extra = [([s.node for s in signals], [w * s.sign for s, w in zip(signals, weights, strict=True)])
                 for signals, weights in outputs]  # fmt: skip
        return Wiring.of(
            self.n,
            np.array(self._levels, dtype=np.int64),
            fan_in,
            np.array(self._sources, dtype=np.int64),
            np.array(self._weights, dtype=np.float64),
            np.array(self._offsets, dtype=np.float64),
            extra,
        )

    def values(self, bits: Tensor, outputs: Sequence[Signal]) -> Tensor:
        """What the outputs are at Boolean inputs `(m, n)`, `(m, outputs)` bool: gate by gate in whole numbers.

        The truth that compiled networks are compared with; for large circuits the network is faster.
        """
        if not self._whole:
            raise InputError("This circuit has units that are no Boolean gates: run its network.")
        if bits.ndim != 2 or bits.shape[1] != self.n or bits.dtype != torch.bool:
            raise InputError(f"Inputs of a circuit are Boolean, (m, {self.n}), got {bits.dtype} {tuple(bits.shape)}.")
        found = [np.ones(len(bits), dtype=np.int64), *(2 * bits.numpy().T.astype(np.int64) - 1)]
        sources, weights, start = self._sources, self._weights, 0
        for end in self._ends:
            total = sum(int(w) * found[node] for node, w in zip(sources[start:end], weights[start:end], strict=True))
            found.append(np.sign(total))
            start = end
        return torch.from_numpy(np.stack([signal.sign * found[signal.node] > 0 for signal in outputs], 1))
