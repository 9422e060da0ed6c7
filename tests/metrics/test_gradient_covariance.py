"""Covariances of per-example gradients, centred and not, against the gradients themselves."""

import pytest
import torch

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.testing.dense_truth import DAMPING, assert_close, vectors
from tangentlab.testing.small_models import ALL, EXAMPLES, case_of
from tests.metrics.curvature_truth import cross_entropy


@pytest.mark.parametrize("name", ALL)
def test_centred_gradient_covariance(name):
    case = case_of(name, split="uneven batches")
    grads = tl.per_example_grads(case.model, case.batches, cross_entropy).flat
    centred = grads - grads.mean(0)
    expected = centred.t() @ centred / EXAMPLES
    for kind in (tl.PMatDense, tl.PMatLowRank, tl.PMatImplicit):
        assert_close(tl.GradientCovariance(case.model, case.batches, kind).to_dense(), expected, factor=10)
    diagonal = tl.GradientCovariance(case.model, case.batches, tl.PMatDiag)
    assert type(diagonal) is tl.PMatDiag
    assert_close(diagonal.diag().flat, expected.diagonal(), factor=10)


def test_ekfac_of_a_centred_covariance_has_its_variances_in_the_kronecker_basis():
    case = case_of("mlp")
    centred = tl.GradientCovariance(case.model, case.batches, tl.PMatEKFAC)
    exact = tl.GradientCovariance(case.model, case.batches, tl.PMatDense)
    moment = tl.GradientCovariance(case.model, case.batches, tl.PMatEKFAC, centred=False)
    assert type(centred) is tl.PMatEKFAC
    assert_close(centred.trace(), exact.trace())
    assert centred.trace() < moment.trace()
    basis = moment.project_from_diag(tl.PVector(moment.layout, torch.eye(moment.dim, dtype=torch.float64))).flat
    assert_close(centred.diag_in_eigenbasis().flat, ((basis @ exact.to_dense()) * basis).sum(1))


def test_quasi_diagonal_and_block_diagonal_covariances_are_the_entries_of_the_dense_one():
    case = case_of("mlp")
    dense = tl.GradientCovariance(case.model, case.batches).to_dense()
    layout = LayerCollection.from_model(case.model)
    for kind in (tl.PMatQuasiDiag, tl.PMatBlockDiag):
        found = tl.GradientCovariance(case.model, case.batches, kind)
        assert type(found) is kind
        assert_close(found.to_dense(), kind.from_dense(layout, dense).to_dense())


def test_kfac_of_a_centred_covariance_is_a_lazy_difference_with_a_direct_solve():
    case = case_of("mlp")
    kfac = tl.FIM_Empirical(case.model, case.batches, tl.PMatKFAC)
    mean = tl.per_example_grads(case.model, case.batches).flat.mean(0)
    centred = tl.GradientCovariance(case.model, case.batches, tl.PMatKFAC)
    expected = kfac.to_dense() - torch.outer(mean, mean)
    assert type(centred) is tl.PMatSum
    assert_close(centred.to_dense(), expected)
    v = vectors(case)
    damped = expected + DAMPING * torch.eye(len(expected), dtype=torch.float64)
    assert_close(centred.solve(v, DAMPING).flat, torch.linalg.solve(damped, v.flat))


def test_uncentred_covariance_is_the_empirical_second_moment():
    case = case_of("mlp")
    for kind in (tl.PMatKFAC, tl.PMatEKFAC):
        moment = tl.GradientCovariance(case.model, case.batches, kind, centred=False)
        assert_close(moment.to_dense(), tl.FIM_Empirical(case.model, case.batches, kind).to_dense())


def test_second_moment_and_mean_of_a_random_loader_are_of_the_same_draw():
    case = case_of("mlp")
    data = torch.utils.data.TensorDataset(case.inputs, case.targets)
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * EXAMPLES, 4)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
    for seed in range(5):
        torch.manual_seed(seed)
        covariance = tl.GradientCovariance(case.model, loader, tl.PMatDense)
        assert torch.linalg.eigvalsh(covariance.to_dense()).min() > -1e-12
