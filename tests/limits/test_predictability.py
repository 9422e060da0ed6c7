"""Families of functions and their cross-predictability: closed forms against tables, tables against loops."""

import math
from itertools import product

import pytest
import torch

from tangentlab import memory_limit
from tangentlab.errors import InputError, MemoryBudgetError
from tangentlab.limits import (
    Additions,
    CallableFamily,
    Communities,
    DecisionTrees,
    DNFs,
    Family,
    Halfspaces,
    Juntas,
    Majorities,
    Monomials,
    Parities,
    ProductInputs,
    SampledInputs,
    TableFamily,
    TableInputs,
    UniformInputs,
    all_inputs,
    correlations,
    cross_predictability,
    data_free_accuracy,
    estimate_cross_predictability,
    growth_of,
    label_spectrum,
    predictability_growth,
    sampled_predictability,
    table_correlations,
    walsh_coefficients,
    weight_by_degree,
)
from tangentlab.limits.cube import codes_of, inputs_of
from tangentlab.limits.walsh import degrees, hadamard

EVERY = [
    Parities(6),
    Monomials(7, 3),
    Juntas(7, 2),
    Halfspaces(7),
    Majorities(7),
    Majorities(7, 3),
    DNFs(7, terms=3, width=2),
    DecisionTrees(6, depth=3),
    Communities(3),
    Communities(6),
    Additions(6),
]
LISTED = [family for family in EVERY if family.size() is not None]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_loops(tables: torch.Tensor, weights: torch.Tensor, chances: torch.Tensor) -> float:
    total = 0.0
    for a, first in enumerate(tables.double()):
        for b, second in enumerate(tables.double()):
            total += float(weights[a] * weights[b]) * float((first * second * chances).sum()) ** 2
    return total


@pytest.mark.parametrize("family", EVERY, ids=repr)
def test_draws_are_signs_and_their_tables_are_their_values(family: Family) -> None:
    drawn = family.sample(5, rng())
    table = drawn.table()
    assert table.shape == (5, 2**family.n) and set(table.unique().tolist()) <= {-1, 1}
    x = UniformInputs(family.n).sample(50, rng(1))
    assert torch.equal(drawn(x), table[:, codes_of(x)])


@pytest.mark.parametrize("family", [f for f in LISTED if f.n <= 7], ids=repr)
def test_exact_values_are_those_of_a_loop_over_all_pairs(family: Family) -> None:
    functions, weights = family.members()
    assert functions.count == family.size() and float(weights.sum()) == pytest.approx(1)
    keep = min(functions.count, 4000)
    assert keep == functions.count
    truth = TableFamily(functions.table(), weights)
    gram = correlations(functions)
    assert cross_predictability(family).value == pytest.approx(float(weights @ gram.square() @ weights), rel=1e-12)
    if functions.count <= 64:
        chances = UniformInputs(family.n).probabilities()
        assert cross_predictability(truth).value == pytest.approx(by_loops(truth.tables, weights, chances), rel=1e-12)


@pytest.mark.parametrize("family", EVERY, ids=repr)
def test_the_estimate_covers_the_exact_value(family: Family) -> None:
    exact = cross_predictability(family)
    found = estimate_cross_predictability(family, confidence=0.999, generator=rng(3))
    assert found.lower <= exact.value <= found.upper and not found.exact
    assert found.upper - found.lower < 0.2


@pytest.mark.parametrize("n", [1, 2, 7, 20, 40])
def test_parities_and_monomials_have_the_values_of_the_theory_at_any_n(n: int) -> None:
    parity = cross_predictability(Parities(n))
    assert parity.value == 2.0**-n and parity.largest == 2.0**-n and parity.effective_rank == 2.0**n
    for k in range(1, n + 1):
        found = cross_predictability(Monomials(n, k))
        assert found.value == pytest.approx(1 / math.comb(n, k), rel=1e-13)
        assert found.largest == pytest.approx(1 / math.comb(n, k), rel=1e-13)


@pytest.mark.parametrize("family", [f for f in EVERY if f.kernel_by_distance() is not None], ids=repr)
def test_the_kernel_by_distance_is_the_mean_over_functions(family: Family) -> None:
    functions = family.members()[0] if family.size() else family.sample(20000, rng(5))
    x = all_inputs(family.n)
    close = functions(x).double()
    kernel = close.t() @ close / functions.count
    distance = (family.n - x @ x.t()).long() // 2
    known = torch.tensor([float(k) for k in family.kernel_by_distance()])[distance]
    assert float((kernel - known).abs().max()) < (1e-6 if family.size() else 0.04)


@pytest.mark.parametrize("family", EVERY, ids=repr)
def test_the_spectrum_adds_up_to_one_and_its_squares_to_the_cross_predictability(family: Family) -> None:
    found = cross_predictability(family)
    spectrum = found.spectrum
    assert spectrum is not None
    assert spectrum.trace == pytest.approx(1) and spectrum.participation_ratio == pytest.approx(1 / found.value)
    assert found.value <= found.largest <= math.sqrt(found.value) * (1 + 1e-12)


