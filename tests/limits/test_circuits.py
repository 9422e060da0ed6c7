"""Circuits, their text form, and the networks they compile to: truth tables equal, gradients those of autograd."""

import pytest
import torch

from tangentlab.errors import InputError, ModelError
from tangentlab.limits import Circuit, PlateauNetwork, all_inputs, compile_circuit, parse_circuit
from tangentlab.limits.emulation import add_noise


def bits(n: int) -> torch.Tensor:
    return all_inputs(n) > 0


def random_circuit(seed: int, n: int = 5, gates: int = 40):
    """Gates of every kind on signals drawn from all that exist, in either sign."""
    rng = torch.Generator().manual_seed(seed)

    def draw(k: int) -> list[int]:
        return torch.randint(k, (3,), generator=rng).tolist()

    circuit = Circuit(n)
    signals = [circuit.true, *circuit.inputs]
    for _ in range(gates):
        a, b, c = (signals[i] if s else ~signals[i] for i, s in zip(draw(len(signals)), draw(2)))
        kind = int(torch.randint(7, (), generator=rng))
        signals.append(made(circuit, kind, a, b, c))
    return circuit, signals[-4:]


def made(circuit, kind: int, a, b, c):
    if kind < 3:
        return (a & b, a | b, a ^ b)[kind]
    if kind == 3:
        return circuit.xor([a, b, c])
    if kind == 4:
        return circuit.all([a, b, c])
    return circuit.threshold([a, b, c], 2, (3, -1, 2) if kind == 5 else None)


def test_operators_have_their_truth_tables() -> None:
    circuit = Circuit(3)
    a, b, c = circuit.inputs
    x = bits(3)
    A, B, C = x.T
    cases = [
        (a & b, A & B),
        (a | ~b, A | ~B),
        (a ^ b, A ^ B),
        (circuit.xor([a, b, c]), A ^ B ^ C),
        (circuit.xor([a, b, c, a, b]), C),
        (circuit.xor([a]), A),
        (circuit.threshold([a, b, c], 2), x.sum(1) >= 2),
        (circuit.threshold([a, b, c], 1, (2, -1, 1)), 2 * A.int() - B.int() + C.int() >= 1),
        (circuit.all([a, b, c]), x.all(1)),
        (circuit.any([a, b, c]), x.any(1)),
        (circuit.true & a, A),
        (~circuit.true, torch.zeros(8, dtype=torch.bool)),
    ]
    found = circuit.values(x, [signal for signal, _ in cases])
    for column, (_, truth) in zip(found.T, cases):
        assert torch.equal(column, truth)


@pytest.mark.parametrize("seed", range(8))
def test_the_network_of_a_circuit_has_its_truth_table_and_its_size(seed: int) -> None:
    circuit, outputs = random_circuit(seed)
    network = compile_circuit(circuit, outputs)
    assert torch.equal(network(all_inputs(5)) > 0, circuit.values(bits(5), outputs))
    assert torch.equal(network(all_inputs(5)).abs(), torch.ones(32, 4, dtype=torch.float64))
    size = network.size
    assert size["gates"] == circuit.gates and size["edges"] == circuit.edges + 4 == network.weight.numel()
    assert size["levels"] == circuit.depth + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flat_gates_have_no_gradient_and_do_not_feel_noise(dtype: torch.dtype) -> None:
    circuit, outputs = random_circuit(3)
    network = compile_circuit(circuit, outputs[0], dtype)
    before = network(all_inputs(5))
    before[0].backward()
    assert int((network.weight.grad != 0).sum()) == 1  # the edge into the linear output
    add_noise(network, 0.02, torch.Generator().manual_seed(0))
    after = network(all_inputs(5))
    assert torch.equal(after > 0, before > 0) and after.dtype == dtype


def test_values_and_gradients_are_those_of_plain_autograd() -> None:
    circuit, outputs = random_circuit(1)
    extra = circuit.unit([outputs[0], outputs[1]], [0.1, 0.15], 0.05)
    step = circuit.unit([extra, outputs[2]], [0.7, 0.2], offset=1)
    wiring = circuit.wiring([([extra, step, outputs[3]], [2.0, -3.0, 0.5]), ([step], [1.0])])
    network = PlateauNetwork(wiring)
    add_noise(network, 0.3, torch.Generator().manual_seed(1))
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    cotangent = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = network(x)
    mine = torch.autograd.grad(found, [x, network.weight], cotangent)
    weight = network.weight.detach().clone().requires_grad_()
    truth = by_autograd(wiring, x, weight)
    theirs = torch.autograd.grad(truth, [x, weight], cotangent)
    assert torch.allclose(found, truth, atol=1e-13)
    for a, b in zip(mine, theirs):
        assert torch.allclose(a, b, atol=1e-12) and float(b.abs().max()) > 0


