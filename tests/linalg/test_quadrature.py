"""Stochastic Lanczos quadrature; seeds are fixed and statistical comparisons allow 4.5 standard errors."""

import pytest
import torch

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import lanczos_quadrature, slq_logdet, slq_trace, spectral_density
from tests.linalg.spectra import DTYPES, SPECTRA, Counted, seeded, symmetric


@pytest.mark.parametrize("name", SPECTRA)
def test_weights_sum_to_one_and_nodes_lie_within_the_spectrum(name):
    truth = SPECTRA[name](50)
    matrix = symmetric(truth)
    quadrature = lanczos_quadrature(lambda v: v @ matrix, 50, 4, 12, dtype=torch.float64, generator=seeded(0))
    assert quadrature.nodes.shape == quadrature.weights.shape == (4, 12) and quadrature.matvecs == 48
    torch.testing.assert_close(quadrature.weights.sum(1), torch.ones(4, dtype=torch.float64))
    assert float(quadrature.nodes.min()) >= float(truth.min()) - 1e-12
    assert float(quadrature.nodes.max()) <= float(truth.max()) + 1e-12


def test_gauss_quadrature_is_exact_for_polynomials_below_twice_the_steps():
    matrix = symmetric(SPECTRA["flat"](30))
    start = 2.0 * torch.randint(0, 2, (1, 30), dtype=torch.int8, generator=seeded(1)).double() - 1
    quadrature = lanczos_quadrature(lambda v: v @ matrix, 30, 1, 4, dtype=torch.float64, generator=seeded(1))
    for degree in range(8):
        exact = (start @ torch.linalg.matrix_power(matrix, degree) @ start.T).item() / 30
        assert float((quadrature.weights * quadrature.nodes**degree).sum()) == pytest.approx(exact, rel=1e-12)
    exact = (start @ torch.linalg.matrix_power(matrix, 8) @ start.T).item() / 30
    assert float((quadrature.weights * quadrature.nodes**8).sum()) != pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["power_law", "flat", "rank_deficient", "identity"])
def test_damped_log_determinant_agrees_with_the_dense_one(name, dtype):
    truth = SPECTRA[name](100)
    matrix = symmetric(truth, dtype)
    result = slq_logdet(lambda v: v @ matrix, 100, damping=0.1, probes=30, steps=25, dtype=dtype, generator=seeded(2))
    assert result.estimate.dtype == dtype
    exact = float((truth + 0.1).log().sum())
    assert abs(float(result.estimate) - exact) <= 4.5 * float(result.standard_error) + 1e-4 * abs(exact)
    assert result.matvecs == 750


@pytest.mark.parametrize("dtype", DTYPES)
def test_exhausted_krylov_spaces_are_exact(dtype):
    result = slq_logdet(lambda v: 3 * v, 40, probes=2, steps=10, dtype=dtype, generator=seeded(3))
    assert float(result.estimate) == pytest.approx(40 * torch.tensor(3.0).log().item(), rel=1e-5)
    assert float(result.standard_error) < 1e-4
    result = slq_trace(lambda v: v @ torch.tensor([[5.0]], dtype=dtype), 1, torch.sqrt, dtype=dtype)
    assert float(result.estimate) == pytest.approx(5**0.5, rel=1e-6)


def test_trace_of_a_function_is_unbiased_over_probes():
    truth = SPECTRA["power_law"](60)
    matrix = symmetric(truth)
    result = slq_trace(
        lambda v: v @ matrix, 60, torch.exp, probes=400, steps=15, dtype=torch.float64, generator=seeded(4)
    )
    assert abs(float(result.estimate - truth.exp().sum())) < 4.5 * float(result.standard_error)
    assert float(result.standard_error) < 0.02 * float(truth.exp().sum())


def test_standard_error_is_the_spread_of_the_estimate():
    matrix = symmetric(SPECTRA["flat"](40))
    generator = seeded(5)
    runs = [
        slq_trace(lambda v: v @ matrix, 40, torch.log, probes=8, steps=10, dtype=torch.float64, generator=generator)
        for _ in range(150)
    ]
    spread = torch.stack([run.estimate for run in runs]).std()
    claimed = torch.stack([run.standard_error for run in runs]).square().mean().sqrt()
    assert 0.75 < float(claimed / spread) < 1.33


def test_singular_or_indefinite_matrices_have_no_log_determinant_without_damping():
    singular, indefinite = symmetric(SPECTRA["rank_deficient"](30)), symmetric(torch.linspace(-1, 1, 30))
    with pytest.raises(NumericsError, match="give a damping above"):
        slq_logdet(lambda v: v @ singular, 30, dtype=torch.float64)
    with pytest.raises(NumericsError, match="give a damping above"):
        slq_logdet(lambda v: 0 * v, 30, dtype=torch.float64)
    with pytest.raises(NumericsError, match="negative eigenvalue"):
        slq_logdet(lambda v: v @ indefinite, 30, damping=2.0, dtype=torch.float64)
    with pytest.raises(InputError):
        slq_logdet(lambda v: v, 30, damping=-1.0)
    with pytest.raises(NumericsError, match="not finite"):
        slq_trace(lambda v: 0 * v, 30, torch.log)


