import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import lanczos
from tests.linalg.spectra import DTYPES, SPECTRA, Counted, seeded, symmetric

WANTED = {
    "top": lambda s: s.sort(descending=True).values,
    "bottom": lambda s: s.sort().values,
    "magnitude": lambda s: s[(-s.abs()).argsort()],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", ["top", "bottom"])
@pytest.mark.parametrize("name", SPECTRA)
def test_pairs_agree_with_the_dense_spectrum_including_multiplicity(name, which, dtype):
    truth = SPECTRA[name](150)
    matvec = Counted(symmetric(truth, dtype))
    result = lanczos(matvec, 150, 8, which=which, dtype=dtype, generator=seeded(0))
    assert result.converged and result.eigenvalues.dtype == result.eigenvectors.dtype == dtype
    scale = float(truth.abs().max())
    atol = 100 * torch.finfo(dtype).eps * scale
    torch.testing.assert_close(result.eigenvalues.double(), WANTED[which](truth)[:8], rtol=0, atol=atol)
    identity = torch.eye(8, dtype=dtype)
    torch.testing.assert_close(result.eigenvectors @ result.eigenvectors.T, identity, rtol=0, atol=1e-5)
    assert result.matvecs == matvec.vectors


@pytest.mark.parametrize("block_size", [1, 2, 3, 7])
@pytest.mark.parametrize("multiplicity", [2, 5, 9])
def test_every_copy_of_a_repeated_top_eigenvalue_is_found_whatever_the_block_size(multiplicity, block_size):
    truth = torch.cat([torch.full((multiplicity,), 10.0), torch.linspace(0, 8, 200 - multiplicity)]).double()
    matrix = symmetric(truth)
    result = lanczos(lambda v: v @ matrix, 200, 7, block_size=block_size, dtype=torch.float64, generator=seeded(1))
    torch.testing.assert_close(result.eigenvalues, WANTED["top"](truth)[:7], rtol=0, atol=1e-9)


def test_magnitude_takes_both_ends_of_an_indefinite_spectrum():
    truth = torch.linspace(-4, 3.3, 120, dtype=torch.float64) ** 3
    matrix = symmetric(truth)
    result = lanczos(lambda v: v @ matrix, 120, 30, which="magnitude", dtype=torch.float64, generator=seeded(2))
    torch.testing.assert_close(result.eigenvalues, WANTED["magnitude"](truth)[:30], rtol=0, atol=1e-8)
    assert bool((result.eigenvalues > 0).any()) and bool((result.eigenvalues < 0).any())


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_norms_are_true_and_bound_the_distance_to_the_spectrum(dtype):
    truth = SPECTRA["power_law"](200)
    matrix = symmetric(truth, dtype)
    result = lanczos(lambda v: v @ matrix, 200, 5, tol=1e-3, dtype=dtype, generator=seeded(3))
    rows = result.eigenvectors
    residuals = (rows @ matrix - result.eigenvalues[:, None] * rows).norm(dim=1)
    torch.testing.assert_close(result.residual_norms, residuals, rtol=1e-3, atol=1e-6)
    distance = (result.eigenvalues.double()[:, None] - truth).abs().amin(1)
    assert bool((distance <= result.residual_norms.double() + 10 * torch.finfo(dtype).eps).all())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.sampled_from(["top", "bottom", "magnitude"]))
def test_k_beyond_dim_returns_every_pair(dim, k, which):
    truth = torch.linspace(-1, 2.3, dim, dtype=torch.float64)
    matrix = symmetric(truth)
    result = lanczos(lambda v: v @ matrix, dim, k, which=which, dtype=torch.float64)
    assert result.eigenvectors.shape == (min(k, dim), dim)
    torch.testing.assert_close(result.eigenvalues, WANTED[which](truth)[:k], rtol=0, atol=1e-13)


def test_easy_spectra_take_few_products():
    matvec = Counted(symmetric(0.5 ** torch.arange(500, dtype=torch.float64)))
    result = lanczos(matvec, 500, 5, dtype=torch.float64, generator=seeded(4))
    assert result.converged and matvec.vectors < 100


def test_hard_spectra_of_moderate_size_end_in_the_dense_decomposition():
    truth = torch.cat([torch.linspace(0, 1e-6, 50), torch.linspace(0.1, 1, 150)]).double()
    matrix = symmetric(truth)
    result = lanczos(lambda v: v @ matrix, 200, 4, which="bottom", dtype=torch.float64, generator=seeded(5))
    assert result.converged and result.matvecs <= 2 * 200 + 40
    torch.testing.assert_close(result.eigenvalues, truth[:4], rtol=0, atol=1e-12)


def test_same_generator_gives_the_same_bits():
    matrix = symmetric(SPECTRA["flat"](100))
    first, second = (lanczos(lambda v: v @ matrix, 100, 3, dtype=torch.float64, generator=seeded(6)) for _ in range(2))
    assert torch.equal(first.eigenvectors, second.eigenvectors)


def test_failure_is_reported_or_raised_and_never_called_converged():
    matrix = symmetric(torch.linspace(0, 1, 300, dtype=torch.float64))

    def run(on_failure):
        return lanczos(
            lambda v: v @ matrix,
            300,
            4,
            max_restarts=1,
            on_failure=on_failure,
            dtype=torch.float64,
            generator=seeded(7),
        )

    result = run("report")
    assert not result.converged and "limit of 1 restarts" in result.message
    assert float(result.residual_norms.max()) > 1e-6
    with pytest.raises(NumericsError, match="restarts"):
        run("raise")


def test_a_matrix_that_changes_between_products_is_not_called_converged():
    matrix = symmetric(0.5 ** torch.arange(200, dtype=torch.float64))
    noise = seeded(8)

    def noisy(rows):
        return rows @ matrix * (1 + 1e-3 * torch.rand((), dtype=torch.float64, generator=noise))

    assert not lanczos(noisy, 200, 3, max_restarts=5, dtype=torch.float64, generator=seeded(9)).converged


@pytest.mark.parametrize(
    "options", [{"k": 0}, {"which": "middle"}, {"block_size": 0}, {"basis_size": 5}, {"max_restarts": 0}]
)
def test_options_without_meaning_are_refused(options):
    with pytest.raises(InputError):
        lanczos(lambda v: v, 100, **{"k": 4, **options})


def test_a_second_copy_that_converges_slowly_is_not_missed_for_a_value_close_below_it():
    truth = torch.cat([torch.ones(2), torch.linspace(0, 0.999, 998)]).double()
    options = {"block_size": 1, "basis_size": 12, "tol": 1e-6, "dtype": torch.float64, "generator": seeded(1)}
    result = lanczos(lambda v: v * truth, 1000, 2, **options)
    assert result.converged and result.matvecs < 1000
    torch.testing.assert_close(result.eigenvalues, torch.ones(2).double(), rtol=0, atol=1e-9)
