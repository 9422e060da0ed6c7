"""Networks that SGD turns into learners: circuits against code, then the training itself."""

import pytest
import torch

from tangentlab import NTK
from tangentlab.errors import InputError
from tangentlab.limits import (
    Circuit,
    DecisionList,
    Elimination,
    EmulatingNetwork,
    GivenCircuit,
    Halfspaces,
    MemoryEdgeNetwork,
    Parities,
    Perceptron,
    SharedMemoryNetwork,
    SparseParity,
    UniformInputs,
    accuracy,
    all_inputs,
    train_by_sgd,
)

TIERS = [SharedMemoryNetwork, MemoryEdgeNetwork, EmulatingNetwork]
ALGORITHMS = [
    (Elimination(), 4, 7),
    (Elimination(), 3, 2),
    (SparseParity(2), 5, 6),
    (DecisionList(), 4, 8),
    (Perceptron(), 4, 5),
]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(n: int, count: int, seed: int, family=Parities) -> tuple[torch.Tensor, torch.Tensor]:
    generator = rng(seed)
    function = family(n).sample(1, generator)
    x = UniformInputs(n).sample(count, generator)
    return x, function.labels(x)


def learnt_parity(n: int, seed: int, *, tier=EmulatingNetwork, noise: float = 0.0, batch: int = 1, **options) -> float:
    """Accuracy on new inputs after one pass over 2 n samples of a random parity; noise in units of rate / sqrt(T n)."""
    generator = rng(seed)
    function = Parities(n).sample(1, generator)
    x = UniformInputs(n).sample(2 * n * batch, generator)
    network = tier("parity", n, 2 * n, **options)
    unit = network.rate / (2 * n * n) ** 0.5
    train_by_sgd(network, x, function.labels(x), network.rate, batch=batch, noise=noise * unit, generator=generator)
    new = UniformInputs(n).sample(200, generator)
    outputs = network.predict(new) if isinstance(network, EmulatingNetwork) else network(new)
    return accuracy(outputs, function.labels(new))


@pytest.mark.parametrize(("algorithm", "n", "count"), ALGORITHMS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("seed", range(4))
def test_the_circuit_of_an_algorithm_is_its_code(algorithm, n: int, count: int, seed: int) -> None:
    circuit = Circuit(count * (n + 1) + n)
    stored, current = circuit.inputs[:-n], circuit.inputs[-n:]
    blocks = [stored[t * (n + 1) : (t + 1) * (n + 1)] for t in range(count)]
    answer = algorithm.build(circuit, [(block[1:], block[0]) for block in blocks], current)
    x, y = samples(n, count, seed, Halfspaces if seed % 2 else Parities)
    given = GivenCircuit(circuit, answer)
    assert torch.equal(given.predict(x, y, all_inputs(n)), algorithm.predict(x, y, all_inputs(n)))


def test_the_algorithms_learn_what_they_are_for() -> None:
    x, y = samples(8, 20, 1)
    new = UniformInputs(8).sample(500, rng(9))
    generator = rng(1)
    parity = Parities(8).sample(1, generator)
    assert accuracy(Elimination().predict(x, y, new), parity.labels(new)) == 1
    sparse = new[:, 1] * new[:, 4]
    x = UniformInputs(8).sample(30, rng(3))
    assert accuracy(SparseParity(2).predict(x, x[:, 1] * x[:, 4], new), sparse) == 1
    assert torch.equal(SparseParity(1).predict(x, x[:, 1] * x[:, 4], new), torch.ones(500))

    def as_list(z: torch.Tensor) -> torch.Tensor:
        return torch.where(z[:, 2] > 0, 1.0, torch.where(z[:, 5] < 0, -1.0, z[:, 0]))

    x = UniformInputs(8).sample(200, rng(4))
    assert accuracy(DecisionList().predict(x, as_list(x), new), as_list(new)) > 0.97
    assert accuracy(DecisionList().predict(x, as_list(x), x), as_list(x)) == 1
    x, y = samples(8, 1000, 5, Halfspaces)
    truth = Halfspaces(8).sample(1, rng(5))
    assert accuracy(Perceptron().predict(x, y, new), truth.labels(new)) > 0.8


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("algorithm", "n", "count"), ALGORITHMS, ids=lambda value: type(value).__name__)
def test_sgd_turns_the_network_into_the_algorithm(tier, algorithm, n: int, count: int) -> None:
    x, y = samples(n, count, 3, Halfspaces)
    network = tier(algorithm, n, count)
    assert torch.equal(network(all_inputs(n)).detach(), torch.zeros(2**n, dtype=torch.float64))
    train_by_sgd(network, x, y, network.rate)
    stored = torch.cat([y[:, None], y[:, None] * x], 1)
    assert torch.equal(network.memory().sign(), stored.double())
    outputs = network(all_inputs(n)).detach()
    assert torch.equal(outputs.sign().float(), algorithm.predict(x, y, all_inputs(n)))
    assert float((outputs.abs() - 1).abs().max()) < 0.3


