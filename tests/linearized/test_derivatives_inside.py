"""Force fields and physics-informed networks: everything that linearizes them agrees with plain autograd."""

import copy

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.errors import ModelError
from tangentlab.linearized import AlphaModel, KernelDynamics, LinearityProbe, StepRecorder, delta_loss, eigenfunctions
from tests.derivatives_inside import KINDS, caught, kernel_matrix, moved, second_derivative
from tests.engine.truth import dense_jacobian

each_kind = pytest.mark.parametrize("kind", KINDS)


def close(found: torch.Tensor, truth: torch.Tensor) -> bool:
    return bool((found - truth).norm() <= 1e-9 * truth.norm()) and bool(truth.norm() > 1e-6)


@each_kind
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("enabled", [True, False], ids=["grad", "no_grad"])
def test_linearized_networks_are_exact(kind: str, order: int, enabled: bool) -> None:
    model, x = caught(kind)
    linear = tl.linearize(model, order=order)
    direction = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    sizes = [p.numel() for p in model.parameters()]
    with torch.no_grad():
        for parameter, part in zip(linear.displacement.parameters(), direction.split(sizes)):
            parameter.copy_(part.view_as(parameter))
    truth = model(x) + torch.einsum("knd,d->nk", dense_jacobian(model, x), direction)
    if order == 2:
        truth = truth + 0.5 * second_derivative(model, x, direction)
    with torch.set_grad_enabled(enabled):
        assert close(linear(x), truth)


@each_kind
def test_the_gradient_of_a_linearized_network_is_that_of_its_kernel(kind: str) -> None:
    model, x = caught(kind)
    linear = tl.linearize(model)
    cotangent = torch.randn(*model(x).shape, dtype=torch.float64)
    grads = torch.autograd.grad(linear(x), list(linear.displacement.parameters()), cotangent, materialize_grads=True)
    found = torch.cat([grad.flatten() for grad in grads])
    assert close(found, torch.einsum("knd,nk->d", dense_jacobian(model, x), cotangent))


@each_kind
@pytest.mark.parametrize("alpha", [0.5, 20.0])
def test_the_models_between_are_exact(kind: str, alpha: float) -> None:
    model, x = caught(kind)
    start = model(x).detach()
    between = AlphaModel(model, alpha)
    assert torch.equal(between.initial_outputs(x), start)
    moved(between.model)
    truth = start + alpha * (between.model(x) - start)
    outputs = between(x)
    assert close(outputs, truth) and torch.equal(between(x, initial=start), outputs)
    grads, plain = (
        torch.autograd.grad(value[:, 0].sum(), list(between.model.parameters()), materialize_grads=True)
        for value in (outputs, truth)
    )
    assert close(torch.cat([grad.flatten() for grad in grads]), torch.cat([grad.flatten() for grad in plain]))


@each_kind
@pytest.mark.parametrize("implicit", [False, True])
def test_dynamics_in_function_space_are_those_of_the_dense_kernel(kind: str, implicit: bool) -> None:
    model, x = caught(kind)
    targets = torch.zeros_like(model(x)).detach()
    kernel = tl.NTK(model, x, representation=tl.FMatImplicit) if implicit else tl.NTK(model, x)
    if implicit:
        kernel = kernel.top_eigenpairs(targets.numel())
    dynamics = KernelDynamics(kernel, targets, model(x).detach())
    residual = torch.linalg.matrix_exp(-0.01 * kernel_matrix(model, x)) @ model(x).detach().t().flatten()
    assert close(dynamics.train(0.01), residual.view(targets.shape[1], -1).t())


@each_kind
def test_the_probe_of_linearity_sees_the_kernel_move(kind: str) -> None:
    model, x = caught(kind)
    probe = LinearityProbe(model, [(x[:2],), (x[2:],)])
    before = kernel_matrix(model, x)
    again = probe(model)
    assert (again.ntk_alignment, again.representation_alignment) == pytest.approx((1.0, 1.0), abs=1e-12)
    moved(model)
    after = kernel_matrix(model, x)
    assert probe(model).ntk_alignment == pytest.approx(float((before * after).sum() / before.norm() / after.norm()))


@each_kind
def test_steps_of_a_training_are_compared_with_their_differential(kind: str) -> None:
    model, x = caught(kind)
    recorder, before, jacobian = StepRecorder(model, x), model(x).detach(), dense_jacobian(model, x)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    with recorder:
        moved(model, 1e-2)
    step = torch.cat([p.detach().flatten() for p in model.parameters()]) - weights
    linear = torch.einsum("knd,d->nk", jacobian, step)
    assert recorder.steps[0].linear == pytest.approx(float(linear.norm()))
    assert recorder.steps[0].change == pytest.approx(float((model(x) - before).detach().norm()))
    assert close(recorder.sum_of_steps, before + linear)


@each_kind
def test_losses_are_compared_example_by_example(kind: str) -> None:
    model, x = caught(kind)
    other = copy.deepcopy(model)
    moved(other)
    targets = torch.ones_like(model(x)).detach()
    found = delta_loss(model, other, x, targets, lambda outputs, wanted: (outputs - wanted).square().sum(1))
    truth = ((model(x) - targets).square() - (other(x) - targets).square()).sum(1)
    assert close(found, truth) and not found.requires_grad
    by_function = delta_loss(lambda inputs: model(inputs), other, x, targets, lambda o, w: (o - w).square().sum(1))
    assert torch.equal(by_function, found)


@each_kind
@pytest.mark.parametrize("method", ["gram", "lanczos"])
def test_eigenfunctions_are_those_of_the_dense_kernel(kind: str, method: str) -> None:
    model, x = caught(kind)
    found = eigenfunctions(model, x, 3, method=method).eigenvalues
    truth = torch.linalg.eigvalsh(kernel_matrix(model, x)).flip(0)[:3]
    assert close(found, truth)


class Noisy(nn.Module):
    """Stochastic depth of one's own: no module says that it is random."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.layer, self.source = nn.Linear(3, 3), source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.source == "torch":
            chance = float(torch.rand(()))
        elif self.source == "numpy":
            import numpy as np

            chance = float(np.random.rand())
        else:
            import random

            chance = random.random()
        return self.layer(x) if chance > 1e-9 else x  # as good as never


@pytest.mark.parametrize("source", ["torch", "numpy", "Python"])
def test_forwards_that_draw_random_numbers_are_refused_whatever_they_draw(source: str) -> None:
    model, x = Noisy(source), torch.randn(4, 3)
    loss = nn.functional.mse_loss
    trials = {
        "linearize": lambda: tl.linearize(model)(x),
        "alpha": lambda: AlphaModel(model, 2.0)(x),
        "start of alpha": lambda: AlphaModel(model, 2.0).initial_outputs(x),
        "probe": lambda: LinearityProbe(model, x, ntk=False),
        "steps": lambda: StepRecorder(model, x),
        "delta_loss": lambda: delta_loss(model, model, x, x, lambda o, w: loss(o, w, reduction="none").sum(1)),
        "recorder": lambda: tl.TangentRecorder(model, {"p": (x, x)}, verbose=False).start(),
    }
    for name, trial in trials.items():
        with pytest.raises(ModelError, match=f"draws from the random generator of {source}"):
            trial()
            pytest.fail(f"{name} accepts it")
