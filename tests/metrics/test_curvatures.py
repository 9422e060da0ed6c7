"""Gauss-Newton matrices, Hessians, gradient covariances and KFRA against plain autograd."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, ModelError, NumericsError, StructureError
from tests.objects.dense import DAMPING, assert_close, vectors
from tests.objects.models import ALL, EXAMPLES, Case, case_of
from tests.objects.truth import gradient, jacobian, slices_of

Loss = Callable[[Tensor, Tensor], Tensor]


def huberized(outputs: Tensor, targets: Tensor) -> Tensor:
    """A smooth convex loss that is no likelihood."""
    return (1 + (outputs - F.one_hot(targets, outputs.shape[1])).square()).sqrt().sum(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def output_hessian(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda f: loss(f[None], target[None])[0], output.detach())


def gauss_newton(case: Case, loss: Loss) -> Tensor:
    """1/n sum J^T H J, example by example."""
    total = 0.0
    for x, y, J in zip(case.inputs, case.targets, jacobian(case.model, case.inputs)):
        total = total + J.t() @ output_hessian(loss, case.model(x[None])[0], y) @ J / EXAMPLES
    return total


def hessian(case: Case, loss: Loss) -> Tensor:
    """Row by row, by differentiating the gradient of the mean loss."""
    layout = LayerCollection.from_model(case.model)
    parameters = layout.parameters(case.model)
    value = loss(case.model(case.inputs), case.targets).mean()
    grads = torch.autograd.grad(value, list(parameters.values()), create_graph=True, materialize_grads=True)
    flat = torch.cat([g.flatten() for g in grads])
    return torch.stack([gradient(entry, case.model) for entry in flat])


# ---------------------------------------------------------------- Gauss-Newton


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


def test_reduced_losses_and_losses_without_graph_are_refused():
    case = case_of("mlp")
    with pytest.raises(InputError, match="reduction='none'"):
        tl.GGN(case.model, case.batches, loss=nn.CrossEntropyLoss())
    with pytest.raises(InputError, match="one value per example"):
        tl.GGN(case.model, case.batches, loss=lambda f, y: f.square().sum())
    with pytest.raises(ModelError, match="does not depend"):
        tl.GGN(case.model, case.batches, loss=lambda f, y: torch.zeros(len(f), dtype=f.dtype))


def test_a_loss_that_is_linear_in_the_outputs_has_a_zero_gauss_newton_matrix():
    case = case_of("mlp")
    for kind in (tl.PMatDense, tl.PMatImplicit):
        G = tl.GGN(case.model, case.batches, kind, loss=lambda f, y: f.sum(1))
        assert not (G @ vectors(case)).flat.any()


# ---------------------------------------------------------------- Hessians


@pytest.mark.parametrize("name", ALL)
def test_hessian_in_every_exact_representation(name):
    case = case_of(name, split="uneven batches")
    expected = hessian(case, cross_entropy)
    implicit = tl.Hessian(case.model, case.batches)
    v = vectors(case, 2)
    assert_close((implicit @ v).flat, v.flat @ expected, factor=10)
    assert_close(tl.Hessian(case.model, case.batches, tl.PMatDense).to_dense(), expected, factor=10)
    assert_close(tl.Hessian(case.model, case.batches, tl.PMatDiag).diag().flat, expected.diagonal(), factor=10)
    assert_close(implicit.diag().flat, expected.diagonal(), factor=10)
    assert_close(implicit.trace(), expected.trace(), factor=10)


@pytest.mark.parametrize("name", ["mlp", "norms", "tied weights", "grouped convolution"])
def test_block_diagonal_hessian_keeps_the_entries_within_a_module(name):
    case = case_of(name)
    owners = [key.rpartition(".")[0] for key, s in slices_of(case.model).items() for _ in range(s.stop - s.start)]
    same = torch.tensor([[a == b for b in owners] for a in owners])
    H = tl.Hessian(case.model, case.batches, tl.PMatBlockDiag, loss=huberized)
    assert_close(H.to_dense(), torch.where(same, hessian(case, huberized), 0.0))


@pytest.mark.parametrize("name", ["mlp", "frozen bias", "bias first"])
def test_kronecker_sum_over_examples_is_the_exact_block_of_the_hessian(name):
    """H_l = 1/n sum a a^T (x) Hess_s, exactly."""
    case = case_of(name, split="uneven batches")
    H, blocks = (
        tl.Hessian(case.model, case.batches, kind, loss=huberized) for kind in (tl.PMatKronSum, tl.PMatBlockDiag)
    )
    assert_close(H.to_dense(), blocks.to_dense())
    v = vectors(case, 2)
    assert_close((H @ v).flat, v.flat @ blocks.to_dense())
    assert_close(H.trace(), blocks.trace())
    assert_close(H.norm(), blocks.norm())
    assert_close(H.diag().flat, blocks.diag().flat)


def test_kfac_of_a_hessian_is_the_product_of_the_means_and_exact_for_one_example():
    case = case_of("mlp")
    H = tl.Hessian(case.model, case.batches, tl.PMatKFAC, loss=huberized)
    terms = tl.Hessian(case.model, case.batches, tl.PMatKronSum, loss=huberized)
    for names, block in H.blocks.items():
        term = terms.blocks[names]
        assert_close(block.left[0], term.matrices.sum(0))
        assert_close(block.right[0], term.inputs.t() @ term.inputs / EXAMPLES)
    one = (case.inputs[:1], case.targets[:1])
    exact = tl.Hessian(case.model, one, tl.PMatBlockDiag, loss=huberized)
    assert_close(tl.Hessian(case.model, one, tl.PMatKFAC, loss=huberized).to_dense(), exact.to_dense())


def test_low_rank_hessian_keeps_the_eigenpairs_of_largest_magnitude():
    case = case_of("mlp")
    expected = hessian(case, cross_entropy)
    values, basis = torch.linalg.eigh(expected)
    keep = values.abs().argsort(descending=True)[:4]
    best = (basis[:, keep] * values[keep]) @ basis[:, keep].t()
    H = tl.Hessian(case.model, case.batches, tl.PMatLowRank.with_options(rank=4))
    assert_close(H.to_dense(), best, factor=100)


def test_hessian_is_indefinite_and_says_what_damping_makes_it_solvable():
    case = case_of("mlp")
    H = tl.Hessian(case.model, case.batches, tl.PMatDense)
    bottom = H.top_eigenpairs(1, which="bottom").values[0]
    assert bottom < 0
    with pytest.raises(NumericsError, match="negative eigenvalue"):
        H.logdet()
    enough = -2 * float(bottom)
    implicit = tl.Hessian(case.model, case.batches)
    v = vectors(case)
    expected = torch.linalg.solve(H.to_dense() + enough * torch.eye(H.dim, dtype=torch.float64), v.flat)
    assert_close(implicit.solve(v, enough).flat, expected, factor=1e3)


def test_gauss_newton_and_hessian_agree_where_the_model_is_linear():
    model = nn.Linear(3, 3).double()
    case = case_of("mlp")
    G, H = (make(model, case.batches, tl.PMatDense, loss=huberized) for make in (tl.GGN, tl.Hessian))
    assert_close(G.to_dense(), H.to_dense())


def test_representations_of_second_moments_refuse_a_hessian():
    case = case_of("mlp")
    for kind in (tl.PMatEKFAC, tl.PMatQuasiDiag, tl.PMatMixed):
        with pytest.raises(StructureError, match="second moments"):
            tl.Hessian(case.model, case.batches, kind)
    with pytest.raises(StructureError, match="0.weight"):
        tl.Hessian(case_of("grouped convolution").model, case_of("grouped convolution").batches, tl.PMatKronSum)


def test_second_derivatives_through_fused_attention_take_the_ladder():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 12)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.inner(x).unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v).mean((1, 2))[:, :3]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Attention().double()
        x = torch.randn(3, 5, 4, dtype=torch.float64)
    y = torch.tensor([0, 1, 2])
    H = tl.Hessian(model, (x, y))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        dense = tl.Hessian(model, (x, y), tl.PMatDense).to_dense()
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(0))
    assert_close((H @ v).flat, dense @ v.flat)


# ---------------------------------------------------------------- gradient covariances


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


# ---------------------------------------------------------------- KFRA


def deep(activation: nn.Module, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(3, 5), activation, nn.Linear(5, 4, bias=False), activation, nn.Linear(4, 3)
        ).double()


def kfra_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, G) per layer, by loops over examples and units."""
    layers = {name: module for name, module in model.named_children() if isinstance(module, nn.Linear)}
    inputs, slopes, h = {}, {}, x
    for name, module in model._modules.items():
        if isinstance(module, nn.Linear):
            inputs[name] = torch.cat([h, torch.ones(len(h), 1)], 1) if module.bias is not None else h
            h = module(h)
            last = name
        else:
            s = h.detach().requires_grad_()
            h = module(s)
            slopes[last] = torch.autograd.grad(h.sum(), s)[0]
    G = sum(output_hessian(cross_entropy, f, t) for f, t in zip(h, y)) / len(x)
    result, names = {}, list(layers)
    for place in range(len(names) - 1, -1, -1):
        if place < len(names) - 1:
            W = layers[names[place + 1]].weight.detach()
            terms = [torch.diag(s) @ W.t() @ G @ W @ torch.diag(s) for s in slopes[names[place]]]
            G = sum(terms) / len(terms)
        a = inputs[names[place]].detach()
        result[names[place]] = a.t() @ a / len(a), G
    return result


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.Sigmoid()])
def test_kfra_is_its_recursion(activation):
    case = case_of("mlp", split="uneven batches")
    model = deep(activation)
    K = tl.KFRA(model, case.batches)
    assert K.examples == EXAMPLES
    for name, (a, g) in kfra_by_hand(model, case.inputs, case.targets).items():
        block = next(block for names, block in K.blocks.items() if names[0] == f"{name}.weight")
        assert_close(block.right[0], a)
        assert_close(block.left[0], g)


