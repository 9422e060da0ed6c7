"""Operations that every matrix has: products of two, eigenbases, estimates from products, samples, ready data."""

import math

import pytest
import torch

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, NumericsError
from tangentlab.testing.dense_truth import DAMPING, Dense, assert_close, vectors
from tangentlab.testing.small_models import Case, case_of

KINDS = {
    "dense": tl.PMatDense,
    "block-diagonal": tl.PMatBlockDiag,
    "diagonal": tl.PMatDiag,
    "quasi-diagonal": tl.PMatQuasiDiag,
    "arrow": tl.PMatQuasiDiag.with_options(form="arrow"),
    "KFAC": tl.PMatKFAC,
    "KFAC with SUA": tl.PMatKFAC.with_options(sua=True),
    "EKFAC": tl.PMatEKFAC,
    "EKFAC with centred SUA": tl.PMatEKFAC.with_options(sua="centred"),
    "mixed": tl.PMatMixed.default(),
    "low rank": tl.PMatLowRank,
    "implicit": tl.PMatImplicit,
}
SQUARE = case_of("grouped convolution")


def build(kind: str, case: Case = SQUARE) -> tl.PMat:
    if kind == "sum":
        return tl.FIM(case.model, case.batches, tl.PMatKFAC) + tl.FIM(case.model, case.batches, tl.PMatDiag)
    return tl.FIM(case.model, case.batches, KINDS[kind])


@pytest.fixture(params=[*KINDS, "sum"], scope="module")
def F(request: pytest.FixtureRequest) -> tl.PMat:
    return build(request.param)


@pytest.fixture(scope="module")
def D(F: tl.PMat) -> Dense:
    return Dense(F.to_dense())


@pytest.mark.parametrize("kind", [*KINDS, "sum"])
def test_what_is_read_from_a_matrix_can_be_overwritten_without_changing_it(kind):
    F = build(kind)
    v = vectors(SQUARE, 2)
    readings = (F.diag, F.diag_in_eigenbasis, lambda: F @ v, lambda: F.solve(v, DAMPING))
    for read in readings[:1] if kind == "implicit" else readings:
        first = read()
        kept = first.flat.clone()
        first *= 0
        assert_close(read().flat, kept)


# ---------------------------------------------------------------- products of two matrices


@pytest.mark.parametrize("other", ["dense", "diagonal", "KFAC", "low rank", "implicit"])
def test_product_of_two_matrices_is_the_product_of_their_dense_forms(F, D, other):
    G = build(other)
    product, expected = F @ G, D.matrix @ G.to_dense()
    v = vectors(SQUARE, 2)
    assert_close(product.to_dense(), expected)
    assert_close((product @ v).flat, v.flat @ expected.t())
    assert_close(product.trace(), expected.diagonal().sum(), factor=10)
    assert_close((F.mm(G)).to_dense(), expected)


def test_transposed_product_reverses_the_factors(F, D):
    G = build("KFAC")
    product = tl.PMatProduct([F, G])
    assert_close(product.T.to_dense(), product.to_dense().t())
    assert_close((product @ F).to_dense(), D.matrix @ G.to_dense() @ D.matrix)
    assert_close((G @ product).to_dense(), G.to_dense() @ D.matrix @ G.to_dense())
    assert product.numel() == F.numel() + G.numel() and product.shape == F.shape
    v = vectors(SQUARE)
    assert_close(product.vTMv(v), v.flat @ product.to_dense() @ v.flat)


def test_commuting_matrices_multiply_within_their_class():
    case = case_of("mlp")
    diagonal = build("diagonal", case)
    assert type(diagonal @ (2 * diagonal)) is tl.PMatDiag
    ekfac = build("EKFAC", case)
    assert type(ekfac @ (ekfac + ekfac)) is tl.PMatEKFAC
    assert_close((ekfac @ (ekfac + ekfac)).to_dense(), 2 * ekfac.to_dense() @ ekfac.to_dense())
    eye = tl.PMatEye.from_model(case.model, factor=3.0)
    assert type(eye @ ekfac) is tl.PMatEKFAC
    assert_close((eye @ ekfac).to_dense(), 3 * ekfac.to_dense())


def test_a_product_is_no_symmetric_matrix_and_does_not_claim_to_be():
    product = build("dense") @ build("diagonal")
    assert not isinstance(product, tl.PMat) and not hasattr(product, "eigvalsh") and not hasattr(product, "solve")


def test_matrices_of_different_models_do_not_multiply(F):
    stranger = tl.PMatEye.from_model(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="different parameters"):
        F @ stranger
    with pytest.raises(InputError, match="different parameters"):
        F.inner(stranger)


@pytest.mark.parametrize("other", [*KINDS])
def test_inner_product_is_the_trace_of_the_product(F, D, other):
    G = build(other)
    assert_close(F.inner(G), (D.matrix * G.to_dense()).sum(), factor=10)


