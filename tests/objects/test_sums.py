"""Sums, multiples and functions of matrices: the tightest class, and what an indefinite matrix refuses."""

import pickle

import numpy as np
import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError, NumericsError, SolveError, StructureError
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import DAMPING, Dense, assert_close, dimension, vectors
from tangentlab.testing.small_models import Case, case_of

KINDS = {
    "Dense": tl.PMatDense,
    "BlockDiag": tl.PMatBlockDiag,
    "Diag": tl.PMatDiag,
    "KFAC": tl.PMatKFAC,
    "EKFAC": tl.PMatEKFAC,
    "Implicit": tl.PMatImplicit,
}
TIGHTEST = {
    ("Dense", "Dense"): tl.PMatDense,
    ("BlockDiag", "BlockDiag"): tl.PMatBlockDiag,
    ("Diag", "Diag"): tl.PMatDiag,
    ("Dense", "Diag"): tl.PMatDense,
    ("BlockDiag", "Diag"): tl.PMatBlockDiag,
    ("KFAC", "KFAC"): tl.PMatSum,
    ("KFAC", "Diag"): tl.PMatSum,
    ("KFAC", "Implicit"): tl.PMatSum,
    ("Dense", "Implicit"): tl.PMatSum,
}


def matrix(kind: str) -> tl.PMat:
    case = case_of("mlp")
    return tl.FIM(case.model, case.batches, KINDS[kind])


def dense(kind: str) -> torch.Tensor:
    return {
        "BlockDiag": truth.layer_blocks("mlp"),
        "Diag": truth.diagonal("mlp"),
        "KFAC": truth.kronecker("mlp", corrected=False),
        "EKFAC": truth.kronecker("mlp", corrected=True),
    }.get(kind, truth.exact("mlp"))


@pytest.mark.parametrize("first", list(KINDS))
@pytest.mark.parametrize("second", list(KINDS))
def test_the_sum_of_any_two_kinds_is_their_sum_in_the_tightest_class(first, second):
    total = matrix(first) + 2 * matrix(second)
    assert_close(total.to_dense(), dense(first) + 2 * dense(second))
    assert type(total) is TIGHTEST.get((first, second), type(total))
    v = vectors(case_of("mlp"))
    assert_close(total.vTMv(v), v.flat @ (dense(first) + 2 * dense(second)) @ v.flat)
    assert_close(total.trace(), (dense(first) + 2 * dense(second)).trace())


@pytest.mark.parametrize("kind", list(KINDS))
def test_adding_a_multiple_of_the_identity_from_either_side_is_damping(kind):
    case = case_of("mlp")
    eye = tl.PMatEye.from_model(case.model, factor=DAMPING)
    for total in (matrix(kind) + eye, eye + matrix(kind)):
        assert_close(total.to_dense(), Dense(dense(kind)).damped())
        assert not isinstance(total, tl.PMatEye)


def test_diagonals_and_identities_add_up_to_diagonals():
    case = case_of("mlp")
    eye, diag = tl.PMatEye.from_model(case.model), matrix("Diag")
    assert type(diag + eye) is tl.PMatDiag and type(eye + diag) is tl.PMatDiag and type(eye + eye) is tl.PMatEye
    other = tl.PMatDiag.from_dense(diag.layout, torch.ones(dimension(case), dtype=torch.float64))
    assert type(diag + other) is tl.PMatDiag and type(other + diag) is tl.PMatDiag


def test_identity_from_data_is_the_nearest_multiple():
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches, tl.PMatEye)
    exact = truth.exact("mlp")
    assert_close(F.to_dense(), exact.trace() / len(exact) * torch.eye(len(exact), dtype=torch.float64))
    assert type(F) is tl.PMatEye and F.examples == 7


def test_a_lazy_sum_flattens_its_terms_and_survives_pickling_and_conversion():
    total = (matrix("KFAC") + matrix("Diag")) + 3 * (matrix("KFAC") - matrix("EKFAC"))
    assert isinstance(total, tl.PMatSum) and [type(t) for _, t in total.terms] != [tl.PMatSum] * len(total.terms)
    expected = 4 * dense("KFAC") + dense("Diag") - 3 * dense("EKFAC")
    for one in (total, pickle.loads(pickle.dumps(total)), total.to(torch.float64)):
        assert_close(one.to_dense(), expected)
    assert total.to(torch.float32).to_dense().dtype == torch.float32


def test_a_lazy_sum_solves_by_conjugate_gradients_and_takes_a_preconditioner():
    case, total = case_of("mlp"), matrix("KFAC") + matrix("EKFAC")
    v, expected = vectors(case), Dense(dense("KFAC") + dense("EKFAC")).damped_inverse() @ vectors(case).flat
    assert_close(total.solve(v, DAMPING).flat, expected, factor=1e3)
    plain = total.solve_cg(v, 1e-4)[1].iterations
    solution, report = total.solve_cg(v, 1e-4, preconditioner=2 * matrix("KFAC"))
    assert report.converged and report.iterations < plain
    with pytest.raises(SolveError, match="damping"):
        total.solve(v)


def test_a_sum_with_an_implicit_term_cannot_be_pickled():
    with pytest.raises(StructureError):
        pickle.dumps(matrix("KFAC") + matrix("Implicit"))


