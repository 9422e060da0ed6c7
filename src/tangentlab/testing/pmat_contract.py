"""The contract of a representation: what every PMat must do, checked on small models against dense matrices.

    class TestLowRank(PMatContract):
        representation = tl.PMatLowRank         # anything that FIM(representation=...) takes
        models = ALL                            # the models on which it is defined; KRONECKER where KFAC is
        sums, powers, inverses = tl.PMatLowRank, tl.PMatLowRank, tl.PMatDense   # classes of F + F, F**p, F.inverse(damping)

        def truth(self, name):                  # the dense matrix it stands for, by definition, float64
            return truth.exact(name)

        def stored(self, case):                 # how many numbers it stores
            return CLASSES * EXAMPLES * dimension(case)

Override `build` if it is not made by FIM(...). `pseudo_inverse = False` says that solve without damping raises,
`iterative = True` that solve stops at a tolerance, `pickles = False` that it holds the model and can be neither pickled nor
moved.

The matrix is compared with its definition, each operation with the same operation on `tensor()` in float64. What depends
on the data runs for each model in float64 and float32, in one batch and in uneven batches; what depends on the stored matrix
alone (`stored_only`) runs in float64 on uneven batches and in float32 on one batch.
"""

from typing import Any

import pytest
import torch

from tangentlab.engine.layout import LayerCollection, ParameterSpec
from tangentlab.errors import InputError, SolveError
from tangentlab.objects.maps import PushForwardDense
from tangentlab.objects.pmat import PMat, PMatDense, PMatDiag
from tangentlab.objects.pvector import PVector
from tangentlab.testing.dense_truth import DAMPING, Dense, assert_close, dimension, of_another_model, vectors
from tangentlab.testing.pmat_algebra import AlgebraContract
from tangentlab.testing.pmat_subject import stored_only
from tangentlab.testing.small_models import EXAMPLES, Case

__all__ = ["PMatContract", "stored_only"]