# ---------------------------------------------------------------- eigenbasis


def test_matrix_is_diagonal_in_its_eigenbasis(F, D):
    v = vectors(SQUARE, 2)
    coordinates = F.project_to_diag(v)
    scaled = tl.PVector(F.layout, F.diag_in_eigenbasis().flat * coordinates.flat)
    assert_close(F.project_from_diag(scaled).flat, v.flat @ D.matrix)
    assert_close(F.diag_in_eigenbasis().flat.sort()[0], D.values)


def test_change_of_basis_is_orthogonal_and_a_projection_for_thin_bases(F, D):
    v = vectors(SQUARE, 2)
    back = F.project_from_diag(F.project_to_diag(v))
    if isinstance(F, tl.PMatLowRank):
        assert_close(back.flat, v.flat @ D.power(0))
        assert_close(F.project_to_diag(back).flat, F.project_to_diag(v).flat)
    else:
        assert_close(back.flat, v.flat)
        assert_close(F.project_to_diag(v).norm(), v.norm())


@pytest.mark.parametrize("which", ["top", "bottom", "magnitude"])
def test_leading_eigenpairs_satisfy_their_equation_and_report_their_error(F, D, which):
    pairs = F.top_eigenpairs(4, which=which)
    order = {
        "top": D.values.flip(0),
        "bottom": D.values,
        "magnitude": D.values[D.values.abs().argsort(descending=True)],
    }
    rounding = 1e-9 * D.values.abs().max()
    assert float((pairs.values - order[which][:4]).abs().max()) < rounding
    rows = pairs.vectors.flat
    residual = (rows @ D.matrix - pairs.values[:, None] * rows).norm(dim=1)
    assert float(residual.max()) < rounding and float((residual - pairs.residual_norms).abs().max()) < rounding
    assert_close(rows @ rows.t(), torch.eye(4, dtype=rows.dtype))
    assert pairs.converged and pairs.message


def test_eigenpairs_that_mean_nothing_are_refused(F):
    with pytest.raises(InputError):
        F.top_eigenpairs(0)
    with pytest.raises(InputError, match="'top', 'bottom' or 'magnitude'"):
        F.top_eigenpairs(2, which="middle")


def test_inner_products_with_diagonals_and_low_rank_write_nothing_out():
    kfac = build("KFAC")
    with tl.memory_limit(8 * kfac.dim**2 - 1):
        for other in (build("diagonal"), build("low rank")):
            assert_close(kfac.inner(other), other.inner(kfac))


def test_spectrum_of_kfac_is_flat_and_sorted_over_all_layers():
    F = build("KFAC")
    values = F.eigvalsh()
    assert values.shape == (F.dim,) and torch.equal(values, values.sort().values)
    assert_close(F.top_eigenpairs(F.dim).values, values.flip(0))


# ---------------------------------------------------------------- estimates


@pytest.mark.parametrize("method", ["hutch++", "xtrace", "hutchinson"])
def test_trace_estimates_lie_within_their_error_bars(F, D, method):
    """20 independent estimates: their mean within 4 standard errors, and the stated error of the right size."""
    generator = torch.Generator().manual_seed(3)
    estimates = [F.estimate_trace(12, method=method, generator=generator) for _ in range(20)]
    values = torch.stack([one.estimate for one in estimates])
    spread = max(float(values.std()), 1e-9 * float(D.values.abs().max()))
    assert abs(float(values.mean() - D.matrix.trace())) < 4 * spread / 20**0.5
    stated = float(torch.stack([one.standard_error for one in estimates]).mean())
    assert stated < 10 * spread + 1e-9 and spread < 10 * stated + 1e-6


def test_trace_estimate_is_exact_with_as_many_products_as_parameters(F, D):
    assert_close(F.estimate_trace(F.dim).estimate, D.matrix.trace())
    with pytest.raises(InputError, match="method"):
        F.estimate_trace(method="guess")


def test_diagonal_estimate_lies_within_its_error_bars(F, D):
    found = F.estimate_diag(24, generator=torch.Generator().manual_seed(1))
    error = (found.estimate - D.matrix.diagonal()).norm()
    assert error <= 3 * found.standard_error.norm() + 1e-9 * D.matrix.diagonal().norm()
    assert found.standard_error.norm() <= D.matrix.norm()


def test_log_determinant_estimate_lies_within_its_error_bars(F, D):
    if D.values.min() < -1e-9:
        pytest.skip("an indefinite matrix has no log-determinant")
    found = F.estimate_logdet(DAMPING, probes=32, generator=torch.Generator().manual_seed(2))
    expected = (D.values + DAMPING).log().sum()
    assert abs(float(found.estimate - expected)) < 5 * float(found.standard_error) + 1e-6
    assert found.matvecs > 0 and bool(torch.isfinite(found.standard_error))


