"""T8: the Fisher matrix and the tangent kernel are two Grams of one Jacobian."""

import pytest
import torch

import tangentlab as tl
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import ALL, EXAMPLES, case_of
from tests.metrics.problems import PROBLEMS

each = pytest.mark.parametrize("name", ALL)


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.sort(descending=True)[0][:count]


@each
def test_t8_nonzero_eigenvalues_of_n_times_the_regression_fisher_are_those_of_the_tangent_kernel(name):
    case = case_of(name, split="uneven batches")
    fisher = EXAMPLES * tl.FIM(case.model, case.batches, likelihood="regression").eigvalsh()
    kernel = tl.NTK(case.model, case.batches).eigvalsh()
    count = min(len(fisher), len(kernel))
    assert_close(largest(fisher, count), largest(kernel, count))
    for rest in (fisher.sort()[0][: len(fisher) - count], kernel.sort()[0][: len(kernel) - count]):
        assert rest.numel() == 0 or float(rest.abs().max()) < 1e-10 * float(kernel.max())


@each
def test_t8_eigenvectors_are_related_by_the_jacobian(name):
    """v = J^T u / sqrt(mu) is a unit eigenvector of n F for every eigenvector u of K with mu > 0."""
    case = case_of(name, split="uneven batches")
    J, F = tl.Jacobian(case.model, case.batches), tl.FIM(case.model, case.batches, likelihood="regression")
    values, eigenvectors = tl.NTK(case.model, case.batches).eigh()
    for value, u in list(zip(values, eigenvectors))[-5:]:
        v = (J.T @ u) / value.sqrt()
        assert v.norm() == pytest.approx(1, rel=1e-9)
        assert_close(EXAMPLES * (F @ v).flat, value * v.flat)
        assert_close((J @ v).flat, value.sqrt() * u.flat)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_t8_spectrum_of_n_times_the_fisher_is_that_of_the_weighted_gram(name):
    """The rows sqrt(mass) dlog p of all labels: their Gram has the spectrum of n F, for every likelihood."""
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    rows = []
    for one in x:
        labels = problem.labels(model(one[None])[0].detach())
        rows += [mass**0.5 * problem.score(model, one, label) for mass, label in labels]
    stacked = torch.stack(rows)
    gram = torch.linalg.eigvalsh(stacked @ stacked.t())
    fisher = len(x) * tl.FIM(model, x, likelihood=problem.likelihood).eigvalsh()
    count = min(len(gram), len(fisher))
    assert_close(largest(fisher, count), largest(gram, count))


@each
def test_traces_of_fisher_and_kernel_agree(name):
    case = case_of(name, split="uneven batches")
    F, K = tl.FIM(case.model, case.batches, tl.PMatImplicit, "regression"), tl.NTK(case.model, case.batches)
    assert_close(EXAMPLES * F.trace(), K.trace())


@each
def test_frobenius_norms_of_fisher_and_kernel_agree(name):
    case = case_of(name)
    assert_close(
        EXAMPLES * tl.FIM(case.model, case.batches, likelihood="regression").norm(),
        tl.NTK(case.model, case.batches).norm(),
    )


@each
def test_damped_determinants_of_fisher_and_kernel_differ_by_the_null_directions(name):
    """det(n F + l I_d) l^(cn) = det(K + l I_cn) l^d."""
    case = case_of(name)
    F, K = tl.FIM(case.model, case.batches, likelihood="regression"), tl.NTK(case.model, case.batches)
    d, m, damping = F.shape[0], K.dim, 0.3
    log = torch.tensor(damping, dtype=torch.float64).log()
    assert_close((EXAMPLES * F).logdet(damping) + m * log, K.logdet(damping) + d * log)


@each
def test_damped_solves_push_through_the_jacobian(name):
    """J^T (K + l)^-1 u = (n F + l)^-1 J^T u."""
    case = case_of(name, split="uneven batches")
    J, K = tl.Jacobian(case.model, case.batches), tl.NTK(case.model, case.batches)
    F = EXAMPLES * tl.FIM(case.model, case.batches, likelihood="regression")
    u = tl.FVector.random_unit(K.outputs, K.examples, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close((J.T @ K.solve(u, 0.3)).flat, F.solve(J.T @ u, 0.3).flat)


def test_expected_quadratic_form_of_a_random_unit_vector_is_the_mean_eigenvalue():
    """E[v^T F v] = tr F / d for v uniform on the sphere: 4000 draws, 5 standard errors."""
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches)
    forms = F.vTMv(tl.PVector.random_unit(case.model, batch=4000, generator=torch.Generator().manual_seed(0)))
    assert abs(float(forms.mean() - truth.exact("mlp").trace() / 31)) < 5 * float(forms.std()) / 4000**0.5
