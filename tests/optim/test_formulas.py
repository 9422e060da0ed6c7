"""Every preconditioned gradient equals the dense formula of its method, written out in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab import FIM, PMatDense, PMatEKFAC, PMatKFAC
from tangentlab.errors import InputError
from tangentlab.optim import EKFAC, KFAC, BlockDiagonal, ConjugateGradient, Diagonal, EKFACra, LevenbergMarquardt
from tests.optim.truth import (
    backward,
    data,
    example_matrices,
    factors,
    flat_gradient,
    kronecker_factors,
    layer_gradient,
    per_example_gradients,
    spectral,
    tiny_conv,
    tiny_mlp,
)

EPS = 0.03
NETS = {"mlp": (tiny_mlp, (7, 4)), "conv": (tiny_conv, (5, 2, 4, 4))}
each_net = pytest.mark.parametrize("net", NETS)


def both(net: str):
    make, shape = NETS[net]
    model = make()
    return model, *data(*shape), [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]


@each_net
@pytest.mark.parametrize("pi", [False, True])
@pytest.mark.parametrize("inverse", ["cholesky", "eigh"])
def test_kfac_step_is_the_solve_with_the_damped_kronecker_product(net: str, pi: bool, inverse: str) -> None:
    model, x, y, layers = both(net)
    truths = [kronecker_factors(factors(model, layer, x, y)) for layer in layers]
    precond = KFAC(model, damping=EPS, pi=pi, inverse=inverse)
    backward(model, x, y)
    expected = []
    for layer, (a, b) in zip(layers, truths):
        g = layer_gradient(layer)
        balance = np.sqrt((np.trace(a) / len(a)) / (np.trace(b) / len(b))) if pi else 1.0
        damped = b + np.sqrt(EPS) / balance * np.eye(len(b)), a + balance * np.sqrt(EPS) * np.eye(len(a))
        expected.append(np.linalg.solve(np.kron(*damped), g.flatten()).reshape(g.shape))
    precond.step()
    for layer, truth in zip(layers, expected):
        np.testing.assert_allclose(layer_gradient(layer), truth, rtol=1e-8, atol=1e-10)


@each_net
def test_kfac_with_plain_damping_is_the_solve_with_the_tikhonov_product(net: str) -> None:
    model, x, y, layers = both(net)
    truths = [kronecker_factors(factors(model, layer, x, y)) for layer in layers]
    precond = KFAC(model, damping=EPS, damping_form="plain")
    backward(model, x, y)
    gradients = [layer_gradient(layer) for layer in layers]
    precond.step()
    for layer, g, (a, b) in zip(layers, gradients, truths):
        truth = np.linalg.solve(np.kron(b, a) + EPS * np.eye(g.size), g.flatten()).reshape(g.shape)
        np.testing.assert_allclose(layer_gradient(layer), truth, rtol=1e-8, atol=1e-10)


def ekfac_truth(found, g, form: str, eps: float = EPS):
    s_a, u_a, s_b, u_b = spectral(*kronecker_factors(found))
    scale = np.mean((u_b.T @ example_matrices(found) @ u_a) ** 2, 0)
    s_a, s_b = s_a.clip(0), s_b.clip(0)
    extra = eps if form == "plain" else np.outer(s_b + np.sqrt(eps), s_a + np.sqrt(eps)) - np.outer(s_b, s_a)
    return u_b @ ((u_b.T @ g @ u_a) / (scale + extra)) @ u_a.T


@each_net
@pytest.mark.parametrize("form", ["factored", "plain"])
def test_ekfac_step_divides_by_the_per_example_moments_in_the_eigenbasis(net: str, form: str) -> None:
    model, x, y, layers = both(net)
    found = [factors(model, layer, x, y) for layer in layers]
    precond = EKFAC(model, damping=EPS, damping_form=form)
    backward(model, x, y)
    expected = [ekfac_truth(one, layer_gradient(layer), form) for one, layer in zip(found, layers)]
    precond.step()
    for layer, truth in zip(layers, expected):
        np.testing.assert_allclose(layer_gradient(layer), truth, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", [KFAC, EKFAC])
def test_sua_uses_the_channel_covariance_and_keeps_a_scale_per_tap(method: type, bias: bool) -> None:
    model, (x, y) = tiny_conv(bias=bias), data(5, 2, 4, 4)
    found = factors(model, model[0], x, y)
    a, b = kronecker_factors(found)
    positions, taps = 4, 9
    sites = x.flatten(2).transpose(1, 2).reshape(-1, 2).numpy()
    sigma = sites.T @ sites / len(sites)
    a = np.kron(positions * sigma, np.eye(taps))
    if bias:
        a = np.block([[a, np.zeros((18, 1))], [np.zeros((1, 18)), np.array([[positions]])]])
    precond = method(model, damping=EPS, sua=True)
    backward(model, x, y)
    g = layer_gradient(model[0])
    if method is KFAC:
        damped = b + np.sqrt(EPS) * np.eye(3), a + np.sqrt(EPS) * np.eye(len(a))
        truth = np.linalg.solve(np.kron(*damped), g.flatten()).reshape(g.shape)
    else:
        s_sigma, u_sigma = np.linalg.eigh(sigma)
        u_a = np.kron(u_sigma, np.eye(taps))
        s_a = np.repeat(s_sigma * positions, taps)
        if bias:
            u_a = np.block([[u_a, np.zeros((18, 1))], [np.zeros((1, 18)), np.ones((1, 1))]])
            s_a = np.append(s_a, positions)
        s_b, u_b = np.linalg.eigh(b)
        scale = np.mean((u_b.T @ example_matrices(found) @ u_a) ** 2, 0)
        extra = EPS + np.sqrt(EPS) * (s_a[None] + s_b[:, None])
        truth = u_b @ ((u_b.T @ g @ u_a) / (scale + extra)) @ u_a.T
    precond.step()
    np.testing.assert_allclose(layer_gradient(model[0]), truth, rtol=1e-8, atol=1e-10)


@each_net
def test_diagonal_divides_by_the_mean_squared_entries(net: str) -> None:
    model, x, y, _ = both(net)
    moments = np.mean(per_example_gradients(model, x, y) ** 2, 0)
    precond = Diagonal(model, damping=EPS)
    backward(model, x, y)
    truth = flat_gradient(model) / (moments + EPS)
    precond.step()
    np.testing.assert_allclose(flat_gradient(model), truth, rtol=1e-9)


@each_net
@pytest.mark.parametrize("options", [{}, {"scale_decay": 0.5}], ids=["default", "given"])
@pytest.mark.parametrize("running", [False, True])
def test_diagonal_moments_over_several_steps_are_averaged_with_the_documented_decay(net, running, options) -> None:
    model, *_ = both(net)
    precond = Diagonal(model, damping=EPS, running=running, **options)
    decay = options.get("scale_decay", 0.95 if running else 0.0)
    average = np.nan
    for step in range(4):
        x, y = data(*NETS[net][1], seed=step)
        moments = np.mean(per_example_gradients(model, x, y) ** 2, 0)
        backward(model, x, y)
        g = flat_gradient(model)
        new = len(x) * g**2 if running else moments
        average = decay * average + (1 - decay) * new if step else new
        precond.step()
        np.testing.assert_allclose(flat_gradient(model), g / (average + EPS), rtol=1e-9)


@each_net
def test_block_diagonal_solves_with_the_full_second_moment_of_each_layer(net: str) -> None:
    model, x, y, layers = both(net)
    gradients, start, truth = per_example_gradients(model, x, y), 0, []
    precond = BlockDiagonal(model, damping=EPS)
    backward(model, x, y)
    g = flat_gradient(model)
    for layer in layers:
        own = slice(start, start + sum(p.numel() for p in layer.parameters()))
        block = gradients[:, own].T @ gradients[:, own] / len(x)
        truth.append(np.linalg.solve(block + EPS * np.eye(len(block)), g[own]))
        start = own.stop
    precond.step()
    np.testing.assert_allclose(flat_gradient(model), np.concatenate(truth), rtol=1e-7, atol=1e-10)


@each_net
def test_conjugate_gradients_solve_with_all_layers_together(net: str) -> None:
    model, x, y, _ = both(net)
    gradients = per_example_gradients(model, x, y)
    precond = ConjugateGradient(model, damping=EPS, iterations=200, rtol=1e-12)
    backward(model, x, y)
    matrix = gradients.T @ gradients / len(x) + EPS * np.eye(gradients.shape[1])
    truth = np.linalg.solve(matrix, flat_gradient(model))
    precond.step()
    np.testing.assert_allclose(flat_gradient(model), truth, rtol=1e-6, atol=1e-8)


def test_a_warm_start_reaches_the_same_solution_in_fewer_products() -> None:
    model, (x, y) = tiny_mlp(), data(7, 4)
    precond = ConjugateGradient(model, damping=EPS, iterations=200, rtol=1e-8, warm_start=1.0)
    backward(model, x, y)
    precond.step()
    first, products = flat_gradient(model), precond.solved.iterations
    backward(model, x, y)
    precond.step()
    np.testing.assert_allclose(flat_gradient(model), first, rtol=1e-5, atol=1e-8)
    assert precond.solved.iterations < products


@pytest.mark.parametrize(("method", "kind"), [(KFAC, PMatKFAC), (EKFAC, PMatEKFAC)])
def test_exact_curvature_is_the_fisher_of_the_metrics(method: type, kind: type) -> None:
    model, (x, y) = tiny_mlp(), data(7, 4)
    truth = FIM(model, x, representation=kind, likelihood="classification").to_dense()
    precond = method(model, damping=EPS, curvature="exact", likelihood="classification")
    backward(model, x, y)
    precond.step()
    torch.testing.assert_close(precond.as_pmat().to_dense(), truth)


def test_exact_conjugate_gradients_solve_with_the_exact_fisher() -> None:
    model, (x, y) = tiny_mlp(), data(7, 4)
    fisher = FIM(model, x, representation=PMatDense, likelihood="classification").to_dense().numpy()
    options = {"curvature": "exact", "likelihood": "classification"}
    precond = ConjugateGradient(model, damping=EPS, iterations=200, rtol=1e-12, **options)
    backward(model, x, y)
    truth = np.linalg.solve(fisher + EPS * np.eye(len(fisher)), flat_gradient(model))
    precond.step()
    np.testing.assert_allclose(flat_gradient(model), truth, rtol=1e-6, atol=1e-8)


def test_monte_carlo_curvature_averages_to_the_exact_fisher() -> None:
    model, (x, y) = tiny_mlp(), data(40, 4)
    truth = FIM(model, x, representation=PMatKFAC, likelihood="classification").to_dense()
    draws = []
    for seed in range(300):
        precond = KFAC(model, curvature="monte-carlo", likelihood="classification", seed=seed)
        backward(model, x, y)
        precond.step()
        draws.append(precond.as_pmat().to_dense())
        precond.remove()
    mean = torch.stack(draws).mean(0)
    assert float((mean - truth).norm() / truth.norm()) < 0.05
    assert float((draws[0] - truth).norm() / truth.norm()) > 0.05


@pytest.mark.parametrize("method", [KFAC, EKFAC, EKFACra, Diagonal])
def test_sum_and_mean_losses_have_the_same_curvature(method: type) -> None:
    (x, y), matrices, steps = data(7, 4), [], []
    for reduction, stated in (("mean", "mean"), ("sum", "sum"), ("mean", 7.0)):
        model = tiny_mlp()
        precond = method(model, damping=EPS, loss_reduction=stated)
        backward(model, x, y, reduction)
        precond.step()
        matrices.append(precond.as_pmat().to_dense())
        steps.append(flat_gradient(model) / (7 if reduction == "sum" else 1))
    torch.testing.assert_close(matrices[1], matrices[0])
    torch.testing.assert_close(matrices[2], matrices[0])
    np.testing.assert_allclose(steps[1], steps[0], rtol=1e-9)


def test_cutoff_keeps_the_largest_modes_and_zeroes_the_rest() -> None:
    model, (x, y) = tiny_mlp(), data(7, 4)
    found = factors(model, model[0], x, y)
    _, u_a, _, u_b = spectral(*kronecker_factors(found))
    precond = EKFAC(model, damping=EPS, cutoff=4, damping_form="plain")
    backward(model, x, y)
    g = layer_gradient(model[0])
    scale = np.mean((u_b.T @ example_matrices(found) @ u_a) ** 2, 0)
    kept = scale >= np.sort(scale.flatten())[-4]
    truth = u_b @ (kept * (u_b.T @ g @ u_a) / (scale + EPS)) @ u_a.T
    precond.step()
    np.testing.assert_allclose(layer_gradient(model[0]), truth, rtol=1e-8, atol=1e-11)


def test_norm_layers_and_lone_biases_get_their_exact_block() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[0].weight.requires_grad_(False)
    x, y = data(9, 4)
    trainable = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for one, label in zip(x, y):
        loss = nn.functional.cross_entropy(model(one[None]), label[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, trainable[:3])]))
    moment = torch.stack(rows).T @ torch.stack(rows) / 9
    precond = KFAC(model, damping=EPS, damping_form="plain")
    backward(model, x, y)
    gradient = torch.cat([p.grad for p in trainable[:3]])
    precond.step()
    for place, p in enumerate(trainable[:3]):
        own = slice(3 * place, 3 * place + 3)
        truth = torch.linalg.solve(moment[own, own] + EPS * torch.eye(3), gradient[own])
        torch.testing.assert_close(p.grad, truth)
    assert model[0].weight.grad is None


def test_embeddings_have_token_counts_on_one_side_and_gradients_on_the_other() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=2), nn.Flatten(), nn.Linear(12, 3)).double()
    x, y = torch.randint(6, (8, 4)), torch.randint(3, (8,))
    truth = FIM(model, x, representation=PMatEKFAC, likelihood="classification").to_dense()
    precond = EKFAC(model, curvature="exact", likelihood="classification")
    backward(model, x, y)
    precond.step()
    torch.testing.assert_close(precond.as_pmat().to_dense(), truth)
    assert not precond.as_pmat().diag().flat[6:9].any()
    assert precond.report().rows[0].method == "6 x 3 (diagonal x full)"


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_weights_shared_over_positions_are_treated_as_in_the_metrics(sharing: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)).double()
    x, y = data(7, 2, 4)
    kind = PMatKFAC.with_options(sharing=sharing)
    truth = FIM(model, x, representation=kind, likelihood="classification").to_dense()
    precond = KFAC(model, curvature="exact", likelihood="classification", sharing=sharing)
    backward(model, x, y)
    precond.step()
    torch.testing.assert_close(precond.as_pmat().to_dense(), truth)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, groups=2, padding=1),
        nn.Conv3d(4, 2, 2, bias=False),
        nn.ConvTranspose1d(4, 2, 3, stride=2),
        nn.Conv1d(4, 4, 3, groups=4),
    ],
    ids=["grouped", "3d", "transposed", "depthwise"],
)
def test_other_convolutions_have_the_kronecker_factors_of_the_metrics(layer: nn.Module) -> None:
    torch.manual_seed(0)
    shape = (5, 4, 3, 3, 3) if isinstance(layer, nn.Conv3d) else (5, 4, 6)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)).double()
    x, y = data(*shape)
    model(x)
    truth = FIM(model, x, representation=PMatKFAC, likelihood="classification").to_dense()
    precond = KFAC(model, curvature="exact", likelihood="classification")
    backward(model, x, y)
    precond.step()
    torch.testing.assert_close(precond.as_pmat().to_dense(), truth)


def test_a_side_above_the_limit_keeps_its_diagonal() -> None:
    model, (x, y) = tiny_mlp(), data(7, 4)
    found = factors(model, model[0], x, y)
    a, b = kronecker_factors(found)
    precond = KFAC(model, damping=EPS, factor_limit=4)
    backward(model, x, y)
    g = layer_gradient(model[0])
    damped = b + np.sqrt(EPS) * np.eye(3), np.diag(np.diag(a)) + np.sqrt(EPS) * np.eye(5)
    truth = np.linalg.solve(np.kron(*damped), g.flatten()).reshape(g.shape)
    precond.step()
    np.testing.assert_allclose(layer_gradient(model[0]), truth, rtol=1e-9)
    assert precond.report().rows[0].method == "3 x 5 (full x diagonal)"


@pytest.mark.parametrize(("method", "kind"), [(KFAC, PMatKFAC), (EKFAC, PMatEKFAC)])
def test_separate_blocks_of_weight_and_bias_are_those_of_the_metrics(method: type, kind: type) -> None:
    model, (x, y) = tiny_mlp(), data(7, 4)
    apart = kind.with_options(separate_weight_and_bias=True)
    truth = FIM(model, x, representation=apart, likelihood="classification").to_dense()
    options = {"curvature": "exact", "likelihood": "classification", "separate_weight_and_bias": True}
    precond = method(model, damping=EPS, damping_form="plain", **options)
    backward(model, x, y)
    gradient = torch.from_numpy(flat_gradient(model))
    precond.step()
    torch.testing.assert_close(precond.as_pmat().to_dense(), truth)
    damped = truth + EPS * torch.eye(len(truth), dtype=truth.dtype)
    np.testing.assert_allclose(flat_gradient(model), torch.linalg.solve(damped, gradient).numpy(), rtol=1e-6)


def test_the_bias_of_a_convolution_alone_has_its_full_second_moment() -> None:
    model, (x, y) = tiny_conv(), data(5, 2, 4, 4)
    precond = KFAC(model, damping=EPS, separate_weight_and_bias=True, layers=["0"])
    backward(model, x, y)
    precond.step()
    rows = torch.from_numpy(per_example_gradients(model, x, y))[:, 54:57]
    torch.testing.assert_close(precond.as_pmat().to_dense()[-3:, -3:], rows.T @ rows / 5)
    assert [row.names for row in precond.report().rows] == [("0.weight",), ("0.bias",)]
    with pytest.raises(InputError, match="other|unknown"):
        KFAC(model, layers=["0"]).load_state_dict(precond.state_dict())


@each_net
def test_the_quadratic_form_of_conjugate_gradients_is_that_of_the_fisher_matrix_of_the_last_batch(net: str) -> None:
    model, x, y, _ = both(net)
    rows = per_example_gradients(model, x, y)
    precond = ConjugateGradient(model, damping=LevenbergMarquardt(EPS))
    backward(model, x, y)
    precond.step()
    generator = torch.Generator().manual_seed(5)
    step = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in model.named_parameters()}
    along = np.concatenate([part.flatten().numpy() for part in step.values()])
    assert precond.quadratic(step) == pytest.approx(np.mean((rows @ along) ** 2), rel=1e-10)


@pytest.mark.parametrize(("order", "used"), [("update first", 1), ("precondition first", 0)])
def test_the_order_says_whether_a_batch_acts_on_its_own_gradient_or_on_the_next(order: str, used: int) -> None:
    model, layers = tiny_mlp(), [0, 2]
    batches = [data(7, 4, seed=seed) for seed in (1, 2)]
    precond = KFAC(model, damping=EPS, pi=False, order=order)
    for x, y in batches:
        truths = [kronecker_factors(factors(model, model[k], *batches[used])) for k in layers]
        backward(model, x, y)
        gradients = [layer_gradient(model[k]) for k in layers]
        precond.step()
    for k, (a, b), g in zip(layers, truths, gradients):
        damped = b + np.sqrt(EPS) * np.eye(len(b)), a + np.sqrt(EPS) * np.eye(len(a))
        expected = np.linalg.solve(np.kron(*damped), g.flatten()).reshape(g.shape)
        np.testing.assert_allclose(layer_gradient(model[k]), expected, rtol=1e-8, atol=1e-10)