def by_autograd(wiring, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Node by node with torch operations."""
    values = [torch.ones(len(x), dtype=x.dtype), *x.T]

    def s(z: torch.Tensor) -> torch.Tensor:
        return (2 * z).clamp(-1, 1)

    for a, b, lo, hi in wiring.levels:
        level = []
        for node in range(b - a):
            edges = [e for e in range(lo, hi) if wiring.targets[e] == node]
            z = sum(weight[e] * values[wiring.sources[e]] for e in edges)
            o = wiring.offsets[a - wiring.n - 1 + node]
            level.append(z if b == wiring.nodes else (s(z - o) + s(z + o)) / 2)
        values += level
    return torch.stack(values[-wiring.outputs :], 1)


def test_an_embedded_circuit_computes_what_it_did() -> None:
    inner, outputs = random_circuit(5, n=4)
    outer = Circuit(4)
    a, b, c, d = outer.inputs
    copy = outer.embed(inner, [d, ~a, b & c, c], ~outputs[0])
    x = bits(4)
    A, B, C, D = x.T
    truth = ~inner.values(torch.stack([D, ~A, B & C, C], 1), [outputs[0]])
    assert torch.equal(outer.values(x, [copy]), truth)


def test_text_becomes_a_circuit_whatever_the_order_of_its_lines() -> None:
    text = """
    # a full adder
    sum = half ^ c
    carry = (a and b) | threshold(2, half, c)
    half = a ^ b
    """
    circuit, names = parse_circuit("\n".join(line.strip() for line in text.splitlines()), inputs=("a", "b", "c"))
    x = bits(3)
    found = circuit.values(x, [names["sum"], names["carry"]])
    assert torch.equal(found, torch.stack([x.sum(1) % 2 == 1, x.sum(1) >= 2], 1))
    circuit, names = parse_circuit("f = not p or (q & True) | False")
    assert circuit.values(bits(2), [names["f"]])[:, 0].tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = b & x\nb = c | y\nc = a ^ y", "cycle: a -> b -> c -> a"),
        ("a = a & x", "cycle: a -> a"),
        ("a = x\na = y", "defined twice"),
        ("a & b", "not a definition"),
        ("a =", "Line 1"),
        ("", "no lines"),
        ("a = x + y", "cannot be part of a circuit"),
        ("a = threshold(x, y)", "cannot be part of a circuit"),
    ],
)
def test_bad_text_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_circuit(text)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: parse_circuit("a = x", inputs=("y",)), "uses x"),
        (lambda c: parse_circuit("a = x", inputs=("x", "a")), "defined by a line"),
        (lambda c: Circuit(0), "positive number of inputs"),
        (lambda c: c.inputs[0] & Circuit(2).inputs[0], "another circuit"),
        (lambda c: c.gate(c.inputs, (1, 1), 0), "odd sum"),
        (lambda c: bool(c.inputs[0]), "no value before"),
        (lambda c: c.values(torch.ones(3, 2), [c.true]), "Boolean"),
        (lambda c: c.embed(Circuit(3), c.inputs, Circuit(3).true), "3 inputs, and 2 signals"),
        (lambda c: Circuit(3).embed(c, Circuit(3).inputs[:2], Circuit(2).true), "signal of the circuit"),
        (lambda c: compile_circuit(c, []), "at least one output"),
        (lambda c: compile_circuit(c, c.inputs[0] & c.inputs[1])(torch.ones(2, 3)), "\\(m, 2\\)"),
        (lambda c: [c.unit(c.inputs, (1, 1), offset=1), c.values(bits(2), [c.true])], "no Boolean gates"),
    ],
)
def test_bad_circuits_are_refused_in_words(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(Circuit(2))


def test_second_derivatives_are_refused() -> None:
    circuit = Circuit(2)
    network = compile_circuit(circuit, circuit.inputs[0] & circuit.inputs[1])
    (first,) = torch.autograd.grad(network(all_inputs(2)).sum(), network.weight, create_graph=True)
    with pytest.raises(ModelError, match="first derivatives"):
        first.sum().backward()
