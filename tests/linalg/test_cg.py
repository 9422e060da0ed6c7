import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tangentlab.errors import InputError, NumericsError, SolveError
from tangentlab.linalg import conjugate_gradients
from tests.linalg.spectra import DTYPES, Counted, rotation, seeded, symmetric


def system(eigenvalues, dtype=torch.float64, rhs=3):
    matrix = symmetric(eigenvalues, dtype)
    return Counted(matrix), torch.randn(rhs, len(matrix), dtype=torch.float64, generator=seeded(5)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solution_agrees_with_the_dense_solve_for_all_right_hand_sides(dtype):
    matvec, rhs = system(torch.linspace(0.1, 3, 40), dtype)
    solution, report = conjugate_gradients(matvec, rhs)
    assert report.converged and solution.dtype == dtype and solution.shape == rhs.shape
    exact = torch.linalg.solve(matvec.matrix.double(), rhs.double().T).T
    torch.testing.assert_close(solution.double(), exact, rtol=0, atol=1e-6 if dtype == torch.float64 else 1e-2)
    true = (rhs - solution @ matvec.matrix).norm(dim=1)
    torch.testing.assert_close(report.residual_norms, true, rtol=1e-6, atol=1e-5 * torch.finfo(dtype).eps ** 0.5)
    assert bool((report.relative_residuals <= (1e-8 if dtype == torch.float64 else 2e-5)).all())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(0, 100))
def test_in_float64_a_well_conditioned_system_is_solved_in_at_most_dim_iterations(dim, seed):
    matrix = symmetric(1 + 9 * torch.rand(dim, dtype=torch.float64, generator=seeded(seed)), seed=seed)
    rhs = torch.randn(dim, dtype=torch.float64, generator=seeded(seed + 1))
    _, report = conjugate_gradients(lambda rows: rows @ matrix, rhs, rtol=1e-10)
    assert report.converged and report.iterations <= dim


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_as_many_iterations_as_distinct_eigenvalues_suffice(distinct):
    matvec, rhs = system(1.0 + torch.arange(30) % distinct)
    _, report = conjugate_gradients(matvec, rhs, rtol=1e-9)
    assert report.iterations <= distinct


def test_exact_preconditioner_converges_in_one_iteration():
    matvec, rhs = system(torch.logspace(-4, 4, 50))
    inverse = torch.linalg.inv(matvec.matrix)
    _, plain = conjugate_gradients(matvec, rhs, rtol=1e-6, on_failure="report")
    _, report = conjugate_gradients(
        matvec, rhs, preconditioner=lambda rows: rows @ (inverse + inverse.T) / 2, rtol=1e-6
    )
    assert report.converged and report.iterations <= 2
    assert plain.iterations > 20


def test_finished_right_hand_sides_leave_the_batch():
    matrix = torch.diag(torch.linspace(1, 100, 50, dtype=torch.float64))
    matvec = Counted(matrix)
    rhs = torch.ones(3, 50, dtype=torch.float64)
    rhs[0] = 0
    rhs[1] = matrix[7]
    solution, report = conjugate_gradients(matvec, rhs)
    assert report.iterations_per_rhs.tolist()[:2] == [0, 1]
    assert report.iterations == int(report.iterations_per_rhs[2]) > 5
    assert matvec.vectors == int(report.iterations_per_rhs.sum()) + 2
    assert solution[0].abs().max() == 0.0
    assert report.relative_residuals[0] == 0.0


def test_warm_start_at_the_solution_needs_no_iteration_and_a_near_one_fewer():
    matvec, rhs = system(torch.linspace(0.01, 1, 60))
    exact, cold = conjugate_gradients(matvec, rhs)
    again, report = conjugate_gradients(matvec, rhs, start=exact)
    assert report.iterations == 0 and torch.equal(again, exact)
    _, near = conjugate_gradients(matvec, rhs, start=exact + 1e-6)
    assert 0 < near.iterations < cold.iterations


def test_start_is_not_modified():
    matvec, rhs = system(torch.linspace(1, 2, 10))
    start = torch.zeros_like(rhs)
    conjugate_gradients(matvec, rhs, start=start)
    assert start.abs().max() == 0


def test_a_single_vector_keeps_its_shape_and_dim_one_is_division():
    solution, report = conjugate_gradients(lambda rows: 4 * rows, torch.tensor([2.0]))
    assert solution.tolist() == [0.5] and report.iterations == 1


def test_consistent_singular_system_gives_the_solution_of_least_norm():
    eigenvalues = torch.cat([torch.zeros(10), torch.linspace(1, 2, 20)])
    matrix = symmetric(eigenvalues)
    rhs = torch.randn(2, 30, dtype=torch.float64, generator=seeded(6)) @ matrix
    solution, report = conjugate_gradients(lambda rows: rows @ matrix, rhs)
    assert report.converged
    torch.testing.assert_close(solution, rhs @ torch.linalg.pinv(matrix, hermitian=True, rtol=1e-9), rtol=0, atol=1e-7)


def test_negative_curvature_is_raised_with_advice_or_reported_per_right_hand_side():
    basis = rotation(6)
    matrix = (basis * torch.tensor([-1.0, 1, 2, 3, 4, 5], dtype=torch.float64)) @ basis.T
    rhs = torch.stack([basis[:, 0], basis[:, 3]])
    with pytest.raises(SolveError, match="indefinite; add damping"):
        conjugate_gradients(lambda rows: rows @ matrix, rhs)
    solution, report = conjugate_gradients(lambda rows: rows @ matrix, rhs, on_failure="report")
    assert report.bad_curvature.tolist() == [True, False] and not report.converged
    torch.testing.assert_close(solution[1], basis[:, 3] / 3, rtol=0, atol=1e-8)


