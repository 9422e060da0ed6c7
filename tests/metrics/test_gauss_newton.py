"""Gauss-Newton matrices of convex losses against plain autograd, example by example."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tangentlab as tl
from tangentlab.errors import InputError, ModelError, NumericsError
from tangentlab.testing.dense_truth import assert_close, vectors
from tangentlab.testing.small_models import ALL, EXAMPLES, case_of
from tests.metrics.curvature_truth import cross_entropy, gauss_newton, huberized, output_hessian


@pytest.mark.parametrize("name", ALL)
def test_gauss_newton_of_a_convex_loss(name):
    case = case_of(name, split="uneven batches")
    expected = gauss_newton(case, huberized)
    for kind in (tl.PMatDense, tl.PMatImplicit, tl.PMatLowRank):
        assert_close(tl.GGN(case.model, case.batches, kind, loss=huberized).to_dense(), expected)
    G = tl.GGN(case.model, case.batches, tl.PMatImplicit, loss=huberized)
    v = vectors(case)
    assert_close((G @ v).flat, expected @ v.flat)
    assert_close(G.vTMv(v), v.flat @ expected @ v.flat)
    assert_close(tl.GGN(case.model, case.batches, tl.PMatDiag, loss=huberized).diag().flat, expected.diagonal())


@pytest.mark.parametrize(
    "kind", [tl.PMatDense, tl.PMatBlockDiag, tl.PMatDiag, tl.PMatQuasiDiag, tl.PMatKFAC, tl.PMatEKFAC]
)
def test_gauss_newton_of_a_natural_likelihood_is_its_fisher_matrix(kind):
    case = case_of("mlp", split="uneven batches")
    fisher = tl.FIM(case.model, case.batches, kind)
    for loss in ("classification", tl.Classification(), cross_entropy, nn.CrossEntropyLoss(reduction="none")):
        assert_close(tl.GGN(case.model, case.batches, kind, loss=loss).to_dense(), fisher.to_dense(), factor=10)


@pytest.mark.parametrize(
    "likelihood", ["binary", "regression", tl.Regression(2.0), tl.Regression(torch.tensor([1.0, 2, 3]))]
)
def test_gauss_newton_of_other_likelihoods_is_their_fisher_matrix(likelihood):
    case = case_of("mlp")
    targets = torch.rand(EXAMPLES, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = targets.round() if likelihood == "binary" else targets
    found = tl.GGN(case.model, (case.inputs, targets), loss=likelihood)
    assert_close(found.to_dense(), tl.FIM(case.model, case.inputs, likelihood=likelihood).to_dense())


def test_token_losses_are_summed_over_positions():
    model = nn.Linear(3, 4).double()
    x = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(10).reshape(5, 2) % 4
    per_token = tl.GGN(model, (x, y), loss=lambda f, t: F.cross_entropy(f.movedim(-1, 1), t, reduction="none"))
    assert_close(per_token.to_dense(), tl.FIM(model, x).to_dense())
    assert_close(tl.GGN(model, (x, y)).to_dense(), tl.FIM(model, x).to_dense())


def test_kfac_of_a_gauss_newton_matrix_has_the_output_gradient_factor_of_its_roots():
    """B = 1/n sum J_s^T H J_s for the last layer, where s are the outputs themselves: the mean output Hessian."""
    case = case_of("mlp")
    G = tl.GGN(case.model, case.batches, tl.PMatKFAC, loss=huberized)
    outputs = case.model(case.inputs)
    mean = sum(output_hessian(huberized, f, y) for f, y in zip(outputs, case.targets)) / EXAMPLES
    assert_close(G.blocks[("2.weight", "2.bias")].left[0], mean)


def test_ekfac_of_a_gauss_newton_matrix_has_its_trace_and_is_closer_than_kfac():
    case = case_of("grouped convolution")
    exact, kfac, ekfac = (
        tl.GGN(case.model, case.batches, kind, loss=huberized) for kind in (tl.PMatDense, tl.PMatKFAC, tl.PMatEKFAC)
    )
    assert_close(ekfac.trace(), exact.trace())
    assert (exact.to_dense() - ekfac.to_dense()).norm() <= (exact.to_dense() - kfac.to_dense()).norm()


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatKFAC, tl.PMatImplicit])
def test_a_loss_that_is_not_convex_is_refused_by_its_eigenvalue(kind):
    case = case_of("mlp")
    with pytest.raises(NumericsError, match="not convex in the outputs.*eigenvalue -"):
        tl.GGN(case.model, case.batches, kind, loss=lambda f, y: f.sin().sum(1)) @ vectors(case)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_saturated_loss_is_convex_up_to_its_rounding(dtype):
    model = nn.Linear(1, 3, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-0.7], [-1.0]]))
    x = torch.linspace(10, 40, 61, dtype=dtype)[:, None]  # probabilities of 1 - 1e-8 to 1 - 1e-30
    y = torch.arange(61) % 3
    found = tl.GGN(model, (x, y), loss=nn.CrossEntropyLoss(reduction="none")).to_dense()
    assert (found - tl.GGN(model, (x, y), loss="classification").to_dense()).abs().max() < 1e3 * torch.finfo(dtype).eps
    with pytest.raises(NumericsError, match="not convex"):
        tl.GGN(model, (x, y), loss=lambda f, y: -1e-9 * f.square().sum(1))


def test_reduced_losses_and_losses_without_graph_are_refused():
    case = case_of("mlp")
    with pytest.raises(InputError, match="reduction='none'"):
        tl.GGN(case.model, case.batches, loss=nn.CrossEntropyLoss())
    with pytest.raises(InputError, match="one value per example"):
        tl.GGN(case.model, case.batches, loss=lambda f, y: f.square().sum())
    with pytest.raises(ModelError, match="does not depend"):
        tl.GGN(case.model, case.batches, loss=lambda f, y: torch.zeros(len(f), dtype=f.dtype))


@pytest.mark.parametrize("learnt", [False, True], ids=["fixed weights", "learnt weights"])
def test_a_loss_that_is_linear_in_the_outputs_has_a_zero_gauss_newton_matrix(learnt):
    case = case_of("mlp")
    weight = torch.tensor(2.0, requires_grad=learnt)
    for kind in (tl.PMatDense, tl.PMatImplicit):
        G = tl.GGN(case.model, case.batches, kind, loss=lambda f, y: (weight * f).sum(1))
        assert not (G @ vectors(case)).flat.any()


@pytest.mark.parametrize(
    "loss", ["log_softmax", "classif_logsoftmax", tl.LogSoftmax()], ids=["name", "other name", "likelihood"]
)
def test_a_loss_that_is_linear_in_the_outputs_by_name_is_refused(loss):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LogSoftmax(-1))
    data = torch.randn(4, 3), torch.arange(4) % 2
    for factory in (tl.GGN, tl.KFRA, tl.fisher_eigenpairs):
        with pytest.raises(InputError, match="linear in its outputs, so its Gauss-Newton matrix is zero"):
            factory(model, data, loss=loss)


def pixelwise(softmax):
    """Outputs (N, 2, 2, 3), with the softmax over the axis that is asked for."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 2), torch.nn.LogSoftmax(softmax)).double()


