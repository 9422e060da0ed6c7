"""The paper's statements on tangent features and modes, to float64 rounding (propositions 4 to 9 and lemmas 1 and 8)."""

import pytest
import torch

from tangentlab import NTK, Jacobian
from tangentlab.alignment import kernel_modes
from tangentlab.kernels import ridge_primal
from tests.alignment.linear import features, network, normal

OUTPUTS, EXAMPLES = 2, 5


@pytest.fixture(scope="module")
def tangent():
    """(model, X, Phi (c n, d), K, new points, Phi at new points)."""
    model, inputs, points = network(), normal(EXAMPLES, 3, seed=1), normal(4, 3, seed=2)
    phi, new = (Jacobian(model, x).data.flatten(0, 1) for x in (inputs, points))
    return model, inputs, phi, NTK(model, inputs), points, new


def test_metric_and_kernel_have_the_same_nonzero_eigenvalues(tangent):
    _, _, phi, kernel, _, _ = tangent
    rows = len(phi)
    metric = torch.linalg.eigvalsh(phi.t() @ phi).flip(0)
    gram = torch.linalg.eigvalsh(kernel.matrix()).flip(0)
    assert torch.allclose(metric[:rows], gram, rtol=1e-10, atol=1e-12)
    assert float(metric[rows:].abs().max()) < 1e-12
    assert torch.allclose(metric[:rows] / EXAMPLES, torch.linalg.eigvalsh(phi.t() @ phi / EXAMPLES).flip(0)[:rows])


def test_principal_components_are_orthonormal_eigenfunctions_that_expand_the_kernel(tangent):
    model, inputs, phi, kernel, points, new = tangent
    modes = kernel_modes(kernel)
    on_examples = modes.vectors.flatten(1)
    assert torch.allclose(on_examples @ on_examples.t(), torch.eye(len(on_examples), dtype=torch.float64), atol=1e-12)
    cross = NTK(model, points, inputs)
    elsewhere = modes.at(cross).flatten(1)
    # u_j(x) = <v_j, phi(x)> / sqrt(l_j), with v_j from the decomposition of the features themselves
    right = (phi.t() @ on_examples.t() / modes.values.sqrt()).t()
    assert torch.allclose(right @ right.t(), torch.eye(len(right), dtype=torch.float64), atol=1e-9)
    assert torch.allclose(elsewhere, (right @ new.t()) / modes.values.sqrt()[:, None], atol=1e-8)
    # the kernel operator has them as eigenfunctions: sum_i k(x, x_i) u_j(x_i) = l_j u_j(x)
    applied = cross.matrix() @ on_examples.t()
    assert torch.allclose(applied, elsewhere.t() * modes.values, rtol=1e-9, atol=1e-10)
    # k(x, x_i) = sum_j l_j u_j(x) u_j(x_i)
    assert torch.allclose((elsewhere.t() * modes.values) @ on_examples, cross.matrix(), atol=1e-10)


@pytest.mark.parametrize("center", ["per_output", "global"])
def test_centred_components_continue_with_the_mean_feature_of_the_examples(tangent, center):
    model, inputs, phi, kernel, points, new = tangent
    outputs = [part.reshape(OUTPUTS, -1, part.shape[1]) for part in (phi, new)]
    axes = (1,) if center == "per_output" else (0, 1)
    mean = outputs[0].mean(axes, keepdim=True)
    moved, moved_new = ((part - mean).flatten(0, 1) for part in outputs)
    modes = kernel_modes(kernel, center=center)
    right = (moved.t() @ modes.vectors.flatten(1).t() / modes.values.sqrt()).t()
    expected = (right @ moved_new.t()) / modes.values.sqrt()[:, None]
    assert torch.allclose(modes.at(NTK(model, points, inputs)).flatten(1), expected, atol=1e-8)
    again = modes.at(kernel).flatten(1)
    assert torch.allclose(again, modes.vectors.flatten(1), atol=1e-8)


def test_a_gradient_step_moves_every_mode_by_its_eigenvalue(tangent):
    """df_j = -lr l_j u_j^T grad_f L, at the examples and elsewhere, for any loss of the outputs."""
    model, inputs, phi, kernel, points, new = tangent
    gradient, lr = normal(OUTPUTS, EXAMPLES, seed=3), 0.3
    step = -lr * phi.t() @ gradient.flatten()
    modes = kernel_modes(kernel)
    found = modes.gradient_step(gradient, lr)
    assert torch.allclose(found, modes.coefficients((phi @ step).reshape(OUTPUTS, EXAMPLES)), atol=1e-12)
    assert torch.allclose(phi @ step, -lr * kernel.matrix() @ gradient.flatten(), atol=1e-12)
    assert torch.allclose(found @ modes.at(NTK(model, points, inputs)).flatten(1), new @ step, atol=1e-10)