@pytest.mark.parametrize("inputs", [ProductInputs(0.3, 4), TableInputs(torch.arange(16.0) / 120)])
@pytest.mark.parametrize("family", [Parities(4), Monomials(4, 2), Majorities(4, 3)], ids=repr)
def test_other_inputs_are_those_of_a_loop(family: Family, inputs) -> None:
    functions, weights = family.members()
    truth = by_loops(functions.table(), weights, inputs.probabilities())
    assert cross_predictability(family, inputs).value == pytest.approx(truth, rel=1e-12)
    spectrum = label_spectrum(family, inputs)
    assert spectrum.trace == pytest.approx(1) and 1 / spectrum.participation_ratio == pytest.approx(truth)
    estimate = estimate_cross_predictability(family, inputs, generator=rng(2), confidence=0.999)
    assert estimate.lower <= truth <= estimate.upper


def test_a_label_kernel_over_inputs_and_one_over_functions_have_the_same_eigenvalues() -> None:
    many = TableFamily(Juntas(3, 2).sample(40, rng()).table())
    assert many.size() > 2**3
    gram = correlations(many.members()[0]) / 40
    truth = torch.linalg.eigvalsh(gram).flip(0)[:8]
    assert torch.allclose(label_spectrum(many).values, truth.clamp_min(0), atol=1e-12)


