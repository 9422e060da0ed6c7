import pytest
import torch

from tangentlab.errors import InputError, NumericsError, SolveError
from tangentlab.linalg import damped_factor
from tests.linalg.spectra import DTYPES, seeded, symmetric


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(20,), (20, 3)])
def test_solve_and_logdet_agree_with_dense_truth(shape, dtype):
    matrix = symmetric(torch.linspace(0, 2, 20), dtype)
    factor = damped_factor(matrix, 0.3)
    rhs = torch.randn(shape, dtype=torch.float64, generator=seeded(0)).to(dtype)
    shifted = matrix + 0.3 * torch.eye(20, dtype=dtype)
    torch.testing.assert_close(factor.solve(rhs), torch.linalg.solve(shifted, rhs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(factor.logdet(), torch.logdet(shifted), rtol=1e-4, atol=1e-4)


def test_damping_below_the_rounding_of_a_singular_matrix_still_solves_by_the_spectrum():
    matrix = symmetric(torch.cat([torch.zeros(10), torch.ones(10)]))
    rhs = matrix @ torch.randn(20, dtype=torch.float64, generator=seeded(1))
    factor = damped_factor(matrix, 1e-18)
    torch.testing.assert_close(matrix @ factor.solve(rhs), rhs, rtol=0, atol=1e-12)
    assert float(factor.logdet()) == pytest.approx(10 * torch.tensor(1e-18, dtype=torch.float64).log().item(), rel=0.2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_damping_a_singular_matrix_is_an_error_or_the_pseudo_inverse(dtype):
    matrix = symmetric(torch.cat([torch.zeros(5), torch.linspace(1, 2, 10)]), dtype)
    with pytest.raises(SolveError, match="damping or noise above"):
        damped_factor(matrix)
    rhs = torch.randn(15, 2, dtype=torch.float64, generator=seeded(2)).to(dtype)
    expected = torch.linalg.pinv(matrix.double(), rtol=1e-4, hermitian=True).to(dtype) @ rhs
    torch.testing.assert_close(damped_factor(matrix, pseudo_inverse=True).solve(rhs), expected, rtol=0, atol=1e-5)


def test_indefinite_matrices_and_negative_dampings_are_refused():
    with pytest.raises(NumericsError, match="not positive semi-definite"):
        damped_factor(torch.diag(torch.tensor([-1.0, 1.0])), 0.5)
    with pytest.raises(InputError, match="negative"):
        damped_factor(torch.eye(2), -0.1)