class PMatContract(AlgebraContract):
    """Inherited by one small class per representation; `Subject` lists what it may set."""

    # ------------------------------------------------------------- the matrix itself

    def test_dense_form_is_the_definition(self, F: PMat, D: Dense, case: Case) -> None:
        assert_close(D.matrix, self.truth(case.name), case.dtype)
        assert F.tensor().dtype == case.dtype and F.shape == (dimension(case), dimension(case))
        assert torch.equal(F.to_dense(), F.tensor())

    def test_examples_are_counted_from_what_was_seen(self, F: PMat, case: Case) -> None:
        assert F.examples == EXAMPLES

    @stored_only
    def test_matrix_is_symmetric_and_positive_semidefinite(self, F: PMat, D: Dense, case: Case) -> None:
        assert_close(F.tensor(), F.tensor().t(), case.dtype)
        assert D.values.min() >= -10 * torch.finfo(case.dtype).eps * D.values.max()

    # ------------------------------------------------------------- products

    def test_products_with_a_vector_and_with_batches_of_them(self, F: PMat, D: Dense, case: Case) -> None:
        for batch in ((), (3,), (2, 2)):
            v = vectors(case, *batch)
            assert_close((F @ v).flat, v.flat.double() @ D.matrix, case.dtype)
            assert_close(F.mv(v.flat), v.flat.double() @ D.matrix, case.dtype)
            assert (F @ v).layout == v.layout and (F @ v).dtype == case.dtype

    def test_quadratic_forms_of_a_vector_and_of_batches_of_them(self, F: PMat, D: Dense, case: Case) -> None:
        for batch in ((), (2, 2)):
            v = vectors(case, *batch)
            assert_close(F.vTMv(v), ((v.flat.double() @ D.matrix) * v.flat.double()).sum(-1), case.dtype)

    def test_products_and_solves_of_a_push_forward_act_on_its_rows(self, F: PMat, D: Dense, case: Case) -> None:
        J = PushForwardDense(vectors(case).layout, vectors(case, 2, 2).flat)
        assert_close((F @ J).data, J.data.double() @ D.matrix, case.dtype)
        assert_close(F.solve(J, DAMPING).data, J.data.double() @ D.damped_inverse(), case.dtype, self.slack())

    @stored_only
    def test_the_parameters_themselves_are_a_vector_and_autograd_flows_through_stored_matrices(
        self, F: PMat, D: Dense, case: Case
    ) -> None:
        v = PVector.from_model(case.model)
        form, flat = F.vTMv(v), v.flat.detach().double()
        assert_close(form, flat @ D.matrix @ flat, case.dtype)
        assert_close(F.solve(v, DAMPING).flat, D.damped_inverse() @ flat, case.dtype, self.slack())
        if self.pickles:
            assert_close(torch.autograd.grad(form, v.flat)[0], 2 * D.matrix @ flat, case.dtype)

    @stored_only
    def test_a_vector_of_another_model_or_dtype_is_refused(self, F: PMat, case: Case) -> None:
        stranger = of_another_model()
        for operation in (F.mv, F.vTMv, lambda v: F.solve(v, DAMPING), lambda v: F.solve_cg(v, DAMPING)):
            with pytest.raises(InputError):
                operation(stranger)
        with pytest.raises(InputError):
            F + PMatDiag.from_dense(stranger.layout, torch.ones(6))
        with pytest.raises(InputError):
            F.mv(torch.ones(dimension(case) + 1))
        with pytest.raises(InputError, match="float16"):
            F.mv(torch.ones(dimension(case), dtype=torch.float16))

    # ------------------------------------------------------------- solves

    def test_damped_solves_by_position_and_by_either_name(self, D: Dense, case: Case) -> None:
        fresh, v, expected = self.build(case), vectors(case, 3), D.damped_inverse()
        for solution in (fresh.solve(v, DAMPING), fresh.solve(v, damping=DAMPING), fresh.solve(v, regul=DAMPING)):
            assert_close(solution.flat, v.flat.double() @ expected, case.dtype, self.slack())
        assert_close(fresh.solve(v, 0.5).flat, v.flat.double() @ D.damped_inverse(0.5), case.dtype, self.slack())
        fresh.eigvalsh()
        assert_close(fresh.solve(v, DAMPING).flat, v.flat.double() @ expected, case.dtype, self.slack())

    @stored_only
    def test_a_damping_that_is_not_a_number_from_zero_up_is_refused(self, F: PMat, case: Case) -> None:
        for damping in (-1.0, float("nan")):
            with pytest.raises(InputError, match="damping"):
                F.solve(vectors(case), damping)

    @stored_only
    def test_solve_without_damping_is_the_pseudo_inverse_or_asks_for_a_damping(
        self, F: PMat, D: Dense, case: Case
    ) -> None:
        v = vectors(case)
        if not self.pseudo_inverse:
            with pytest.raises(SolveError, match="damping"):
                F.solve(v)
            return
        image = F @ v
        assert_close((F @ F.solve(image)).flat, image.flat, case.dtype, factor=100)
        if case.dtype == torch.float64:
            assert_close(F.solve(v).flat, D.power(-1) @ v.flat, case.dtype, factor=1e3)

    def test_conjugate_gradients_solve_and_report_the_true_residual(self, F: PMat, D: Dense, case: Case) -> None:
        v = vectors(case, 2)
        solution, report = F.solve_cg(v, DAMPING)
        assert_close(solution.flat, v.flat.double() @ D.damped_inverse(), case.dtype, factor=1e3)
        assert report.converged and 0 < report.iterations <= 10 * dimension(case)
        relative = (v.flat.double() - solution.flat.double() @ D.damped()).norm(dim=1) / v.flat.double().norm(dim=1)
        assert float((relative - report.relative_residuals).abs().max()) < 1e-6

    @stored_only
    def test_conjugate_gradients_out_of_iterations_say_so(self, F: PMat, D: Dense, case: Case) -> None:
        if bool(D.values.max() - D.values.min() < 1e-3 * D.values.max()):
            pytest.skip("a multiple of the identity is solved in one iteration")
        options: dict[str, Any] = {"max_iterations": 1, "rtol": 1e-6}
        assert not F.solve_cg(vectors(case), 1e-3, on_failure="report", **options)[1].converged
        with pytest.raises(SolveError):
            F.solve_cg(vectors(case), 1e-3, **options)

    def test_conjugate_gradients_preconditioned_with_the_matrix_itself_take_two_iterations_at_most(
        self, F: PMat, D: Dense, case: Case
    ) -> None:
        preconditioner = PMatDense.from_dense(F.layout, D.matrix.to(case.dtype))
        solution, report = F.solve_cg(vectors(case), DAMPING, preconditioner=preconditioner, rtol=1e-4)
        assert report.converged and report.iterations <= 2
        assert_close(solution.flat, D.damped_inverse() @ vectors(case).flat.double(), torch.float32)

    def test_conjugate_gradients_go_on_from_a_first_guess(self, F: PMat, D: Dense, case: Case) -> None:
        v, preconditioner = vectors(case, 2), PMatDiag.from_dense(F.layout, 1 + D.matrix.diagonal().to(case.dtype))
        expected = v.flat.double() @ D.damped_inverse()
        exact = PVector(F.layout, expected.to(case.dtype))
        assert F.solve_cg(v, DAMPING, start=exact, rtol=1e-4)[1].iterations == 0
        for start in (exact + 0.1 * vectors(case, 2, seed=3), vectors(case, 2, seed=5)):
            for inner in (None, preconditioner):
                solution, report = F.solve_cg(v, DAMPING, start=start, preconditioner=inner)
                assert_close(solution.flat, expected, case.dtype, factor=1e3)
                assert report.converged
        assert torch.equal(exact.flat, expected.to(case.dtype))

    @stored_only
    def test_a_first_guess_of_another_kind_or_shape_is_refused(self, F: PMat, case: Case) -> None:
        v = vectors(case, 2)
        for start in (vectors(case), vectors(case, 3), v.flat, of_another_model()):
            with pytest.raises(InputError):
                F.solve_cg(v, DAMPING, start=start)

    @stored_only
    def test_a_preconditioner_of_another_model_is_refused(self, F: PMat, case: Case) -> None:
        stranger = PMatDiag.from_dense(of_another_model().layout, torch.ones(6))
        with pytest.raises(InputError):
            F.solve_cg(vectors(case), DAMPING, preconditioner=stranger)
        layout = LayerCollection([ParameterSpec("stranger", (F.dim,), 0)])
        equal_size = PMatDiag.from_dense(layout, torch.ones(F.dim, dtype=case.dtype))
        with pytest.raises(InputError, match="does not act on the space"):
            F.solve_cg(vectors(case), DAMPING, preconditioner=equal_size)

    # ------------------------------------------------------------- numbers

    def test_trace_diagonal_and_norm(self, F: PMat, D: Dense, case: Case) -> None:
        assert_close(F.trace(), D.matrix.trace(), case.dtype)
        assert_close(F.diag().flat, D.matrix.diagonal(), case.dtype)
        assert_close(F.norm(), D.matrix.norm(), case.dtype)

    @stored_only
    def test_eigenvalues_come_all_and_ascending(self, F: PMat, D: Dense, case: Case) -> None:
        values = F.eigvalsh()
        assert_close(values, D.values, case.dtype)
        assert torch.equal(values, values.sort().values)

    @stored_only
    def test_log_determinant_is_minus_infinity_for_a_singular_matrix(self, F: PMat, D: Dense, case: Case) -> None:
        expected = (D.values + DAMPING).log().sum()
        assert_close(F.logdet(DAMPING), expected, case.dtype)
        assert_close(F.logdet(regul=DAMPING), expected, case.dtype)
        if D.null.any() and case.dtype == torch.float64:
            assert F.logdet() == -torch.inf

    @stored_only
    def test_samples_have_the_inverse_as_their_covariance(self, F: PMat, D: Dense, case: Case) -> None:
        root = F._inverse_root(torch.eye(dimension(case), dtype=case.dtype), DAMPING).double()
        assert_close(root.t() @ root, D.damped_inverse(), case.dtype)
        draws = F.sample(DAMPING, samples=dimension(case), generator=torch.Generator().manual_seed(1))
        noise = torch.randn(draws.flat.shape, generator=torch.Generator().manual_seed(1), dtype=case.dtype)
        assert_close(draws.flat, noise.double() @ root, case.dtype)
        assert F.sample(DAMPING).flat.shape == (dimension(case),)
        with pytest.raises(InputError):
            F.sample(0.0)

    @stored_only
    def test_energy_of_samples_is_chi_squared(self, F: PMat, D: Dense, case: Case) -> None:
        """z^T (F + damping) z has d degrees of freedom: the sum over 200 draws lies within 5 sigma of its mean."""
        draws = F.sample(DAMPING, samples=200, generator=torch.Generator().manual_seed(2)).flat.double()
        degrees = 200 * dimension(case)
        assert abs(float(((draws @ D.damped()) * draws).sum()) - degrees) < 5 * (2 * degrees) ** 0.5