def test_a_sample_is_written_into_the_first_empty_block_and_nothing_else_moves_but_the_output_edges() -> None:
    network = EmulatingNetwork("parity", 4, 6)
    before = network.weight.detach().clone()
    x, y = samples(4, 1, 0)
    train_by_sgd(network, x, y, network.rate)
    memory = network.memory()
    assert torch.allclose(memory[0], torch.cat([y[:, None], y[:, None] * x], 1)[0].double(), atol=1e-12)
    assert torch.equal(memory[1:], torch.zeros(5, 5, dtype=torch.float64))
    moved = (network.weight.detach() != before).nonzero().flatten()
    assert set(moved.tolist()) == set(network.memory_edges[:5].tolist())  # r = 0 while it is written


def test_a_circuit_of_ones_own_is_emulated() -> None:
    n, count = 2, 2
    circuit = Circuit(count * (n + 1) + n)
    y1, a1, b1, y2, a2, b2, a, b = circuit.inputs
    answer = (y1 & y2) | (a1 ^ b2 ^ a) & ~b
    algorithm = GivenCircuit(circuit, answer)
    x, y = samples(n, count, 2)
    network = EmulatingNetwork(algorithm, n, count)
    train_by_sgd(network, x, y, network.rate)
    assert torch.equal(network(all_inputs(n)).sign().float(), algorithm.predict(x, y, all_inputs(n)))


@pytest.mark.parametrize("tier", TIERS)
def test_parities_are_learnt_from_two_n_samples_with_noise_on_every_edge(tier) -> None:
    assert [learnt_parity(10, seed, tier=tier, noise=0.1) for seed in range(5)] == [1.0] * 5


@pytest.mark.parametrize("tier", TIERS)
def test_larger_batches_do_not_teach_this_network(tier) -> None:
    for batch in (2, 5, 32):
        found = torch.tensor([learnt_parity(10, seed, tier=tier, batch=batch) for seed in range(6)])
        assert abs(float(found.mean()) - 0.5) < 0.1


def test_descent_on_the_whole_population_moves_nothing() -> None:
    x = all_inputs(6)
    y = x[:, 1] * x[:, 4]
    network = EmulatingNetwork("parity", 6, 12)
    train_by_sgd(network, x.repeat(12, 1), y.repeat(12), network.rate, batch=64)
    assert accuracy(network(x), y) == 0.5 and float(network.memory().abs().max()) < 1e-12


def test_the_tangent_kernel_at_the_start_knows_linear_functions_only() -> None:
    network = EmulatingNetwork("parity", 4, 3)
    x = all_inputs(4, torch.float64)
    kernel = NTK(network, x, function=lambda output, batch: output[:, None]).matrix()
    kappa = 1 / (2 * network.rate)
    assert torch.allclose(kernel, 4 * kappa**2 * (1 + x @ x.t()), rtol=1e-12)
    assert int(torch.linalg.matrix_rank(kernel)) == 5
    for chosen in ([0, 1], [0, 1, 2], [0, 1, 2, 3]):
        y = x[:, chosen].prod(1)
        assert float((kernel @ y).abs().max()) < 1e-9 * float(kernel.max())


def test_the_size_grows_as_the_circuit_does() -> None:
    small, large = (EmulatingNetwork("parity", n, 2 * n).size for n in (5, 10))
    assert large["gates"] == 5292 and large["edges"] == 19872 and large["levels"] == 124
    assert 5 < large["gates"] / small["gates"] < 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EmulatingNetwork("parties", 4, 3), "Algorithms are parity"),
        (lambda: EmulatingNetwork("parity", 4, 0), "At least one sample"),
        (lambda: EmulatingNetwork("parity", 4, 2, rate=0.0), "positive"),
        (lambda: SharedMemoryNetwork("parity", 4, 0), "At least one sample"),
        (lambda: SparseParity(0), "at least 1"),
    ],
)
def test_bad_input_is_refused_in_words(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("n", [10, 20, 40])
def test_parities_are_learnt_on_ten_of_ten_seeds(n: int, noise: float) -> None:
    assert [learnt_parity(n, seed, noise=noise) for seed in range(10)] == [1.0] * 10


@pytest.mark.slow
def test_a_parity_of_64_signs_is_learnt() -> None:
    assert learnt_parity(64, 0, noise=0.1) == 1


@pytest.mark.slow
def test_every_pair_of_ten_signs_stays_unlearnt_by_exact_gradients() -> None:
    x = all_inputs(10)
    for k in (2, 3, 10):
        y = x[:, :k].prod(1)
        network = EmulatingNetwork("parity", 10, 20)
        train_by_sgd(network, x.repeat(20, 1), y.repeat(20), network.rate, batch=1024)
        assert accuracy(network(x), y) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_256_do_not_learn_a_parity_of_20_signs(seed: int) -> None:
    """Within three standard errors of 1/2."""
    generator = torch.Generator().manual_seed(seed)
    parity, inputs = Parities(20).sample(1, generator), UniformInputs(20)
    network, x = EmulatingNetwork("parity", 20, 40), inputs.sample(40 * 256, generator)
    train_by_sgd(network, x, parity.labels(x), network.rate, batch=256)
    new = inputs.sample(2000, generator)
    assert abs(accuracy(network.predict(new), parity.labels(new)) - 0.5) < 3 * 0.5 / 2000**0.5


@pytest.mark.parametrize("label", [0.0, 0.5, 2.0, float("nan")])
def test_labels_that_are_not_signs_are_refused(label: float) -> None:
    network = EmulatingNetwork("parity", 4, 8)
    with pytest.raises(InputError, match="The labels gave"):
        train_by_sgd(network, all_inputs(4), torch.full((16,), label), network.rate)