def test_small_dampings_of_large_float32_matrices_are_allowed():
    diagonal = (1 + torch.arange(50_000)) ** -1.0
    result = slq_logdet(lambda v: v * diagonal, 50_000, damping=1e-3, probes=2, steps=40, generator=seeded(10))
    exact = float((diagonal.double() + 1e-3).log().sum())
    assert float(result.estimate) == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize("steps", [3, 6, 12, 24])
def test_error_estimate_covers_the_quadrature_where_the_probes_agree(steps):
    """Signs see a diagonal matrix exactly, so what is left is the quadrature error alone."""
    diagonal = (1 + torch.arange(500, dtype=torch.float64)) ** -1.0
    exact = float((diagonal + 1e-2).log().sum())

    def run(count):
        return slq_logdet(
            lambda v: v * diagonal, 500, damping=1e-2, probes=3, steps=count, dtype=torch.float64, generator=seeded(11)
        )

    error, coarse_error = (abs(float(run(count).estimate) - exact) for count in (steps, 3 * steps // 4))
    assert error <= float(run(steps).standard_error) <= 1.01 * (error + coarse_error)


def test_truncation_is_the_quadrature_of_fewer_steps():
    matrix = symmetric(SPECTRA["flat"](30))
    long, short = (
        lanczos_quadrature(lambda v: v @ matrix, 30, 3, steps, dtype=torch.float64, generator=seeded(12))
        for steps in (9, 4)
    )
    torch.testing.assert_close(long.truncated(4).nodes, short.nodes)
    torch.testing.assert_close(long.truncated(4).weights, short.weights)
    assert long.truncated(4).matvecs == short.matvecs == 12


def test_rounding_size_negative_nodes_of_a_singular_float32_matrix_do_no_harm_under_damping():
    matrix = symmetric(SPECTRA["rank_deficient"](30), torch.float32)
    result = slq_logdet(lambda v: v @ matrix, 30, damping=1.0, probes=40, generator=seeded(6))
    exact = float((SPECTRA["rank_deficient"](30) + 1).log().sum())
    assert abs(float(result.estimate) - exact) < 4.5 * float(result.standard_error)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_density_integrates_to_one(name, dtype):
    matrix = symmetric(SPECTRA[name](40), dtype)
    result = spectral_density(lambda v: v @ matrix, 40, probes=4, steps=20, dtype=dtype, generator=seeded(7))
    assert result.grid.dtype == result.density.dtype == dtype
    mass = torch.trapezoid(result.density.double(), result.grid.double())
    assert float(mass) == pytest.approx(1.0, abs=1e-5 if dtype == torch.float64 else 1e-3)


def test_density_agrees_with_the_smoothed_dense_spectrum_within_its_error():
    truth = SPECTRA["flat"](100)
    matrix = symmetric(truth)
    result = spectral_density(
        lambda v: v @ matrix, 100, probes=60, steps=100, width=0.1, dtype=torch.float64, generator=seeded(8)
    )
    kernels = torch.exp(-0.5 * ((result.grid[:, None] - truth) / 0.1) ** 2) / (0.1 * (2 * torch.pi) ** 0.5)
    gap = (result.density - kernels.mean(1)).abs()
    # 4.5 standard errors everywhere; 1e-3 is a thousandth of the peak, for the tails where both vanish.
    assert bool((gap < 4.5 * result.standard_error + 1e-3).all())
    assert float(result.standard_error.max()) < 0.1 * float(kernels.mean(1).max())


def test_density_on_a_given_grid_is_not_renormalized():
    matrix = torch.diag(torch.tensor([0.0, 1.0], dtype=torch.float64))
    grid = torch.linspace(0.5, 1.5, 200, dtype=torch.float64)
    result = spectral_density(lambda v: v @ matrix, 2, width=0.05, grid=grid, dtype=torch.float64, generator=seeded(9))
    assert float(torch.trapezoid(result.density, grid)) == pytest.approx(0.5, abs=1e-6)


def test_batches_of_probes_bound_the_vectors_per_product():
    matvec = Counted(symmetric(SPECTRA["flat"](20)))
    lanczos_quadrature(matvec, 20, 5, 3, batch_size=2, dtype=torch.float64)
    assert matvec.calls == 9 and matvec.vectors == 15


def test_wrong_options_are_refused():
    for call in (
        lambda: lanczos_quadrature(lambda v: v, 5, 0, 3),
        lambda: lanczos_quadrature(lambda v: v, 5, 3, 0),
        lambda: lanczos_quadrature(lambda v: v, 5, 3, 2, distribution="cauchy"),  # type: ignore[arg-type]
        lambda: spectral_density(lambda v: v, 5, width=-1.0),
    ):
        with pytest.raises(InputError):
            call()
