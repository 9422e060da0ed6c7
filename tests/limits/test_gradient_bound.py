"""Population gradients, the junk flow and the bounds: against enumeration, the identities of the proof, and simulation."""

import math

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError, ModelError
from tangentlab.limits import (
    Descent,
    EmulatingNetwork,
    FromSamples,
    Halfspaces,
    Majorities,
    Monomials,
    Parities,
    Perceptron,
    Population,
    ProductInputs,
    QueryDescent,
    QueryOracle,
    all_inputs,
    compare_learners,
    correlations,
    cross_predictability,
    data_free_accuracy,
    estimate_cross_predictability,
    gradient_bound,
    gradient_norms,
    junk_flow,
    logistic_loss,
    population_gradient,
    queries_needed,
    query_bound,
    relu_network,
    sq_dimension,
    squared_loss,
)
from tangentlab.limits.population import noisy_step


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(n: int, width: int = 6, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return relu_network(width)(n).double()


def flat(gradient: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([g.flatten() for g in gradient])


def one_by_one(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss) -> torch.Tensor:
    rows = []
    for one, label in zip(x, y):
        value = loss(model(one[None].double()).view(1), label.double()[None]).sum()
        rows.append(flat(torch.autograd.grad(value, list(model.parameters()))))
    return torch.stack(rows)


@pytest.mark.parametrize("loss", [squared_loss, logistic_loss])
@pytest.mark.parametrize("inputs", [None, ProductInputs(0.4, 4)])
def test_gradients_and_norms_are_means_of_those_of_single_examples(loss, inputs) -> None:
    model, population = network(4), Population.of(4, inputs)
    x, w = population.inputs, population.weights.double()
    y = Parities(4).sample(1, rng()).labels(x)
    up, down = (one_by_one(model, x, sign * torch.ones(16), loss) for sign in (1, -1))
    own = torch.where((y > 0)[:, None], up, down)
    assert torch.allclose(flat(population_gradient(model, population, y, loss)), w @ own)
    assert torch.allclose(flat(population_gradient(model, population, None, loss)), w @ (up + down) / 2)
    junk, signal = gradient_norms(model, population, loss)
    assert junk**2 == pytest.approx(float(w @ (up.square() + down.square()).sum(1) / 2), rel=1e-6)
    assert signal**2 == pytest.approx(float(w @ ((up - down) / 2).square().sum(1)), rel=1e-6)


def test_over_all_parities_the_gradients_differ_from_junk_by_parseval() -> None:
    model, population = network(5), Population.of(5)
    junk = flat(population_gradient(model, population, None))
    table = Parities(5).members()[0].table()
    squares = [float((flat(population_gradient(model, population, y.float())) - junk).square().sum()) for y in table]
    signal = gradient_norms(model, population)[1]
    assert sum(squares) / 32 == pytest.approx(2.0**-5 * signal**2, rel=1e-6)


@pytest.mark.parametrize("family", [Monomials(5, 2), Majorities(5), Majorities(5, 3)], ids=repr)
def test_the_mean_square_of_the_difference_is_bounded_by_both_eigenvalue_and_predictability(family) -> None:
    model, population = network(5), Population.of(5)
    junk = flat(population_gradient(model, population, None))
    functions, weights = family.members()
    squares = [
        (flat(population_gradient(model, population, y.float())) - junk).square().sum() for y in functions.table()
    ]
    mean = float(weights @ torch.stack(squares))
    known = cross_predictability(family)
    norm, signal = gradient_norms(model, population)
    assert mean <= known.largest * signal**2 * (1 + 1e-9) <= math.sqrt(known.value) * norm**2 * (1 + 1e-9)


def test_the_forms_of_the_bound_are_their_formulas_and_ordered() -> None:
    model = network(6)
    before = [p.detach().clone() for p in model.parameters()]
    bound = gradient_bound(model, Parities(6), steps=4, rate=0.05, noise=0.2, trajectories=5, generator=rng())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    g, s = bound.flow.gradients, bound.flow.signals
    assert g.shape == (5, 4) and torch.equal(g[:, 0], g[0, 0].expand(5)) and not torch.equal(g[0, 1:], g[1, 1:])
    assert bound.terms["slide"] == pytest.approx(float(g.sum(1).mean()) / 0.2 * 2 ** (-6 / 4))
    assert bound.terms["halved"] == pytest.approx(bound.terms["slide"] / 2)
    assert bound.terms["sharp"] == pytest.approx(float(s.sum(1).mean()) / 0.4 * 2**-3)
    assert bound.terms["chained"] == pytest.approx(float(s.square().sum(1).mean().sqrt()) / 0.4 * 2**-3)
    assert bound.terms["chained"] < bound.terms["sharp"] < bound.terms["halved"] < bound.terms["slide"]
    assert bound.baseline == 0.5 + 2**-7 and bound.flow.total == pytest.approx(float(g.sum(1).mean()))
    assert bound.accuracy() == bound.baseline + bound.terms["chained"] and not bound.vacuous()
    assert "without data" in str(bound) and all(0 < e < 0.3 * bound.terms[f] for f, e in bound.errors.items())


@pytest.mark.parametrize("family", [Parities(6), Monomials(6, 3), Majorities(5), Halfspaces(6)], ids=repr)
@pytest.mark.parametrize("loss", [squared_loss, logistic_loss])
def test_measured_accuracies_stay_below_the_bound(family, loss) -> None:
    options = {"steps": 5, "rate": 0.1, "noise": 0.5, "loss": loss}
    model = network(family.n)
    bound = gradient_bound(model, family, trajectories=4, generator=rng(), **options)
    found = compare_learners(family, {"noisy": Descent(model=lambda n: network(n), **options)}, functions=30)["noisy"]
    assert bound.baseline > 0.5 - 1e-12
    for form in ("slide", "halved", "sharp", "chained"):
        assert found.mean - 3 * found.standard_error <= bound.accuracy(form)


def test_a_sample_stands_for_a_population_that_is_too_large() -> None:
    exact = junk_flow(network(6), Population.of(6), steps=2, rate=0.1, noise=0.1, generator=rng())
    drawn = Population.of(6, draws=20000, generator=rng(1))
    about = junk_flow(network(6), drawn, steps=2, rate=0.1, noise=0.1, generator=rng())
    assert exact.exact and not about.exact and about.total == pytest.approx(exact.total, rel=0.03)
    known = estimate_cross_predictability(Parities(20), generator=rng())
    bound = gradient_bound(
        network(20), Parities(20), steps=1, rate=0.1, noise=0.1, draws=2000, predictability=known, generator=rng()
    )
    assert bound.predictability.largest == math.sqrt(known.upper)


def test_one_step_moves_apart_two_gaussians_by_less_than_the_bound_of_pinsker() -> None:
    model, population, gamma, sigma = network(5), Population.of(5), 0.5, 0.3
    y = Parities(5).sample(1, rng(4)).labels(population.inputs)
    a, b = (flat(population_gradient(model, population, labels)) for labels in (y, None))
    distance = gamma * float((a - b).norm())
    exact = math.erf(distance / (2 * sigma) / math.sqrt(2))
    assert exact <= distance / (2 * sigma)
    ends = []
    for labels in (y, None):
        gradient, points = population_gradient(model, population, labels), []
        for seed in range(800):
            own = network(5)
            noisy_step(own, gradient, gamma, sigma, rng(seed))
            points.append(torch.cat([p.detach().flatten() for p in own.parameters()]))
        ends.append(torch.stack(points))
    direction = -(a - b) / (a - b).norm()
    middle = ((ends[0].mean(0) + ends[1].mean(0)) / 2) @ direction
    measured = float(((ends[0] @ direction > middle).double() - (ends[1] @ direction > middle).double()).mean())
    assert measured == pytest.approx(exact, abs=0.08)


def test_an_oracle_is_honest_noisy_or_adversarial_within_its_tolerance() -> None:
    population = Population.of(4)
    x = population.inputs
    y = x[:, 0] * x[:, 1]

    def product(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.stack([inputs[:, 0] * inputs[:, 1] * labels, 0.3 * inputs[:, 0] * labels, 0.5 + 0 * labels], 1)

    truth = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    assert torch.allclose(QueryOracle(population, y, 0.1, "honest")(product), truth)
    noisy = QueryOracle(population, y, 0.1, "noise", rng())(product)
    assert 0 < float((noisy - truth).abs().max()) <= 0.1
    adversary = QueryOracle(population, y, 0.1)
    assert torch.allclose(adversary(product), torch.tensor([0.9, 0.0, 0.5], dtype=torch.float64))
    assert adversary.asked == 3 and adversary.revealing == 1
    assert QueryOracle(population, y, 0.1, "honest")(lambda a, b: a[:, 0] * 0 + 0.25) == 0.25


def test_few_functions_are_told_apart_by_a_query() -> None:
    family, tolerance = Parities(6), 0.2
    population = Population.of(6)
    revealed = 0
    for labels in family.members()[0].table():
        oracle = QueryOracle(population, labels.float(), tolerance)
        oracle(lambda x, y: torch.tanh(x.sum(1)) * y)
        oracle(lambda x, y: torch.tanh(x[:, :3].sum(1)) * y)
        revealed += oracle.revealing > 0
    assert 0 < revealed / 64 <= query_bound(2, tolerance, 2.0**-6, 0.0)
    assert queries_needed(0.75, 0.1, 2.0**-20) == pytest.approx(0.25 * 0.01 * 2**20)


@pytest.mark.parametrize(
    ("gram", "dimension"),
    [
        (correlations(Parities(5).members()[0]), 32),
        (torch.ones(5, 5), 1),
        (torch.eye(3), 3),
        (torch.tensor([[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]]), 2),
    ],
)
def test_the_sq_dimension_of_known_families(gram: torch.Tensor, dimension: int) -> None:
    assert sq_dimension(gram) == dimension


def test_learners_side_by_side_on_parities_of_six() -> None:
    learners = {
        "elimination": FromSamples(samples=20),
        "perceptron": FromSamples(Perceptron(), 100),
        "noisy": Descent(steps=3, noise=1.0),
        "queries": QueryDescent(tolerance=0.5, steps=3),
    }
    found = compare_learners(Parities(6), learners, functions=8)
    assert found["elimination"].mean == 1
    for name in ("perceptron", "noisy", "queries"):
        assert abs(found[name].mean - 0.5) < 0.25
    again = compare_learners(Parities(6), learners, functions=8)
    assert all(torch.equal(found[name].accuracies, again[name].accuracies) for name in learners)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"batch": 32},
        {"sign": True, "rate": 0.01},
        {"bits": 6, "reach": 2.0},
        {"coordinates": 20},
        {"weight_bits": 10},
        {"jitter": 0.1},
        {"noise": 0.01},
        {"loss": logistic_loss, "rate": 1.0},
    ],
    ids=lambda change: "-".join(change) or "plain",
)
def test_every_kind_of_descent_learns_a_single_coordinate(change: dict) -> None:
    learner = Descent(**{"steps": 150, "rate": 0.2, **change})
    assert compare_learners(Monomials(4, 1), {"it": learner}, functions=2)["it"].mean > 0.95