@pytest.mark.parametrize(("n", "draws"), [(2, 1), (2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("family", [Parities, lambda n: Monomials(n, 1), lambda n: Majorities(n)])
def test_the_m_sample_identity_over_all_samples(n: int, draws: int, family) -> None:
    functions, weights = family(n).members()
    table = functions.table().double()
    total = 0.0
    for sample in product(range(2**n), repeat=draws):
        seen = table[:, list(sample)]
        total += float(weights @ ((seen @ seen.t()) / draws).square() @ weights)
    exact = cross_predictability(TableFamily(functions.table(), weights)).value
    assert total / 2 ** (n * draws) == pytest.approx(sampled_predictability(exact, draws), rel=1e-12)


def test_walsh_coefficients_are_products_with_the_hadamard_matrix() -> None:
    from scipy.linalg import hadamard as scipys

    for n in (0, 1, 5, 6, 7, 12):
        tables = torch.where(torch.rand(3, 2**n, generator=rng(n)) < 0.5, 1.0, -1.0).double()
        matrix = torch.from_numpy(scipys(2**n)).double()
        assert torch.equal(walsh_coefficients(tables), tables @ matrix / 2**n)
        assert torch.equal(walsh_coefficients(tables.to(torch.int8)).double(), tables @ matrix / 2**n)
    assert torch.equal(hadamard(3), torch.from_numpy(scipys(8)).double())


def test_parseval_and_the_coefficients_of_a_parity() -> None:
    table = Parities(8).members()[0].table()
    assert torch.equal(walsh_coefficients(table), torch.eye(256))
    some = Halfspaces(9).sample(4, rng()).table()
    assert torch.allclose(walsh_coefficients(some).square().sum(1), torch.ones(4))
    by_degree = weight_by_degree(Monomials(6, 2).sample(2, rng()).table())
    assert by_degree.tolist() == [[0, 0, 1, 0, 0, 0, 0]] * 2
    assert degrees(3).tolist() == [0, 1, 1, 2, 1, 2, 2, 3]


def test_the_correlations_of_tables_are_products_of_walsh_coefficients() -> None:
    table = Halfspaces(10).sample(6, rng()).table()
    coefficients = walsh_coefficients(table.double())
    assert torch.allclose(table_correlations(table), coefficients @ coefficients.t())
    assert torch.equal(table_correlations(table), correlations(TableFamily(table).members()[0]))


@pytest.mark.parametrize(("n", "score"), [(5, 0.785), (9, 0.769), (11, 0.765)])
def test_majorities_are_guessed_without_data(n: int, score: float) -> None:
    assert data_free_accuracy(Majorities(n)) == pytest.approx(score, abs=6e-4)


@pytest.mark.parametrize("family", [f for f in LISTED if f.n <= 7], ids=repr)
def test_the_accuracy_without_data_is_that_of_all_functions_and_below_its_bound(family: Family) -> None:
    functions, weights = family.members()
    truth = 0.5 + float((weights @ functions.table().double()).abs().mean()) / 2
    found = data_free_accuracy(family)
    assert found == pytest.approx(truth, rel=1e-9)
    assert found <= 0.5 + cross_predictability(family).value ** 0.25 / 2 + 1e-12


def test_the_accuracy_without_data_is_estimated_where_nothing_else_is_known() -> None:
    family = CallableFamily(5, lambda generator: Parities(5).sample(1, generator).labels)
    assert data_free_accuracy(family, generator=rng()) == pytest.approx(0.5, abs=0.05)
    assert data_free_accuracy(Parities(3), ProductInputs(0.5, 3)) > 0.6


def test_decays_are_told_apart() -> None:
    assert predictability_growth(Parities, range(4, 20)).verdict == "super-polynomial"
    assert predictability_growth(lambda n: Monomials(n, n // 2), range(4, 30, 2)).verdict == "super-polynomial"
    for family in (
        lambda n: Monomials(n, 3),
        Halfspaces,
        Additions,
        lambda n: Juntas(n, 2),
        lambda n: Majorities(n, 3),
    ):
        found = predictability_growth(family, range(6, 26))
        assert found.verdict == "polynomial", str(found)
    assert growth_of(range(4, 12), [float(n) ** -math.log(n) for n in range(4, 12)]).verdict != "polynomial"
    assert growth_of([4, 5, 6, 7, 8], [0.5, 0.1, 0.4, 0.05, 0.3]).verdict == "undecided"
    assert "n^-" in str(predictability_growth(Parities, range(4, 10)))


def test_the_order_of_inputs_and_their_numbers() -> None:
    assert all_inputs(2).tolist() == [[1, 1], [-1, 1], [1, -1], [-1, -1]]
    codes = torch.arange(64)
    assert torch.equal(codes_of(inputs_of(codes, 6)), codes)


def test_samples_follow_their_distribution() -> None:
    for inputs in (UniformInputs(3), ProductInputs([0.5, -0.2, 0.9]), TableInputs(torch.arange(8.0) / 28)):
        counts = torch.bincount(codes_of(inputs.sample(40000, rng())), minlength=8) / 40000
        assert float((counts - inputs.probabilities()).abs().max()) < 0.01
    mine = SampledInputs(3, lambda count, generator: torch.ones(count, 3))
    assert mine.sample(2).tolist() == [[1, 1, 1]] * 2


def test_memory_is_refused_before_the_work() -> None:
    with memory_limit(10_000_000), pytest.raises(MemoryBudgetError, match="2\\^26"):
        Parities(26).sample(3, rng()).table()
    with pytest.raises(InputError, match="enumeration goes up to n = 30"):
        all_inputs(40)
    with memory_limit(1000), pytest.raises(MemoryBudgetError, match="Walsh"):
        walsh_coefficients(torch.ones(8, 1024))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TableFamily(torch.zeros(2, 4)), "values are -1 or 1"),
        (lambda: TableFamily(torch.ones(2, 5)), "functions, 2\\^n"),
        (lambda: TableFamily(torch.ones(2, 4), torch.tensor([0.5, 0.6])), "add up to 1"),
        (lambda: CallableFamily(3, lambda g: lambda x: x[:, 0] * 0).sample(1).table(), "values are -1 or 1"),
        (lambda: CallableFamily(3, lambda g: lambda x: x).sample(1)(torch.ones(2, 3)), "have values"),
        (lambda: Monomials(4, 5), "from 1 to n = 4"),
        (lambda: Majorities(4, 2), "odd number"),
        (lambda: Communities(4), "no ties"),
        (lambda: Additions(63), "62"),
        (lambda: Parities(0), "positive integer"),
        (lambda: DNFs(4, 0, 2), "at least one term"),
        (lambda: DecisionTrees(4, 5), "depth 1 to 4"),
        (lambda: Parities(40).members(), "cannot be listed"),
        (lambda: Parities(3).sample(2)(torch.ones(2, 4)), "Inputs are \\(m, 3\\)"),
        (lambda: Parities(3).sample(2).labels(torch.ones(2, 3)), "one function"),
        (lambda: cross_predictability(CallableFamily(3, lambda g: torch.ones)), "use estimate_cross_predictability"),
        (lambda: cross_predictability(Parities(3), UniformInputs(4)), "4 coordinates"),
        (lambda: ProductInputs(2.0, 3), "in \\[-1, 1\\]"),
        (lambda: TableInputs(torch.ones(4)), "add up to 1"),
        (lambda: SampledInputs(2, lambda c, g: torch.zeros(c, 2)).sample(3), "values are -1 or 1"),
        (lambda: SampledInputs(2, lambda c, g: torch.ones(c, 3)).sample(3), "shape"),
        (lambda: cross_predictability(Majorities(3), SampledInputs(3, lambda c, g: torch.ones(c, 3))), "TableInputs"),
        (lambda: walsh_coefficients(torch.ones(3)), "2\\^n columns"),
        (lambda: estimate_cross_predictability(Parities(3), draws=1), "at least"),
        (lambda: sampled_predictability(0.5, 0), "at least one draw"),
        (lambda: growth_of([1, 2, 3], [0.1, 0.2, 0.3]), "five"),
        (lambda: label_spectrum(Majorities(16)), "spectra are for up to"),
    ],
)
def test_bad_input_is_refused_in_words(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.slow
def test_64_tables_of_20_coordinates() -> None:
    tables = Halfspaces(20).sample(64, rng()).table()
    gram = table_correlations(tables)
    assert torch.equal(gram.diagonal(), torch.ones(64, dtype=torch.float64))
    coefficients = walsh_coefficients(tables)
    assert torch.allclose(coefficients.square().sum(1), torch.ones(64), atol=1e-4)
    some = coefficients[:8].double()
    assert torch.allclose(some @ some.t(), gram[:8, :8], atol=1e-6)
