"""Hutchinson, Hutch++, XTrace and the diagonal estimators against dense truth.

Statistical tests fix the seed and use a tolerance of 4.5 standard errors of what they average, so a correct estimator
fails one such comparison with probability below 1e-5 over the choice of the seed.
"""

import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.linalg import hutchinson_diag, hutchinson_trace, hutchpp, xdiag, xtrace
from tests.linalg.spectra import DTYPES, SPECTRA, Counted, seeded, symmetric

SIGMAS = 4.5
TRACES = {"hutchinson": (hutchinson_trace, 30), "hutchpp": (hutchpp, 30), "xtrace": (xtrace, 15)}
DIAGONALS = {"hutchinson": (hutchinson_diag, 30), "xdiag": (xdiag, 15)}


def repeated(estimator, matrix, count, repetitions):
    generator = seeded(0)
    runs = [
        estimator(lambda v: v @ matrix, len(matrix), count, dtype=matrix.dtype, generator=generator)
        for _ in range(repetitions)
    ]
    return torch.stack([run.estimate for run in runs]), torch.stack([run.standard_error for run in runs])


@pytest.mark.parametrize("spectrum", ["geometric", "flat", "power_law"])
@pytest.mark.parametrize("name", TRACES)
def test_trace_estimators_are_unbiased_and_their_standard_error_is_the_spread_they_have(name, spectrum):
    estimator, count = TRACES[name]
    matrix = symmetric(SPECTRA[spectrum](80))
    estimates, errors = repeated(estimator, matrix, count, repetitions=400)
    spread = estimates.std()
    assert abs(estimates.mean() - matrix.trace()) < SIGMAS * spread / 400**0.5
    claimed = errors.square().mean().sqrt()
    assert 0.6 < float(claimed / spread) < 1.4


@pytest.mark.parametrize("spectrum", ["geometric", "flat"])
@pytest.mark.parametrize("name", DIAGONALS)
def test_diagonal_estimators_are_unbiased_and_their_standard_error_is_the_spread_they_have(name, spectrum):
    estimator, count = DIAGONALS[name]
    matrix = symmetric(SPECTRA[spectrum](60))
    estimates, errors = repeated(estimator, matrix, count, repetitions=300)
    spread = estimates.std(0)
    assert bool(((estimates.mean(0) - matrix.diagonal()).abs() < SIGMAS * spread / 300**0.5).all())
    assert 0.6 < float(errors.square().mean().sqrt() / spread.square().mean().sqrt()) < 1.4


def test_hutchinson_variance_is_the_closed_form_for_signs_and_for_gaussian_vectors():
    matrix = symmetric(SPECTRA["flat"](20))
    off_diagonal = matrix.square().sum() - matrix.diagonal().square().sum()
    for distribution, variance in (("rademacher", 2 * off_diagonal), ("gaussian", 2 * matrix.square().sum())):
        run = hutchinson_trace(
            lambda v: v @ matrix,
            20,
            40_000,
            distribution=distribution,
            batch_size=5000,
            dtype=torch.float64,
            generator=seeded(1),
        )
        # The relative standard error of a variance from n samples with kurtosis below 6 is below sqrt(5 / n) = 1.1 %.
        assert float(run.standard_error**2 * 40_000 / variance) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batched_accumulation_of_the_diagonal_equals_the_plain_mean_and_standard_error(batch_size):
    matrix = symmetric(SPECTRA["flat"](9))
    seen = []

    def matvec(rows):
        seen.append(rows * (rows @ matrix))
        return rows @ matrix

    run = hutchinson_diag(matvec, 9, 10, batch_size=batch_size, dtype=torch.float64, generator=seeded(2))
    samples = torch.cat(seen)
    torch.testing.assert_close(run.estimate, samples.mean(0))
    torch.testing.assert_close(run.standard_error, samples.std(0) / 10**0.5)