def test_queries_answered_honestly_are_gradient_descent() -> None:
    function, inputs = Monomials(4, 2).sample(1, rng()), None
    model = network(4)
    make = lambda n: network(n)  # noqa: E731
    from tangentlab.limits import UniformInputs

    inputs = UniformInputs(4)
    asked = QueryDescent(tolerance=0.0, answers="honest", model=make, steps=5).learn(function, inputs)
    plain = Descent(model=make, steps=5).learn(function, inputs)
    assert torch.allclose(asked(all_inputs(4)), plain(all_inputs(4)), atol=1e-6)
    adversary = QueryDescent(tolerance=0.0, model=make, steps=5).learn(function, inputs)
    assert torch.allclose(adversary(all_inputs(4)), plain(all_inputs(4)), atol=1e-6)
    assert model is not None


def test_what_is_left_of_a_gradient() -> None:
    gradient = [torch.tensor([0.3, -2.0, 0.04]), torch.tensor([[0.6]])]
    assert flat(Descent(sign=True)._told(gradient)).tolist() == [1, -1, 1, 1]
    assert flat(Descent(bits=2)._told(gradient)).tolist() == [0.5, -1, 0, 0.5]
    assert flat(Descent(coordinates=2)._told(gradient)).tolist() == pytest.approx([0, -2, 0, 0.6])


