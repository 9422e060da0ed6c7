"""The two matrices that complete a diagonal and the bias cross terms, against formulas written out unit by unit."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, NumericsError
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import DAMPING, assert_close, vectors
from tangentlab.testing.small_models import ALL, case_of
from tests.objects import further_truth

ARROW = tl.PMatQuasiDiag.with_options(form="arrow")


def ollivier_inverse(name: str, v: Tensor, damping: float) -> Tensor:
    """Ollivier's quasi-diagonal inverse applied to v, by his formula with damping on the diagonal."""
    case, full = case_of(name), truth.exact(name)
    m = full.diagonal() + damping
    result = v / m
    for weights, bias in further_truth.units(case):
        c, m0 = full[weights, bias], m[bias]
        w = (v[weights] - v[bias] * c / m0) / (m[weights] - c**2 / m0)
        result[weights], result[bias] = w, v[bias] / m0 - (c / m0 * w).sum()
    return result


def schur_inverse(name: str, v: Tensor, damping: float) -> Tensor:
    """The inverse of the arrow matrix by the Schur complement of the bias."""
    case, full = case_of(name), truth.exact(name)
    m = full.diagonal() + damping
    result = v / m
    for weights, bias in further_truth.units(case):
        c = full[weights, bias]
        b = (v[bias] - (c * v[weights] / m[weights]).sum()) / (m[bias] - (c**2 / m[weights]).sum())
        result[weights], result[bias] = (v[weights] - c * b) / m[weights], b
    return result


@pytest.mark.parametrize("name", ALL)
def test_reduced_solve_is_the_formula_of_ollivier(name):
    case = case_of(name)
    v = vectors(case)
    F = tl.FIM(case.model, case.batches, tl.PMatQuasiDiag)
    assert_close(F.solve(v, DAMPING, reduced=True).flat, ollivier_inverse(name, v.flat, DAMPING))


@pytest.mark.parametrize("name", ["mlp", "norms", "bias first"])
def test_without_damping_solve_is_the_formula_of_ollivier(name):
    case = case_of(name)
    v = vectors(case)
    F = tl.FIM(case.model, case.batches, tl.PMatQuasiDiag)
    assert_close(F.solve(v).flat, ollivier_inverse(name, v.flat, 0.0), factor=1e3)
    assert_close(F.solve(v).flat, F.solve(v, reduced=True).flat)


@pytest.mark.parametrize("name", ALL)
def test_arrow_form_is_the_stored_entries_and_zero_elsewhere(name):
    case = case_of(name)
    F = tl.FIM(case.model, case.batches, ARROW)
    assert_close(F.to_dense(), further_truth.arrow(case, truth.exact(name)))
    v = vectors(case, 2)
    assert_close((F @ v).flat, v.flat @ F.to_dense())
    assert_close(F.norm(), F.to_dense().norm())