def test_a_small_step_of_the_network_itself_approaches_the_sum_over_modes(tangent):
    model, inputs, _, kernel, _, _ = tangent
    targets = normal(EXAMPLES, OUTPUTS, seed=5)
    modes = kernel_modes(kernel)
    before = model(inputs)
    loss = 0.5 * (before - targets).square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    errors = []
    for lr in (1e-3, 1e-4):
        moved = {n: p.detach() - lr * g for (n, p), g in zip(model.named_parameters(), gradients)}
        change = (torch.func.functional_call(model, moved, (inputs,)) - before).detach().t()
        expected = modes.gradient_step((before - targets).detach().t(), lr)
        errors.append(float((change - torch.einsum("r,rcn->cn", expected, modes.vectors)).norm()))
    assert errors[1] < 0.02 * errors[0]  # quadratic in the step


@pytest.mark.parametrize("new_points", [False, True])
def test_regression_follows_powers_of_one_minus_lr_k(new_points):
    """f_t = f* + (Id - lr K)^t (f_0 - f*) and its modes, for weights that start in the span of the features."""
    phi, targets, lr, steps = features(6, 15), normal(6, seed=1), 0.05, 40
    where = features(4, 15, seed=9) if new_points else phi
    start = phi.t() @ normal(6, seed=2)
    weights = start.clone()
    for _ in range(steps):
        weights -= lr * phi.t() @ (phi @ weights - targets)
    best = ridge_primal(phi, targets, 0)
    assert torch.allclose(best, phi.t() @ torch.linalg.solve(phi @ phi.t(), targets), atol=1e-9)
    modes = kernel_modes(phi @ phi.t())
    path = modes.regression(phi @ start, targets, lr, torch.tensor([0, steps]))
    components = modes.at(where @ phi.t())[:, 0]
    assert torch.allclose(path[1] @ components, where @ weights, atol=1e-9)
    assert torch.allclose(path[0] @ components, where @ start, atol=1e-9)
    operator = torch.linalg.matrix_power(torch.eye(6, dtype=torch.float64) - lr * phi @ phi.t(), steps)
    on_examples = targets + operator @ (phi @ start - targets)
    assert torch.allclose(path[1] @ modes.vectors[:, 0], on_examples, atol=1e-10)


def test_time_constants_are_the_steps_to_one_over_e():
    phi = features(5, 9)
    modes = kernel_modes(phi @ phi.t())
    tau = modes.time_constants()
    assert tau[0] == 0
    shrunk = (1 - modes.values / modes.values[0])[1:] ** tau[1:]
    assert torch.allclose(shrunk, torch.full_like(shrunk, torch.e**-1), rtol=1e-12)
    with pytest.raises(ValueError, match="do not converge"):
        modes.time_constants(lr=2.1 / float(modes.values[0]))


def test_summed_first_order_updates_approach_the_change_of_the_function_as_the_rate_falls():
    """f_T = f_0 + sum_t <dw_t, Phi_t> + O(|dw|^2)."""
    inputs, targets, points = normal(6, 3, seed=1), normal(6, 2, seed=2), normal(3, 3, seed=3)
    errors = []
    for lr, steps in ((0.02, 50), (0.002, 500)):
        model = network()
        before, total = model(points).detach(), torch.zeros(3, 2, dtype=torch.float64)
        for _ in range(steps):
            loss = 0.5 * (model(inputs) - targets).square().mean()
            update = [-lr * g for g in torch.autograd.grad(loss, list(model.parameters()))]
            names = [name for name, _ in model.named_parameters()]
            values = {name: p.detach() for name, p in model.named_parameters()}
            tangents = dict(zip(names, update))
            total += torch.func.jvp(
                lambda w, model=model: torch.func.functional_call(model, w, (points,)), (values,), (tangents,)
            )[1]
            with torch.no_grad():
                for parameter, change in zip(model.parameters(), update):
                    parameter += change
        errors.append(float((model(points).detach() - before - total).norm()))
    assert errors[1] < 0.15 * errors[0]
