import pytest
import torch

from tangentlab.errors import InputError
from tangentlab.linalg import dense, in_batches, random_rows
from tests.linalg.spectra import DTYPES, Counted, seeded, symmetric


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_rebuilds_the_matrix(dtype):
    matrix = symmetric(torch.linspace(-1, 1, 7), dtype)
    assert torch.equal(dense(lambda v: v @ matrix, 7, dtype=dtype), matrix)


@pytest.mark.parametrize("size", [1, 3, 10])
def test_batched_products_agree_and_are_bounded_in_size(size):
    matvec = Counted(symmetric(torch.linspace(-1, 1, 7)))
    rows = torch.randn(8, 7, dtype=torch.float64, generator=seeded(0))
    torch.testing.assert_close(in_batches(matvec, size)(rows), rows @ matvec.matrix)
    assert matvec.calls == -(-8 // size)
    with pytest.raises(InputError):
        in_batches(matvec, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_random_rows_are_centred_with_unit_covariance(distribution, dtype):
    rows = random_rows(20_000, 3, distribution, dtype=dtype, generator=seeded(1))
    assert rows.dtype == dtype
    # Each of the nine entries has standard error at most sqrt(2 / 20000) = 0.01; five of them.
    torch.testing.assert_close(rows.T @ rows / 20_000, torch.eye(3, dtype=dtype), rtol=0, atol=0.05)
    assert float(rows.mean(0).abs().max()) < 5 / 20_000**0.5
    if distribution == "rademacher":
        assert set(rows.unique().tolist()) == {-1.0, 1.0}


def test_random_rows_repeat_with_the_generator_and_refuse_nonsense():
    assert torch.equal(random_rows(2, 5, generator=seeded(2)), random_rows(2, 5, generator=seeded(2)))
    with pytest.raises(InputError, match="Unknown distribution"):
        random_rows(2, 5, "cauchy")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dim"):
        random_rows(2, 0)