def test_kfra_is_exact_for_one_example():
    case = case_of("mlp")
    model, one = deep(nn.Tanh()), (case.inputs[:1], case.targets[:1])
    assert_close(tl.KFRA(model, one).to_dense(), tl.GGN(model, one, tl.PMatBlockDiag).to_dense())


def test_kfra_is_exact_for_linear_chains_with_a_quadratic_loss():
    case = case_of("mlp")
    targets = torch.zeros(EXAMPLES, 3, dtype=torch.float64)
    model = deep(nn.Identity())
    exact = tl.GGN(model, (case.inputs, targets), tl.PMatBlockDiag, loss="regression")
    assert_close(tl.KFRA(model, (case.inputs, targets), loss="regression").to_dense(), exact.to_dense())


def test_kfra_leaves_the_model_without_hooks_and_refuses_what_is_no_chain():
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.last(h.tanh()) + h

    case = case_of("mlp")
    skip = Skip().double()
    with pytest.raises(StructureError, match="not a chain"):
        tl.KFRA(skip, case.batches)
    softmax = nn.Sequential(nn.Linear(3, 4), nn.Softmax(1), nn.Linear(4, 3)).double()
    with pytest.raises(StructureError, match="not a chain"):
        tl.KFRA(softmax, case.batches)
    convolution = case_of("grouped convolution")
    with pytest.raises(StructureError):
        tl.KFRA(convolution.model, convolution.batches)
    for model in (skip, softmax, convolution.model):
        assert not any(module._forward_hooks for module in model.modules())


def test_kfra_of_a_selection_has_only_its_layers():
    case = case_of("mlp")
    model = deep(nn.Tanh())
    whole, part = tl.KFRA(model, case.batches), tl.KFRA(model, case.batches, layers=["0.weight", "4"])
    assert part.layout.names == ("0.weight", "4.weight", "4.bias")
    slices = whole.layout.slices
    expected = whole.to_dense()[slices["0.weight"], slices["0.weight"]]
    assert_close(part.to_dense()[: len(expected), : len(expected)], expected)


def test_second_moment_and_mean_of_a_random_loader_are_of_the_same_draw():
    case = case_of("mlp")
    data = torch.utils.data.TensorDataset(case.inputs, case.targets)
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * EXAMPLES, 4)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
    for seed in range(5):
        torch.manual_seed(seed)
        covariance = tl.GradientCovariance(case.model, loader, tl.PMatDense)
        assert torch.linalg.eigvalsh(covariance.to_dense()).min() > -1e-12