@pytest.mark.parametrize("damping", [1e-18, 1e-200])
@pytest.mark.parametrize("kind", ["dense", "diagonal", "low rank", "EKFAC", "KFAC"])
def test_the_smallest_damping_counts_in_the_log_determinant_of_a_singular_matrix(kind, damping):
    layout = LayerCollection.from_model(case_of("mlp").model)
    diagonal = torch.ones(layout.numel, dtype=torch.float64)
    diagonal[layout.slices["0.weight"]] = diagonal[layout.slices["0.bias"]] = 0
    zeros = int((diagonal == 0).sum())
    F = KINDS[kind].from_dense(layout, diagonal.diag())
    assert float(F.logdet(damping)) == pytest.approx(zeros * math.log(damping)) and F.logdet() == -torch.inf
    K = tl.FMatDense(diagonal.diag()[None, :, None])
    assert float(K.logdet(damping)) == pytest.approx(zeros * math.log(damping)) and K.logdet() == -torch.inf


def test_a_matrix_without_any_factor_has_the_log_determinant_of_its_damping():
    layout = LayerCollection.from_model(case_of("mlp").model)
    nothing = tl.PMatLowRank.from_factors(layout, torch.zeros(0, layout.numel, dtype=torch.float64))
    assert float(nothing.logdet(DAMPING)) == pytest.approx(layout.numel * math.log(DAMPING))
    assert nothing.logdet() == -torch.inf


def test_spectral_density_integrates_to_one_with_the_right_mean(F, D):
    density = F.spectral_density(probes=32, generator=torch.Generator().manual_seed(0))
    step = density.grid.diff().mean()
    assert abs(float(density.density.sum() * step) - 1) < 1e-3
    mean = float((density.density * density.grid).sum() * step)
    assert abs(mean - float(D.values.mean())) < 0.3 * float(D.values.abs().max())
    assert density.standard_error.shape == density.grid.shape


# ---------------------------------------------------------------- samples without a spectrum


def test_samples_from_products_alone_equal_those_from_the_spectrum():
    """(F + damping)^-1/2 z by Krylov space, for a matrix that is too large to be written out for few vectors."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)).double()
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    implicit, dense = (tl.FIM(model, x, kind) for kind in (tl.PMatImplicit, tl.PMatDense))
    draws = [F.sample(DAMPING, samples=2, generator=torch.Generator().manual_seed(4)) for F in (implicit, dense)]
    noise = torch.randn(2, dense.dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    values, basis = torch.linalg.eigh(dense.to_dense())
    expected = ((noise @ basis) * (values.clamp_min(0) + DAMPING).rsqrt()) @ basis.t()
    assert_close(draws[0].flat, expected, factor=100)
    energies = [F.vTMv(d) + DAMPING * d.dot(d) for F, d in zip((dense, dense), draws)]
    assert_close(energies[0], noise.square().sum(1), factor=100)
    assert_close(energies[1], noise.square().sum(1))


def test_indefinite_matrices_have_no_samples_and_no_log_determinant_below_their_negative_eigenvalue():
    case = case_of("mlp")
    layout = LayerCollection.from_model(case.model)
    matrix = torch.diag(torch.linspace(-1, 1, layout.numel, dtype=torch.float64))
    for kind in (tl.PMatDense, tl.PMatDiag, tl.PMatLowRank):
        F = kind.from_dense(layout, matrix)
        for operation in (F.logdet, F.sample):
            with pytest.raises(NumericsError, match="negative eigenvalue"):
                operation(0.5)
        assert_close(F.logdet(2.0), (matrix.diagonal() + 2).log().sum())


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("kind", ["KFAC", "EKFAC", "diagonal", "quasi-diagonal", "dense"])
def test_sum_with_low_rank_and_identity_is_solved_directly(kind):
    F = build(kind)
    rows = torch.randn(2, F.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = F + tl.PMatLowRank.from_factors(F.layout, rows, weights=[0.3, -1e-3]) + tl.PMatEye.from_model(SQUARE.model)
    v = vectors(SQUARE, 2)
    expected = torch.linalg.solve(total.to_dense() + DAMPING * torch.eye(F.dim, dtype=torch.float64), v.flat.t()).t()
    assert_close(total.solve(v, DAMPING).flat, expected)
    assert_close(total.solve(v).flat, torch.linalg.solve(total.to_dense(), v.flat.t()).t())


def test_identity_plus_diagonal_is_diagonal_and_not_an_identity():
    diagonal = build("diagonal")
    eye = tl.PMatEye.from_model(SQUARE.model)
    for total in (eye + diagonal, diagonal + eye):
        assert type(total) is tl.PMatDiag
        assert_close(total.diag().flat, diagonal.diag().flat + 1)
    assert type(eye + eye) is tl.PMatEye
    assert type(build("dense") + eye) is tl.PMatDense