def test_a_sum_is_not_a_representation_to_build_from_data():
    case = case_of("mlp")
    with pytest.raises(StructureError, match=r"F \+ G"):
        tl.FIM(case.model, case.batches, tl.PMatSum)


@pytest.mark.parametrize("kind", list(KINDS))
def test_numpy_and_torch_numbers_scale_from_both_sides(kind):
    F = matrix(kind)
    for multiple in (
        np.float32(2) * F,
        F * np.float64(2),
        F * torch.tensor([2.0]),
        F / np.float64(0.5),
        np.int64(2) * F,
    ):
        assert_close(multiple.to_dense(), 2 * dense(kind))
        assert type(multiple) is type(F)


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_indefinite_matrix_has_no_log_determinant_samples_or_roots(kind):
    F = matrix(kind) - matrix("Diag") if kind != "Diag" else -matrix(kind)
    assert F.eigvalsh().min() < -1e-3
    for operation in (lambda: F.logdet(1e-4), lambda: F.sample(1e-4), lambda: F.pow(0.5)):
        with pytest.raises(NumericsError):
            operation()


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_indefinite_matrix_still_has_products_traces_and_integer_powers(kind):
    F, expected = -matrix(kind), -dense(kind)
    v = vectors(case_of("mlp"))
    assert_close((F @ v).flat, expected @ v.flat)
    assert_close(F.trace(), expected.trace())
    assert_close(F.eigvalsh(), Dense(expected).values)
    assert_close(F.pow(2).to_dense(), expected @ expected)


def test_implicit_matrix_speaks_of_the_model_as_it_is_now(seed):
    case = Case("mlp")
    F, v = tl.FIM(case.model, case.batches, tl.PMatImplicit), vectors(case)
    for change in (lambda p: p.mul_(0.5), lambda p: p.data.neg_(), lambda p: p.data.add_(0.1)):
        for _ in range(6):
            F @ v
        F.trace(), F.diag(), F.to_dense(), F.vTMv(v)
        with torch.no_grad():
            for p in case.model.parameters():
                change(p)
        exact = truth.fisher(case.model, case.inputs)
        assert_close((F @ v).flat, exact @ v.flat)
        assert_close(F.vTMv(v), v.flat @ exact @ v.flat)
        assert_close(F.trace(), exact.trace())
        assert_close(F.diag().flat, exact.diagonal())
        assert_close(F.to_dense(), exact)


@pytest.mark.parametrize("kind", ["Diag", "BlockDiag", "KFAC", "EKFAC"])
def test_every_stored_matrix_preconditions_the_implicit_one(kind):
    case = case_of("mlp")
    F, v = matrix("Implicit"), vectors(case)
    expected = Dense(dense("Implicit")).damped_inverse(1e-3) @ v.flat
    solution, report = F.solve_cg(v, 1e-3, preconditioner=matrix(kind), rtol=1e-12)
    assert report.converged
    assert_close(solution.flat, expected, factor=100)


def test_a_product_of_matrices_is_the_map_of_their_product():
    F, G = matrix("KFAC"), matrix("Diag")
    v = vectors(case_of("mlp"))
    assert_close(((F @ G) @ v).flat, dense("KFAC") @ (dense("Diag") @ v.flat))
    assert_close(F.inner(G), (dense("KFAC") * dense("Diag")).sum())


def test_cutting_a_ready_matrix_keeps_what_each_class_can_hold():
    F, exact = matrix("Dense"), truth.exact("mlp")
    assert_close(tl.PMatDense.from_dense(F.layout, exact).to_dense(), exact)
    assert_close(tl.PMatBlockDiag.from_dense(F.layout, exact).to_dense(), truth.layer_blocks("mlp"))
    assert_close(tl.PMatDiag.from_dense(F.layout, exact).to_dense(), truth.diagonal("mlp"))
    assert_close(tl.PMatDiag.from_dense(F.layout, exact.diagonal()).to_dense(), truth.diagonal("mlp"))
    with pytest.raises(InputError, match="31 x 31"):
        tl.PMatDense.from_dense(F.layout, torch.ones(3, 3))
    with pytest.raises(InputError, match="symmetric"):
        tl.PMatDense.from_dense(F.layout, torch.arange(31.0**2).reshape(31, 31))


def test_a_damping_of_two_names_with_two_values_is_refused():
    with pytest.raises(InputError, match="regul"):
        matrix("Diag").solve(vectors(case_of("mlp")), 0.1, regul=0.2)


@pytest.mark.parametrize("factor", [0.0, 1.0, 7.0, -0.01])
@pytest.mark.parametrize("first", ["KFAC", "Diag"])
def test_a_sum_with_any_multiple_of_a_low_rank_matrix_is_solved_as_its_dense_form(first, factor):
    case = case_of("mlp")
    thin = tl.FIM(case.model, case.batches, tl.PMatLowRank)
    ones = tl.PMatLowRank.from_factors(thin.layout, thin.block.rows)
    for low in (thin, ones):
        total = matrix(first) + factor * low
        v = vectors(case)
        expected = torch.linalg.solve(Dense(dense(first) + factor * low.to_dense()).damped(), v.flat)
        assert_close(total.solve(v, DAMPING).flat, expected, factor=100)