def test_the_emulating_network_is_under_the_bound_too() -> None:
    """Its gradients are huge, so the bound is vacuous; exact descent stays at 1/2 all the same."""
    model = EmulatingNetwork("parity", 4, 4)
    bound = gradient_bound(model, Parities(4), steps=2, rate=model.rate, noise=1e-6, trajectories=1, generator=rng())
    assert bound.vacuous("chained") and math.isnan(bound.errors["slide"])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Population.of(20), InputError, "draws="),
        (lambda: population_gradient(nn.Linear(3, 2), Population.of(3), None), ModelError, "one output"),
        (lambda: gradient_bound(nn.Linear(3, 2), Parities(3), steps=1, rate=1.0, noise=1.0), ModelError, "one output"),
        (
            lambda: junk_flow(nn.Linear(3, 1), Population.of(3), steps=1, rate=1.0, noise=0.0),
            InputError,
            "positive noise",
        ),
        (lambda: junk_flow(nn.Linear(3, 1), Population.of(3), steps=2, rate=[1.0], noise=1.0), InputError, "each step"),
        (lambda: QueryOracle(Population.of(2), torch.ones(4), -1.0), InputError, "not negative"),
        (lambda: QueryOracle(Population.of(2), torch.ones(4), 0.1, "kind"), InputError, "adversarial"),
        (lambda: QueryOracle(Population.of(2), torch.ones(4), 0.1)(lambda x, y: 2 * y), InputError, "scale it down"),
        (lambda: query_bound(1, 0.0, 0.5), InputError, "positive tolerance"),
        (lambda: sq_dimension(torch.ones(2, 3)), InputError, "square"),
        (lambda: compare_learners(Parities(3), {}), InputError, "at least one"),
    ],
)
def test_bad_input_is_refused_in_words(call, error, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_an_unknown_form_is_refused() -> None:
    bound = gradient_bound(network(3), Parities(3), steps=1, rate=0.1, noise=1.0, trajectories=1, generator=rng())
    with pytest.raises(InputError, match="slide, halved, sharp, chained"):
        bound.accuracy("best")
    assert data_free_accuracy(Parities(3)) == bound.baseline


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "steps", "noise", "low", "high"),
    [(14, 10, 0.1, 0.09, 0.12), (14, 20, 0.3, 0.14, 0.19), (16, 10, 0.1, 0.045, 0.06)],
)
def test_a_bound_that_is_not_vacuous(n: int, steps: int, noise: float, low: float, high: float) -> None:
    torch.manual_seed(0)
    model = relu_network(32)(n)
    bound = gradient_bound(model, Parities(n), steps=steps, rate=0.05, noise=noise, generator=rng())
    assert low < bound.terms["sharp"] < high and bound.vacuous("slide") and not bound.vacuous("sharp")
    learner = Descent(model=relu_network(32), steps=steps, rate=0.05, noise=noise)
    found = compare_learners(Parities(n), {"it": learner}, functions=4)["it"]
    assert found.mean <= bound.accuracy("chained") and found.mean == pytest.approx(0.5, abs=0.01)
