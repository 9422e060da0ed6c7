"""A network that plain SGD turns into a learner: stochastic gradient descent as a computer.

With the loss `(f - y)^2 / 2` and `f = 0` a step of rate gamma adds `gamma y df/dw` to every weight: it *writes* y times
whatever `df/dw` is. The network has T blocks of n + 1 memory edges. In the first empty block `df/dw = c / gamma` with
c = (1, x_1, ..., x_n), elsewhere it is 0: so one sample after the other is stored as (y, y x_1, ..., y x_n). All else is a
circuit of units that are flat where they operate, through which no gradient passes. When all blocks are full, the circuit
of a learning algorithm, which has computed garbage until then, is let through to the output.

A memory cell is `r = s(w c)`, w = 0 at the start. Its output enters f with `kappa = 1 / (2 gamma)`; a staircase copy of r
enters with -kappa, so that the cell adds nothing to f at r = -1, 0 and 1, and at r = 0 still has the slope `2 kappa c`
in w. Once w = y c_t is written, r = s(y c_t c) is flat and reads `y x_i(t) x_i`, from which two gates recover the stored
sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.limits.algorithms import Algorithm, DecisionList, Elimination, Perceptron, Sample
from tangentlab.limits.circuits import Circuit, Signal
from tangentlab.limits.cube import require_signs
from tangentlab.limits.plateau import PlateauNetwork

NAMED: dict[str, type[Algorithm]] = {"parity": Elimination, "decision list": DecisionList, "perceptron": Perceptron}


class GivenCircuit(Algorithm):
    """A circuit of one's own with `T (n + 1) + n` inputs: y, x_1, ..., x_n of every sample, then the current x."""

    def __init__(self, circuit: Circuit, output: Signal) -> None:
        self.circuit, self.output = circuit, output

    def build(self, circuit: Circuit, samples: Sequence[Sample], inputs: Sequence[Signal]) -> Signal:
        """The circuit, embedded."""
        stored = [signal for x, y in samples for signal in (y, *x)]
        return circuit.embed(self.circuit, [*stored, *inputs], self.output)

    def predict(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """The circuit, gate by gate."""
        stored = torch.cat([y[:, None], x], 1).flatten().expand(len(inputs), -1)
        bits = torch.cat([stored.to(inputs.dtype), inputs], 1) > 0
        return 2 * self.circuit.values(bits, [self.output])[:, 0].float() - 1


def chosen_algorithm(algorithm: Algorithm | str) -> Algorithm:
    """An algorithm by its name."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if algorithm not in NAMED:
        raise InputError(
            f"Algorithms are {', '.join(NAMED)}, or an Algorithm such as SparseParity(k), not {algorithm!r}."
        )
    return NAMED[algorithm]()


def default_rate(n: int, samples: int) -> float:
    """`1 / (16 T^2 n)`: the drift of the output edges during T steps stays below an eighth or so."""
    return 1 / (16 * samples**2 * n)


class EmulatingNetwork(PlateauNetwork):
    """A network whose training by SGD with batch 1 on T samples is the run of an algorithm on them.

    Every gate, memory cell and output is a unit of one weighted graph and all weights are one parameter, for
    `torch.optim.SGD(network.parameters(), lr=network.rate)`.

    Args:
        algorithm: `"parity"`, `"decision list"`, `"perceptron"`, or an `Algorithm` such as `SparseParity(k)` or a
            `GivenCircuit`.
        n: number of coordinates.
        samples: T, the number of samples that are stored.
        rate: gamma, the learning rate it is made for; by default `1 / (16 T^2 n)`.
        dtype: of the weights; float32 has enough digits up to n = 16 or so.
    """

    def __init__(
        self,
        algorithm: Algorithm | str,
        n: int,
        samples: int,
        rate: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if samples < 1:
            raise InputError(f"At least one sample is stored, not {samples}.")
        if rate is not None and not rate > 0:
            raise InputError(f"The learning rate is positive, not {rate}.")
        self.n, self.samples = n, samples
        self.rate = default_rate(n, samples) if rate is None else rate
        circuit = Circuit(n)
        kappa = 1 / (2 * self.rate)
        memory, stored, full = _memory(circuit, samples)
        answer = chosen_algorithm(algorithm).build(circuit, stored, circuit.inputs)
        head = _gated(circuit, answer, full)
        cells, copies = [cell for cell, _ in memory], [copy for _, copy in memory]
        weights = [*([kappa] * len(cells)), *([-kappa] * len(copies)), 1.0]
        super().__init__(circuit.wiring([([*cells, *copies, head], weights)]), dtype)
        self.memory_edges = _edges_into(self, [cell.node for cell in cells], circuit)

    def memory(self) -> Tensor:
        """The weights of the memory edges, `(T, n + 1)`: (y, y x_1, ..., y x_n) of every stored sample, else 0."""
        return self.weight.detach()[self.memory_edges].view(self.samples, self.n + 1)

    @staticmethod
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        """`(f - y)^2 / 2`, the mean over a batch."""
        return half_squared_error(outputs, labels)


def half_squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """`(f - y)^2 / 2`, the mean over examples."""
    return (outputs - labels.to(outputs.dtype)).square().mean() / 2


def _memory(circuit: Circuit, samples: int) -> tuple[list[tuple[Signal, Signal]], list[Sample], Signal]:
    """Memory cells with their copies, the stored samples, and whether all blocks are full."""
    cells: list[tuple[Signal, Signal]] = []
    stored: list[Sample] = []
    active: Signal | None = None
    for _ in range(samples):
        block = [_control(circuit, source, active) for source in (circuit.true, *circuit.inputs)]
        reads = [circuit.unit([control], [0.0]) for control in block]
        cells += [(read, circuit.unit([read], [2.0], offset=1)) for read in reads]
        label, negative = circuit.unit([reads[0]], [2.0], -1), circuit.unit([reads[0]], [-2.0], -1)
        stored.append(
            ([_recovered(circuit, read, x, reads[0]) for read, x in zip(reads[1:], circuit.inputs, strict=True)], label)
        )
        active = circuit.unit([label, negative], [1.0, 1.0], 1)
    assert active is not None
    return cells, stored, active


def _control(circuit: Circuit, source: Signal, active: Signal | None) -> Signal:
    """The source while the block may be written or read, 0 before: on plateaus at -1, 0 and 1."""
    if active is None:
        return circuit.unit([source], [1.0])
    if source.node == 0:
        return circuit.unit([active], [1.0], 1, offset=1)
    return _gated(circuit, source, active)


def _gated(circuit: Circuit, signal: Signal, gate: Signal) -> Signal:
    """The signal where the gate is true, else 0."""
    return circuit.unit([signal & gate, ~signal & gate], [1.0, -1.0], offset=1)


def _recovered(circuit: Circuit, read: Signal, x: Signal, label: Signal) -> Signal:
    """The stored sign: the product of `y x_i(t) x_i`, the current x_i and y, which is their XOR."""
    triple = [read, x, label]
    most = circuit.gate(triple, (1, 1, 1), 0)
    return circuit.gate([*triple, most], (1, 1, 1, -2), 0)


def _edges_into(network: PlateauNetwork, nodes: Sequence[int], circuit: Circuit) -> Tensor:
    """The edge of each memory cell: the only edges of weight 0, in the order of the cells."""
    edges = torch.nonzero(torch.from_numpy(network.wiring.weights) == 0).flatten()
    levels = torch.tensor([circuit._levels[node] for node in nodes])
    found = torch.empty_like(edges)
    found[levels.argsort(stable=True)] = edges
    return found


def train_by_sgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rate: float,
    *,
    batch: int = 1,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> None:
    """One pass of `torch.optim.SGD` over samples in order, with the loss `(f - y)^2 / 2`.

    Args:
        model: any network with one output.
        x: inputs `(samples, n)`; y: labels `(samples,)`.
        rate: gamma.
        batch: samples per step; the last ones that do not fill a batch are left out.
        noise: standard deviation of the Gaussian noise that is added to every parameter after every step.
        generator: source of the noise.
    """
    require_signs(y, "The labels")
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for start in range(0, len(x) - batch + 1, batch):
        optimizer.zero_grad()
        half_squared_error(model(x[start : start + batch]).view(-1), y[start : start + batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if noise:
            add_noise(model, noise, generator)


@torch.no_grad()
def add_noise(model: nn.Module, noise: float, generator: torch.Generator | None = None) -> None:
    """Gaussian noise on every parameter."""
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=noise)


@torch.no_grad()
def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The share of outputs on the side of their label; an output of 0 counts 1/2."""
    return float((1 + torch.sign(outputs.view(-1)) * labels.to(outputs.dtype)).mean()) / 2