def test_inconsistent_singular_system_is_reported_and_stays_finite():
    matrix = torch.diag(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    solution, report = conjugate_gradients(
        lambda rows: rows @ matrix, torch.ones(3, dtype=torch.float64), on_failure="report"
    )
    assert not report.converged and "add damping" in report.message
    assert bool(torch.isfinite(solution).all())


def test_reaching_the_iteration_limit_is_reported_with_the_true_residual():
    matvec, rhs = system(torch.logspace(-3, 3, 80))
    solution, report = conjugate_gradients(matvec, rhs, max_iterations=5, on_failure="report")
    assert report.iterations == 5 and not report.converged and "limit of 5" in report.message
    torch.testing.assert_close(report.residual_norms, (rhs - solution @ matvec.matrix).norm(dim=1))
    with pytest.raises(SolveError, match="did not converge"):
        conjugate_gradients(matvec, rhs, max_iterations=5)


@pytest.mark.parametrize("limit", [None, 30])
def test_unattainable_tolerance_ends_in_stagnation_before_the_limit_or_at_it_and_not_in_a_false_success(limit):
    matvec, rhs = system(torch.linspace(1, 10, 40), torch.float32)
    solution, report = conjugate_gradients(matvec, rhs, rtol=1e-12, max_iterations=limit, on_failure="report")
    assert not report.converged and not report.bad_curvature.any()
    if limit is None:
        assert report.iterations < 200 and "no longer shrinks" in report.message
    else:
        assert report.iterations == limit and "limit of 30" in report.message
    true = (rhs - solution @ matvec.matrix).norm(dim=1) / rhs.norm(dim=1)
    torch.testing.assert_close(report.relative_residuals, true, rtol=1e-3, atol=1e-7)
    assert float(true.max()) < 1e-5
    with pytest.raises(SolveError, match="3 of 3 .* no longer shrinks: loosen rtol" if limit is None else "limit"):
        conjugate_gradients(matvec, rhs, rtol=1e-12, max_iterations=limit)


def test_a_right_hand_side_that_stagnates_does_not_hold_back_those_that_can_be_solved():
    matrix = torch.diag(2.0 ** torch.arange(6))
    matrix[4:, 4:] = torch.tensor([[0.3, 0.1], [0.1, 0.7]])
    rhs = torch.eye(6)[[1, 3, 4]]
    solution, report = conjugate_gradients(lambda v: v @ matrix, rhs, rtol=1e-12, on_failure="report")
    assert "1 of 3" in report.message and "no longer shrinks" in report.message
    assert report.iterations_per_rhs[:2].tolist() == [1, 1] and report.relative_residuals[:2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, rhs.T).T)


def test_a_residual_that_has_drifted_is_repaired_by_starting_again_from_the_true_one():
    matrix, rhs = symmetric(torch.linspace(1, 10, 40)), torch.randn(2, 40, dtype=torch.float64, generator=seeded(7))
    wrong, calls = matrix + 1e-3 * symmetric(torch.linspace(-1, 1, 40), seed=8), []

    def first_inexact(rows):
        calls.append(len(rows))
        return rows @ (wrong if len(calls) <= 10 else matrix)

    solution, report = conjugate_gradients(first_inexact, rhs, rtol=1e-10)
    assert report.converged and len(calls) >= report.iterations + 2
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, rhs.T).T, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("error", "helps"), [(0.3, True), (0.7, False)])
def test_starting_again_goes_on_as_long_as_it_halves_the_residual(error, helps):
    matrix, rhs = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)), torch.ones(3, dtype=torch.float64)
    inverse, calls = torch.linalg.inv(matrix), []

    def product(rows):
        """Wrong inside of the iterations, one per start, each of which takes the part 1 - error of what is missing."""
        calls.append(len(rows))
        return rows @ matrix / (1 - error) if len(calls) % 2 else rows @ matrix

    options = {"preconditioner": lambda rows: rows @ inverse, "rtol": 1e-6, "max_iterations": 100}
    _, report = conjugate_gradients(product, rhs, on_failure="report", **options)
    assert report.converged == helps and ("no longer shrinks" in report.message) == (not helps)


def test_wrong_inputs_are_refused():
    eye = torch.eye(3)
    with pytest.raises(InputError, match="shape"):
        conjugate_gradients(lambda rows: rows @ eye, torch.ones(2, 2, 3))
    with pytest.raises(InputError, match="start"):
        conjugate_gradients(lambda rows: rows @ eye, torch.ones(3), start=torch.ones(2))
    with pytest.raises(InputError, match="on_failure"):
        conjugate_gradients(lambda rows: rows @ eye, torch.ones(3), on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="non-finite"):
        conjugate_gradients(lambda rows: rows @ eye, torch.full((3,), torch.nan))
    with pytest.raises(InputError, match="matvec maps"):
        conjugate_gradients(lambda rows: rows[:, :2], torch.ones(3))
    with pytest.raises(NumericsError, match="non-finite"):
        conjugate_gradients(lambda rows: rows / 0, torch.ones(3))
