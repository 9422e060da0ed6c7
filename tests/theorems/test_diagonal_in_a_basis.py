"""EKFAC is the best diagonal in KFAC's eigenbasis: lemma 1, theorems 1 to 3 and their consequences."""

import pytest
import torch

import tangentlab as tl
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import EXAMPLES, KRONECKER, case_of
from tests.theorems.setting import blocks_of, kronecker_basis, rows_of, squared

each = pytest.mark.parametrize("name", KRONECKER)
OPTIONS = ({}, {"sharing": "reduce"}, {"sua": True}, {"sua": "centred"})


def pair(name: str, **options: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(G inside the blocks, KFAC, EKFAC, s*), dense, from the same samples."""
    case = case_of(name)
    kfac = tl.FIM(case.model, case.batches, tl.PMatKFAC.with_options(**options))
    ekfac = tl.FIM(case.model, case.batches, tl.PMatEKFAC.with_options(**options))
    scale = ekfac.diag_in_eigenbasis().flat
    return blocks_of(truth.exact(name), ekfac), kfac.to_dense(), ekfac.to_dense(), scale


@each
def test_t1_second_moments_are_the_best_diagonal_in_any_orthogonal_basis(name, seed):
    """|G - Q D Q^T| at D_ii = E[(Q^T g)_i^2], against other diagonals; and its gradient in D is zero there."""
    G, rows = truth.exact(name), rows_of(name)
    Q = torch.linalg.qr(torch.randn_like(G))[0]
    best = (rows @ Q).square().sum(0) / EXAMPLES
    D = best.clone().requires_grad_()
    error = squared(G - (Q * D) @ Q.t())
    assert torch.autograd.grad(error, D)[0].abs().max() < 1e-12 * G.norm()
    for size in (1e-3, 1e-1, 1.0):
        other = best + size * best.mean() * torch.randn_like(best)
        assert squared(G - (Q * other) @ Q.t()) > error


@each
def test_t2_ekfac_stores_the_second_moments_in_the_kronecker_eigenbasis(name):
    """Theorem 1 is lemma 1 at Q = U_A x U_B; gradients outside KFAC's blocks do not enter."""
    case = case_of(name)
    Q, rows = kronecker_basis(case), rows_of(name)
    F = tl.FIM(case.model, case.batches, tl.PMatEKFAC)
    moments = (rows @ Q).square().sum(0) / EXAMPLES
    assert_close(F.to_dense(), (Q * moments) @ Q.t())
    assert_close(F.eigvalsh(), moments.sort()[0])


@each
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_t3_ekfac_is_never_further_than_kfac_in_frobenius_norm(name, options):
    G, kfac, ekfac, _ = pair(name, **options)
    assert squared(G - ekfac) <= squared(G - kfac) * (1 + 1e-12)


def test_t3_ekfac_is_strictly_closer_than_kfac_when_inputs_and_gradients_depend_on_each_other():
    for name in ("mlp", "grouped convolution", "sequence", "embedding"):
        G, kfac, ekfac, _ = pair(name)
        assert (G - ekfac).norm() < 0.99 * (G - kfac).norm()


@each
def test_t4_eigenvalues_of_the_exact_matrix_are_second_moments_along_its_eigenvectors(name):
    case = case_of(name)
    values, vectors = torch.linalg.eigh(tl.FIM(case.model, case.batches).to_dense())
    assert_close((rows_of(name) @ vectors).square().sum(0) / EXAMPLES, values)


def test_t6_a_closer_matrix_need_not_give_a_closer_step():
    """EKFAC is closer to F than KFAC in every case, yet for some gradient and damping its step is further."""
    case = case_of("mlp")
    F = tl.FIM(case.model, case.batches, tl.PMatBlockDiag)
    kfac, ekfac = (tl.FIM(case.model, case.batches, kind) for kind in (tl.PMatKFAC, tl.PMatEKFAC))
    assert (F.to_dense() - ekfac.to_dense()).norm() < (F.to_dense() - kfac.to_dense()).norm()
    gradients = tl.PVector.random_unit(case.model, batch=50, generator=torch.Generator().manual_seed(0))
    worse = 0
    for damping in (1e-1, 1e-2, 1e-3):
        step = F.solve(gradients, damping)
        worse += int(
            ((ekfac.solve(gradients, damping) - step).norm() > (kfac.solve(gradients, damping) - step).norm()).sum()
        )
    assert 0 < worse


@each
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_squared_errors_of_kfac_and_ekfac_differ_by_that_of_the_eigenvalues(name, options):
    """|F - KFAC|^2 = |F - EKFAC|^2 + |S_A x S_B - s*|^2."""
    case = case_of(name)
    G, kfac, ekfac, _ = pair(name, **options)
    own = tl.FIM(case.model, case.batches, tl.PMatEKFAC.with_options(corrected=False, **options))
    assert_close(own.to_dense(), kfac)
    assert_close(squared(G - kfac), squared(G - ekfac) + squared(kfac - ekfac))


@each
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_squared_error_of_ekfac_is_what_its_eigenvalues_miss(name, options):
    """|F - EKFAC|^2 = |F|^2 - |s*|^2."""
    G, _, ekfac, scale = pair(name, **options)
    assert_close(squared(G - ekfac), squared(G) - squared(scale))


@each
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_trace_of_ekfac_is_exact(name, options):
    G, _, ekfac, _ = pair(name, **options)
    assert_close(ekfac.trace(), G.trace())


@each
def test_eigenvalues_of_ekfac_are_majorized_by_those_of_the_blocks(name):
    """Schur-Horn: every partial sum of the largest eigenvalues dominates that of the largest s*."""
    G, _, _, scale = pair(name)
    exact = torch.linalg.eigvalsh(G).flip(0).cumsum(0)
    ours = scale.sort(descending=True)[0].cumsum(0)
    assert bool((exact >= ours - 1e-12 * exact[-1]).all())
    assert_close(exact[-1], ours[-1])
