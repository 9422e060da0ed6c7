import pytest
import torch

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import low_rank_eigh
from tests.linalg.spectra import DTYPES, seeded, symmetric

SIZE, RANK = 60, 20


def spectrum(rank: int) -> torch.Tensor:
    """Falling by a factor of 1000, then zeros."""
    values = torch.zeros(SIZE, dtype=torch.float64)
    values[:rank] = torch.logspace(1, -2, rank, dtype=torch.float64)
    return values


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_are_the_nonzero_ones_of_the_full_decomposition(dtype):
    matrix = symmetric(spectrum(RANK), dtype)
    values, vectors = low_rank_eigh(matrix, RANK)
    truth, full = torch.linalg.eigh(matrix.double())
    eps = torch.finfo(dtype).eps
    assert values.dtype == vectors.dtype == dtype and vectors.shape == (SIZE, RANK)
    torch.testing.assert_close(values.double(), truth[-RANK:], rtol=0, atol=100 * eps * 10)
    overlap = (full[:, -RANK:].T @ vectors.double()).abs()
    # An eigenvector is as sure as its gap: 100 rounding errors of the largest eigenvalue over the smallest gap.
    gap = float(truth[-RANK:].diff().min())
    torch.testing.assert_close(overlap, torch.eye(RANK).double(), rtol=0, atol=1000 * eps / gap)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 1, 7, RANK])
def test_a_rank_below_the_bound_leaves_zeros_and_orthonormal_vectors(rank, dtype):
    matrix = symmetric(spectrum(rank), dtype)
    values, vectors = low_rank_eigh(matrix, RANK)
    eps = torch.finfo(dtype).eps
    assert not (values < 0).any() and not (values[: RANK - rank] > 1000 * eps).any()
    torch.testing.assert_close((vectors * values) @ vectors.T, matrix, rtol=0, atol=1000 * eps)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(RANK, dtype=dtype), rtol=0, atol=50 * eps)


def test_the_bound_may_be_the_size():
    matrix = symmetric(torch.linspace(1, 2, 9, dtype=torch.float64))
    values, vectors = low_rank_eigh(matrix, 9)
    torch.testing.assert_close((vectors * values) @ vectors.T, matrix)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_larger_rank_than_promised_is_noticed(dtype):
    with pytest.raises(NumericsError, match="its rank is larger"):
        low_rank_eigh(symmetric(spectrum(RANK + 2), dtype), RANK)


def test_non_finite_entries_are_an_error():
    matrix = symmetric(spectrum(RANK))
    matrix[3, 4] = matrix[4, 3] = torch.nan
    with pytest.raises(NumericsError):
        low_rank_eigh(matrix, RANK)


@pytest.mark.parametrize("rank", [0, SIZE + 1])
def test_an_impossible_rank_is_refused(rank):
    with pytest.raises(InputError, match="between 1 and the size 60"):
        low_rank_eigh(symmetric(spectrum(RANK)), rank)


def test_the_same_matrix_gives_the_same_bits_and_no_random_state_is_touched():
    rows = torch.randn(RANK, SIZE, generator=seeded(3))
    before = torch.get_rng_state()
    first, second = (low_rank_eigh(rows.T @ rows, RANK) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_decomposed_in_single(dtype):
    rows = torch.randint(-1, 2, (RANK, SIZE), generator=seeded(4), dtype=torch.float32)
    matrix = (rows.T @ rows).to(dtype)  # of small integers: no rounding, which would be of full rank
    values, vectors = low_rank_eigh(matrix, RANK)
    truth, full = low_rank_eigh(matrix.float(), RANK)
    assert values.dtype == vectors.dtype == dtype
    assert torch.equal(values, truth.to(dtype)) and torch.equal(vectors, full.to(dtype))


def test_autocast_changes_no_bit():
    matrix = symmetric(spectrum(RANK), torch.float32)
    plain = low_rank_eigh(matrix, RANK)
    with torch.autocast("cpu", torch.bfloat16):
        cast = low_rank_eigh(matrix, RANK)
    assert torch.equal(plain[0], cast[0]) and torch.equal(plain[1], cast[1])
