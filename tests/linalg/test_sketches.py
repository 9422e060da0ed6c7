import pytest
import torch

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import conjugate_gradients, nystrom, orthonormal_rows, randomized_svd, range_finder
from tangentlab.linalg.orthonormalize import leave_one_out_rows
from tests.linalg.spectra import DTYPES, SPECTRA, Counted, seeded, symmetric


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_orthonormal_rows_span_the_rows_and_count_their_rank(rank, dtype):
    rows = torch.randn(5, rank, dtype=dtype, generator=seeded(0)) @ torch.randn(
        rank, 30, dtype=dtype, generator=seeded(1)
    )
    basis = orthonormal_rows(rows)
    assert basis.shape == (rank, 30)
    torch.testing.assert_close(basis @ basis.T, torch.eye(rank, dtype=dtype), rtol=0, atol=1e-5)
    torch.testing.assert_close(rows @ basis.T @ basis, rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize("weak", [None, 1.0, 1e-3])
def test_leave_one_out_directions_give_the_projector_without_each_row(weak):
    rows = torch.randn(4, 12, dtype=torch.float64, generator=seeded(2))
    if weak is not None:
        rows[3] = weak * rows[0] - 2 * rows[1]
    basis, directions = leave_one_out_rows(rows)
    for i in range(4):
        rest = orthonormal_rows(torch.cat([rows[:i], rows[i + 1 :]]))
        core = torch.eye(len(basis), dtype=torch.float64) - torch.outer(directions[i], directions[i])
        torch.testing.assert_close(basis.T @ core @ basis, rest.T @ rest, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_range_of_a_low_rank_matrix_is_found_completely(dtype):
    matrix = symmetric(SPECTRA["rank_deficient"](60), dtype)
    basis = range_finder(lambda v: v @ matrix, 60, 8, dtype=dtype, generator=seeded(3))
    assert basis.shape == (5, 60)
    torch.testing.assert_close(matrix @ basis.T @ basis, matrix, rtol=0, atol=1e-4)


def test_power_iterations_sharpen_the_range_of_a_slow_spectrum():
    matrix = symmetric(SPECTRA["power_law"](200))

    def missed(power_iterations):
        basis = range_finder(
            lambda v: v @ matrix,
            200,
            10,
            power_iterations=power_iterations,
            dtype=torch.float64,
            generator=seeded(4),
        )
        return float((matrix - matrix @ basis.T @ basis).norm())

    assert missed(2) < 0.9 * missed(0)
    assert missed(2) < 1.05 * float(SPECTRA["power_law"](200)[10:].norm())


@pytest.mark.parametrize(("options", "products"), [({}, 10), ({"power_iterations": 2}, 50)])
def test_a_range_costs_the_products_that_it_says(options, products):
    matvec = Counted(symmetric(SPECTRA["power_law"](60)))
    range_finder(matvec, 60, 10, dtype=torch.float64, generator=seeded(4), **options)
    assert matvec.vectors == products


def test_range_of_the_zero_matrix_is_empty():
    assert range_finder(lambda v: 0 * v, 20, 5, power_iterations=2).shape == (0, 20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(30, 80), (80, 30), (1, 6), (6, 1)])
def test_singular_triplets_of_a_low_rank_rectangular_matrix_are_exact(shape, dtype):
    rank = min(4, *shape)
    left = torch.randn(shape[0], rank, dtype=dtype, generator=seeded(5))
    matrix = left @ torch.randn(rank, shape[1], dtype=dtype, generator=seeded(6))
    result = randomized_svd(lambda v: v @ matrix.T, lambda v: v @ matrix, shape[1], 4, dtype=dtype, generator=seeded(7))
    exact = torch.linalg.svdvals(matrix)[:rank]
    scale = float(exact[0])
    atol = 200 * torch.finfo(dtype).eps * scale
    torch.testing.assert_close(result.singular_values[:rank], exact, rtol=0, atol=atol)
    rebuilt = (result.left.T * result.singular_values) @ result.right
    torch.testing.assert_close(rebuilt, matrix, rtol=0, atol=atol)
    assert float(result.residual_norms.max()) < atol


def test_singular_value_residuals_bound_the_distance_to_a_singular_value():
    matrix = torch.randn(40, 60, dtype=torch.float64, generator=seeded(8))
    result = randomized_svd(
        lambda v: v @ matrix.T, lambda v: v @ matrix, 60, 5, dtype=torch.float64, generator=seeded(9)
    )
    distance = (result.singular_values[:, None] - torch.linalg.svdvals(matrix)).abs().amin(1)
    assert bool((distance <= result.residual_norms + 1e-12).all())
    assert float(result.residual_norms.max()) > 1e-3


def test_zero_matrix_has_no_singular_triplets():
    result = randomized_svd(lambda v: v.new_zeros(len(v), 7), lambda v: v.new_zeros(len(v), 5), 5, 3)
    assert result.left.shape == (0, 7) and result.right.shape == (0, 5) and result.singular_values.shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_nystrom_lies_between_zero_and_the_matrix(name, dtype):
    matrix = symmetric(SPECTRA[name](60), dtype)
    approximation = nystrom(lambda v: v @ matrix, 60, 10, dtype=dtype, generator=seeded(10))
    dense = approximation.matvec(torch.eye(60, dtype=dtype))
    rounding = 300 * torch.finfo(dtype).eps * max(float(matrix.norm()), 1e-30)
    assert float(torch.linalg.eigvalsh(matrix - dense).min()) > -rounding
    assert bool((approximation.eigenvalues > 0).all())
    assert bool((approximation.eigenvalues.diff() <= 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_nystrom_is_exact_for_low_rank_and_for_the_whole_space(dtype):
    low_rank = symmetric(SPECTRA["rank_deficient"](60), dtype)
    full = symmetric(SPECTRA["flat"](12), dtype)
    for matrix, rank in ((low_rank, 8), (full, 12), (full, 50)):
        dim = len(matrix)
        approximation = nystrom(lambda v, a=matrix: v @ a, dim, rank, dtype=dtype, generator=seeded(11))
        dense = approximation.matvec(torch.eye(dim, dtype=dtype))
        torch.testing.assert_close(dense, matrix, rtol=0, atol=1000 * torch.finfo(dtype).eps)
        assert len(approximation.eigenvalues) == min(5 if dim == 60 else dim, rank)


def test_nystrom_trace_error_stays_within_twice_its_expected_bound():
    truth = SPECTRA["power_law"](150)
    matrix = symmetric(truth)
    rank = 20
    bound = min(float((1 + k / (rank - k - 1)) * truth[k:].sum()) for k in range(rank - 1))
    generator = seeded(12)
    errors = [
        float(
            truth.sum()
            - nystrom(lambda v: v @ matrix, 150, rank, dtype=torch.float64, generator=generator).eigenvalues.sum()
        )
        for _ in range(20)
    ]
    assert 0 < sum(errors) / 20 < bound


def test_frobenius_error_estimate_agrees_with_the_true_error():
    matrix = symmetric(SPECTRA["power_law"](100))
    approximation = nystrom(lambda v: v @ matrix, 100, 15, dtype=torch.float64, generator=seeded(13))
    true = float((matrix - approximation.matvec(torch.eye(100, dtype=torch.float64))).square().sum())
    result = approximation.frobenius_error(lambda v: v @ matrix, 200, generator=seeded(14))
    assert abs(float(result.estimate) - true) < 4.5 * float(result.standard_error)


def test_damped_solve_with_the_approximation_inverts_it():
    matrix = symmetric(SPECTRA["geometric"](50))
    approximation = nystrom(lambda v: v @ matrix, 50, 10, dtype=torch.float64, generator=seeded(15))
    rows = torch.randn(3, 50, dtype=torch.float64, generator=seeded(16))
    solved = approximation.solve(rows, 0.01)
    torch.testing.assert_close(approximation.matvec(solved) + 0.01 * solved, rows, rtol=0, atol=1e-10)
    with pytest.raises(InputError, match="positive damping"):
        approximation.solve(rows, 0.0)


def test_nystrom_preconditioner_cuts_the_iterations_of_conjugate_gradients():
    matrix = symmetric(SPECTRA["power_law"](300) * 100)
    matvec = Counted(matrix + 1e-2 * torch.eye(300, dtype=torch.float64))
    rhs = torch.randn(2, 300, dtype=torch.float64, generator=seeded(17))
    approximation = nystrom(lambda v: v @ matrix, 300, 80, dtype=torch.float64, generator=seeded(18))
    plain, before = conjugate_gradients(matvec, rhs)
    solved, after = conjugate_gradients(matvec, rhs, preconditioner=lambda v: approximation.precondition(v, 1e-2))
    assert after.converged and after.iterations < before.iterations / 2
    torch.testing.assert_close(solved, plain, rtol=0, atol=1e-4)


def test_nystrom_of_the_zero_matrix_is_empty_and_of_an_indefinite_one_refused():
    approximation = nystrom(lambda v: 0 * v, 30, 5)
    assert approximation.eigenvalues.shape == (0,)
    rows = torch.ones(2, 30)
    assert torch.equal(approximation.matvec(rows), torch.zeros(2, 30))
    assert torch.equal(approximation.precondition(rows, 0.1), rows)
    with pytest.raises(NumericsError, match="not positive semi-definite"):
        nystrom(lambda v: -v, 30, 5)