def test_one_vector_of_signs_is_exact_on_a_diagonal_matrix():
    diagonal = torch.linspace(-1, 5, 30, dtype=torch.float64)
    assert hutchinson_trace(lambda v: v * diagonal, 30, 1, dtype=torch.float64).estimate == pytest.approx(60.0)
    run = hutchinson_diag(lambda v: v * diagonal, 30, 1, dtype=torch.float64)
    torch.testing.assert_close(run.estimate, diagonal)
    assert bool(torch.isinf(run.standard_error).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_low_rank_matrices_are_exact_for_hutchpp_xtrace_and_xdiag(rank, dtype):
    truth = torch.cat([1 + torch.arange(rank), torch.zeros(100 - rank)]).double()
    matrix = symmetric(truth, dtype)
    atol = 500 * torch.finfo(dtype).eps * float(truth.sum())

    def run(estimator, count):
        return estimator(lambda v: v @ matrix, 100, count, dtype=dtype, generator=seeded(3))

    for result in (run(hutchpp, 3 * rank + 2), run(xtrace, rank + 1)):
        assert float(result.estimate) == pytest.approx(float(truth.sum()), abs=atol)
        assert float(result.standard_error) < atol
    result = run(xdiag, rank + 1)
    torch.testing.assert_close(result.estimate, matrix.diagonal(), rtol=0, atol=atol)
    assert float(result.standard_error.max()) < atol


def test_one_probe_fewer_than_the_rank_needs_is_not_exact():
    matrix = symmetric(torch.cat([torch.ones(10), torch.zeros(90)]))
    result = xtrace(lambda v: v @ matrix, 100, 10, dtype=torch.float64, generator=seeded(4))
    assert abs(float(result.estimate) - 10) > 1e-6 and float(result.standard_error) > 1e-6


def xtrace_by_definition(matrix, probes):
    """Algorithm 1.2 of the paper with Gaussian probes, one projector per probe."""
    dim, count = len(matrix), len(probes)
    estimates = []
    for i in range(count):
        others = torch.cat([probes[:i], probes[i + 1 :]])
        basis = torch.linalg.qr((others @ matrix).T).Q
        v = probes[i] - basis @ (basis.T @ probes[i])
        low_rank_part = (basis.T @ matrix @ basis).trace()
        estimates.append(low_rank_part + (dim - count + 1) * (v @ matrix @ v) / (v @ v))
    return torch.stack(estimates)


@pytest.mark.parametrize("spectrum", ["flat", "geometric"])
def test_xtrace_equals_its_leave_one_out_definition(spectrum):
    matrix = symmetric(SPECTRA[spectrum](40))
    probes = torch.randn(6, 40, dtype=torch.float64, generator=seeded(5))
    expected = xtrace_by_definition(matrix, probes)
    result = xtrace(lambda v: v @ matrix, 40, 6, dtype=torch.float64, generator=seeded(5))
    assert float(result.estimate) == pytest.approx(float(expected.mean()), rel=1e-10)
    assert float(result.standard_error) == pytest.approx(float(expected.std() / 6**0.5), rel=1e-8)


def test_on_a_decaying_spectrum_hutchpp_beats_hutchinson_and_xtrace_beats_hutchpp_at_equal_products():
    matrix = symmetric(SPECTRA["power_law"](120))
    spreads = [
        float(repeated(estimator, matrix, count, 100)[0].sub(matrix.trace()).square().mean().sqrt())
        for estimator, count in TRACES.values()
    ]
    assert spreads[0] > 2 * spreads[1] and spreads[1] > 1.1 * spreads[2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 6])
def test_small_matrices_are_exact_once_the_products_would_pay_for_all_columns(dim, dtype):
    matrix = symmetric(torch.linspace(-1, 3, dim), dtype)
    for estimator, exact in ((hutchpp, matrix.trace()), (xtrace, matrix.trace()), (xdiag, matrix.diagonal())):
        result = estimator(lambda v: v @ matrix, dim, 6, dtype=dtype)
        torch.testing.assert_close(result.estimate, exact)
        assert result.matvecs == dim and float(result.standard_error.abs().max()) == 0


@pytest.mark.parametrize("estimator", [hutchinson_trace, hutchpp, xtrace, hutchinson_diag, xdiag])
def test_zero_matrix_is_exactly_zero(estimator):
    result = estimator(lambda v: 0 * v, 50, 6, generator=seeded(6))
    assert float(result.estimate.abs().max()) == 0 and float(result.standard_error.max()) == 0


@pytest.mark.parametrize(("estimator", "count"), [*TRACES.values(), *DIAGONALS.values()])
def test_products_are_counted_and_results_repeat_with_the_generator(estimator, count):
    matvec = Counted(symmetric(SPECTRA["flat"](70), torch.float32))
    first = estimator(matvec, 70, count, generator=seeded(7))
    assert first.matvecs == matvec.vectors <= 30
    assert first.estimate.dtype == torch.float32
    assert torch.equal(first.estimate, estimator(matvec, 70, count, generator=seeded(7)).estimate)


@pytest.mark.parametrize(
    ("estimator", "count"), [(hutchinson_trace, 0), (hutchinson_diag, 0), (hutchpp, 2), (xtrace, 1), (xdiag, 1)]
)
def test_too_few_probes_are_refused(estimator, count):
    with pytest.raises(InputError):
        estimator(lambda v: v, 10, count)