@pytest.mark.parametrize("name", ALL)
def test_arrow_solve_is_its_schur_complement_formula(name):
    case = case_of(name)
    v = vectors(case)
    F = tl.FIM(case.model, case.batches, ARROW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_close(F.solve(v, DAMPING).flat, schur_inverse(name, v.flat, DAMPING))
        assert_close(
            F.inverse(DAMPING).to_dense(), torch.linalg.inv(F.to_dense() + DAMPING * torch.eye(F.dim).double())
        )


def indefinite_layer() -> tuple[LayerCollection, Tensor]:
    """A positive definite matrix whose arrow is indefinite: three weights that all but copy their bias."""
    layout = LayerCollection.from_model(nn.Linear(3, 1, dtype=torch.float64))
    return layout, torch.full((4, 4), 0.9, dtype=torch.float64) + 0.1 * torch.eye(4, dtype=torch.float64)


def test_arrow_of_a_positive_definite_matrix_can_be_indefinite_and_solve_warns():
    layout, matrix = indefinite_layer()
    assert torch.linalg.eigvalsh(matrix).min() > 0
    arrow = tl.PMatQuasiDiag.from_dense(layout, matrix, form="arrow")
    assert torch.linalg.eigvalsh(arrow.to_dense()).min() < -0.5
    v = tl.PVector(layout, torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    with pytest.warns(UserWarning, match="not positive definite for 1 of 1 units"):
        uphill = arrow.solve(v, 1e-3)
    assert uphill.dot(v) < 0
    ollivier = arrow.with_form("ollivier")
    assert torch.linalg.eigvalsh(ollivier.to_dense()).min() > 0
    assert ollivier.solve(v, 1e-3).dot(v) > 0


def test_indefinite_arrow_has_no_samples_and_no_log_determinant():
    layout, matrix = indefinite_layer()
    arrow = tl.PMatQuasiDiag.from_dense(layout, matrix, form="arrow")
    for operation in (arrow.sample, arrow.logdet):
        with pytest.raises(NumericsError, match="not positive definite"):
            operation(1e-3)
    large = 10.0
    damped = arrow.to_dense() + large * torch.eye(4, dtype=torch.float64)
    assert_close(arrow.logdet(large), torch.logdet(damped))
    root = arrow._inverse_root(torch.eye(4, dtype=torch.float64), large)
    assert_close(root.t() @ root, torch.linalg.inv(damped))


def test_arrows_add_up_and_the_other_form_does_not():
    case = case_of("mlp")
    arrow, ollivier = (tl.FIM(case.model, case.batches, kind) for kind in (ARROW, tl.PMatQuasiDiag))
    assert type(arrow + 2 * arrow) is tl.PMatQuasiDiag and type(ollivier + ollivier) is tl.PMatSum
    assert_close((arrow + 2 * arrow).to_dense(), 3 * arrow.to_dense())


def test_inverse_of_one_form_has_the_shape_of_the_other():
    """The undamped inverse of Ollivier's form is an arrow: no entries between two weights of a row."""
    layout = LayerCollection.from_model(nn.Linear(4, 2, dtype=torch.float64))
    rows = torch.randn(20, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    F = tl.PMatQuasiDiag.from_dense(layout, rows.t() @ rows)
    inverse = torch.linalg.inv(F.to_dense())
    assert_close(inverse[:4, :4], torch.diag(inverse[:4, :4].diagonal()), factor=10)
    assert float(inverse[:4, 8].abs().min()) > 0


def test_layers_without_bias_reduce_to_the_diagonal():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)).double()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    quasi, diagonal = (tl.FIM(model, x, kind) for kind in (tl.PMatQuasiDiag, tl.PMatDiag))
    assert_close(quasi.to_dense(), diagonal.to_dense())
    assert quasi.numel() == diagonal.numel()


def test_ollivier_form_has_the_right_diagonal_and_bias_columns_and_is_exact_for_one_weight_per_unit():
    model = nn.Linear(1, 3).double()
    x = torch.randn(6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = tl.FIM(model, x).to_dense()
    per_unit = torch.zeros_like(exact)
    for unit in range(3):
        for i in (unit, 3 + unit):
            for j in (unit, 3 + unit):
                per_unit[i, j] = exact[i, j]
    assert_close(tl.FIM(model, x, tl.PMatQuasiDiag).to_dense(), per_unit)


def test_memory_is_below_twice_the_parameters():
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches, tl.PMatQuasiDiag)
    assert F.dim < F.numel() < 2 * F.dim


def test_unknown_form_is_refused_by_name():
    case = case_of("mlp")
    with pytest.raises(InputError, match="'ollivier' or 'arrow'"):
        tl.FIM(case.model, case.batches, tl.PMatQuasiDiag.with_options(form="diagonal"))
    F = tl.FIM(case.model, case.batches, tl.PMatQuasiDiag)
    with pytest.raises(InputError, match="one form only"):
        F.inverse(0.1).with_form("arrow")


def test_pseudo_inverse_on_units_whose_weights_copy_their_bias():
    """Inputs that are constant over the data make weight and bias perfectly correlated: the form is singular there."""
    model = nn.Linear(3, 2).double()
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0], x[:, 2] = 2.0, 0.0
    F = tl.FIM(model, x, tl.PMatQuasiDiag)
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(1))
    assert_close(F.solve(v).flat, torch.linalg.pinv(F.to_dense(), hermitian=True, rtol=1e-12) @ v.flat, factor=10)
