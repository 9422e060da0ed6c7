import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import safe_eigh, sym_matrix_pow, sym_pow
from tests.linalg.spectra import DTYPES, seeded, symmetric

powers = st.floats(-3, 3, allow_nan=False)
spectra = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6).map(lambda s: torch.tensor(s, dtype=torch.float64))


@given(spectra, powers, powers)
def test_powers_of_a_positive_spectrum_add(spectrum, p, q):
    torch.testing.assert_close(sym_pow(spectrum, p) * sym_pow(spectrum, q), sym_pow(spectrum, p + q), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [-2, -1, -0.5, 0, 0.5, 1, 2])
def test_zero_modes_stay_zero_under_every_power(power, dtype):
    spectrum = torch.tensor([0.0, 2.0, 4.0], dtype=dtype)
    expected = torch.tensor([0.0, 2.0**power, 4.0**power], dtype=dtype)
    torch.testing.assert_close(sym_pow(spectrum, power), expected)


def test_rounding_size_eigenvalues_of_either_sign_are_zero_modes_for_negative_and_fractional_powers():
    spectrum = torch.tensor([-1e-15, 1e-17, 1.0], dtype=torch.float64)
    assert sym_pow(spectrum, -1).tolist() == [0.0, 0.0, 1.0]
    assert sym_pow(spectrum, 0.5).tolist() == [0.0, 0.0, 1.0]
    assert sym_pow(torch.tensor([-1e-14, 1.0], dtype=torch.float64), -0.5).tolist() == [0.0, 1.0]


def test_integer_powers_of_indefinite_matrices_keep_the_sign_and_fractional_ones_are_refused():
    spectrum = torch.tensor([-2.0, 1.0])
    assert sym_pow(spectrum, -1).tolist() == [-0.5, 1.0]
    assert sym_pow(spectrum, 3).tolist() == [-8.0, 1.0]
    with pytest.raises(NumericsError, match="negative eigenvalue"):
        sym_pow(spectrum, 0.5)


def test_rtol_decides_what_is_zero():
    spectrum = torch.tensor([1e-3, 1.0])
    assert sym_pow(spectrum, -1, rtol=1e-2).tolist() == [0.0, 1.0]
    assert sym_pow(spectrum, -1, rtol=1e-4)[0] == pytest.approx(1e3)


def test_small_entries_of_a_long_diagonal_are_inverted_with_rtol_zero():
    diagonal = torch.logspace(0, -12, 100_000)
    torch.testing.assert_close(sym_pow(diagonal, -1, rtol=0.0), 1 / diagonal)
    assert sym_pow(torch.tensor([0.0, 1e-20, 1.0]), -1, rtol=0.0).tolist() == [0.0, pytest.approx(1e20), 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "rank"), [(2, 1), (50, 3), (400, 1), (400, 40)])
def test_zero_modes_of_a_rank_deficient_gram_are_recognized_by_default(size, rank, dtype):
    rows = torch.randn(rank, size, dtype=torch.float64, generator=seeded(0)).to(dtype)
    values = safe_eigh(rows.T @ rows)[0]
    assert int((sym_pow(values, -1) != 0).sum()) == rank


def test_empty_spectra_and_wrong_ones():
    assert sym_pow(torch.zeros(0), -1).shape == (0,)
    with pytest.raises(NumericsError):
        sym_pow(torch.tensor([float("nan")]), 2)
    with pytest.raises(InputError):
        sym_pow(torch.tensor([1, 2]), 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_power_minus_one_is_the_pseudo_inverse(dtype):
    matrix = symmetric(torch.tensor([0.0, 0.0, 1.0, 2.0, 5.0]), dtype)
    expected = torch.linalg.pinv(matrix.double(), hermitian=True, rtol=1e-5).to(dtype)
    torch.testing.assert_close(sym_matrix_pow(matrix, -1), expected, rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_square_root_squares_to_the_matrix(dtype):
    matrix = symmetric(torch.linspace(0, 4, 9), dtype)
    root = sym_matrix_pow(matrix, 0.5)
    torch.testing.assert_close(root @ root, matrix, rtol=0, atol=100 * torch.finfo(dtype).eps)