def negative_log_likelihoods(f, y):
    return -f.gather(-1, y[..., None])[..., 0]


@pytest.mark.parametrize(
    "loss", ["log_softmax", tl.LogSoftmax(), negative_log_likelihoods], ids=["name", "own", "function"]
)
def test_log_likelihoods_of_pixels_have_the_hessian_of_autograd(loss):
    model, x, y = pixelwise(-1), torch.randn(3, 1, 3, 4, dtype=torch.float64), torch.arange(12).reshape(3, 2, 2) % 3
    parameters = dict(model.named_parameters())

    def mean(*values):
        outputs = torch.func.functional_call(model, dict(zip(parameters, values)), (x,))
        return negative_log_likelihoods(outputs, y).sum() / len(x)

    blocks = torch.autograd.functional.hessian(mean, tuple(parameters.values()))
    sizes = [p.numel() for p in parameters.values()]
    truth = torch.cat([torch.cat([b.reshape(n, m) for b, m in zip(row, sizes)], 1) for row, n in zip(blocks, sizes)])
    assert torch.allclose(tl.Hessian(model, (x, y), loss=loss).to_dense(), truth, atol=1e-12)
    products = tl.Hessian(model, (x, y), tl.PMatImplicit, loss=loss)
    assert torch.allclose(products.to_dense(), truth, atol=1e-12)


@pytest.mark.parametrize("softmax", [-1, 1])
@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatDiag, tl.PMatImplicit], ids=["dense", "diagonal", "implicit"])
def test_gauss_newton_matrices_of_log_likelihoods_of_pixels_are_refused_by_name_and_zero_by_function(softmax, kind):
    model, x = pixelwise(softmax), torch.randn(3, 1, 3, 4, dtype=torch.float64)
    y = torch.arange(12).reshape(3, 2, 2) % 3
    with pytest.raises(InputError, match="linear in its outputs, so its Gauss-Newton matrix is zero"):
        tl.GGN(model, (x, y), kind, loss="log_softmax")
    assert not tl.GGN(model, (x, y), kind, loss=negative_log_likelihoods).to_dense().any()
