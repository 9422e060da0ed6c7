"""First and second order expansions: linearization, divergence, function-space distance, and the steps they define."""

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, Normal, kl_divergence

import tangentlab as tl
from tangentlab.testing.dense_truth import assert_close
from tests.metrics.problems import COVARIANCE, PROBLEMS

DISTRIBUTIONS = {
    "classification": lambda f: Categorical(logits=f),
    "two classes": lambda f: Categorical(logits=f),
    "log-softmax": lambda f: Categorical(logits=f),
    "binary": lambda f: Independent(Bernoulli(logits=f), 1),
    "multi-label": lambda f: Independent(Bernoulli(logits=f), 1),
    "regression": lambda f: Independent(Normal(f, torch.ones_like(f)), 1),
    "regression, variances": lambda f: Independent(Normal(f, COVARIANCE.diagonal().sqrt().expand_as(f)), 1),
    "segmentation": lambda f: Independent(Categorical(logits=f.movedim(1, -1)), 2),
    "tokens": lambda f: Independent(Categorical(logits=f), 1),
}
each = pytest.mark.parametrize("name", list(DISTRIBUTIONS))


def setting(name: str) -> tuple[nn.Module, torch.Tensor, tl.PVector]:
    """Model, inputs, and a random direction in parameter space."""
    problem = PROBLEMS[name]
    model = problem.model()
    return model, problem.inputs(), tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(3))


def moved(model: nn.Module, step: tl.PVector, x: torch.Tensor) -> torch.Tensor:
    """Outputs after a step, the model left as it was."""
    before = tl.PVector.from_model(model).detach()
    (before + step).copy_to_model(model)
    with torch.no_grad():
        outputs = model(x)
    before.copy_to_model(model)
    return outputs


def order(errors: list[float], sizes: list[float]) -> float:
    """Exponent p of error ~ size^p between the largest and the smallest size."""
    logs = torch.tensor([errors, sizes], dtype=torch.float64).log()
    return float((logs[0, 0] - logs[0, -1]) / (logs[1, 0] - logs[1, -1]))


@each
@pytest.mark.parametrize("swapped", [False, True], ids=["KL(w||w+dw)", "KL(w+dw||w)"])
def test_t9_divergence_is_half_the_quadratic_form_of_the_fisher_up_to_third_order(name, swapped):
    model, x, direction = setting(name)
    F = tl.FIM(model, x, likelihood=PROBLEMS[name].likelihood)
    here, sizes, errors = model(x).detach(), [4e-2, 2e-2, 1e-2, 5e-3], []
    for size in sizes:
        pair = [DISTRIBUTIONS[name](f) for f in (here, moved(model, size * direction, x))]
        divergence = kl_divergence(*(pair[::-1] if swapped else pair)).mean()
        errors.append(abs(float(divergence - F.vTMv(size * direction) / 2)))
        assert errors[-1] < 0.2 * float(divergence)
    assert order(errors, sizes) > 2.7


@each
def test_t10_linearization_leaves_an_error_of_second_order(name):
    model, x, direction = setting(name)
    J = tl.Jacobian(model, x, tl.PushForwardImplicit)
    here, sizes, errors = tl.FVector.from_outputs(model(x).detach()), [4e-2, 2e-2, 1e-2, 5e-3], []
    for size in sizes:
        there = tl.FVector.from_outputs(moved(model, size * direction, x))
        errors.append(float((there - here - J @ (size * direction)).norm()))
    assert 1.9 < order(errors, sizes) < 2.5


@each
def test_distance_of_functions_is_the_quadratic_form_of_the_gauss_newton_matrix(name):
    """|df|^2 averaged over examples = dw^T G dw + o(|dw|^2), G the Fisher of a unit-variance regression."""
    model, x, direction = setting(name)
    G = tl.FIM(model, x, tl.PMatImplicit, "regression")
    here, sizes, errors = model(x).detach(), [4e-2, 2e-2, 1e-2, 5e-3], []
    for size in sizes:
        distance = (moved(model, size * direction, x) - here).square().sum() / len(x)
        errors.append(abs(float(distance - G.vTMv(size * direction))))
    assert order(errors, sizes) > 2.7


def loss_gradient(model: nn.Module, x: torch.Tensor) -> tl.PVector:
    """Gradient of a cross entropy."""
    y = torch.arange(len(x)) % 3
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    return tl.PVector.from_grad(model)


def test_t11_gradient_step_minimizes_the_linearized_cost_in_a_euclidean_ball():
    model, x, _ = setting("classification")
    g, radius = loss_gradient(model, x), 0.1
    step = -(radius / g.norm()) * g
    others = radius * tl.PVector.random_unit(model, batch=2000, generator=torch.Generator().manual_seed(0))
    assert bool((others.dot(g) >= step.dot(g)).all())
    assert float(step.dot(g)) == pytest.approx(-radius * float(g.norm()))


@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatDiag, tl.PMatBlockDiag])
def test_t11_natural_step_minimizes_the_linearized_cost_in_a_ball_of_the_metric(kind):
    """Among dw with dw^T (F + eps I) dw = c^2 none lowers the cost more than -eta (F + eps I)^-1 grad, and near ones less."""
    model, x, _ = setting("classification")
    F, g, radius, damping = tl.FIM(model, x, kind), loss_gradient(model, x), 0.1, 1e-3
    metric = F + tl.PMatEye.from_model(model, factor=damping)
    direction = F.solve(g, damping)
    step = -(radius / metric.vTMv(direction).sqrt()) * direction
    assert float(metric.vTMv(step)) == pytest.approx(radius**2)
    noise = tl.PVector.random_unit(model, batch=2000, generator=torch.Generator().manual_seed(0))
    near = step + noise * (torch.logspace(-4, 1, 2000, dtype=torch.float64) * step.norm())
    for others in (noise, near):
        scaled = others * (radius / metric.vTMv(others).sqrt())
        assert bool((scaled.dot(g) >= step.dot(g) - 1e-12).all())
    stationary = g + metric @ step * (metric.vTMv(direction).sqrt() / radius)
    assert float(stationary.norm()) < 1e-9 * float(g.norm())


def test_t11_step_under_both_constraints_is_the_damped_natural_gradient():
    """Minimizer of g.dw + (|dw|_F^2 + eps |dw|^2) / (2 eta), found by its stationarity and by comparison."""
    model, x, _ = setting("classification")
    F, g, eta, damping = tl.FIM(model, x), loss_gradient(model, x), 0.5, 1e-2

    def cost(step: tl.PVector) -> torch.Tensor:
        return step.dot(g) + (F.vTMv(step) + damping * step.dot(step)) / (2 * eta)

    step = -eta * F.solve(g, damping)
    assert_close((F @ step + damping * step).flat, (-eta * g).flat)
    others = step + tl.PVector.random_unit(
        model, batch=500, generator=torch.Generator().manual_seed(1)
    ) * torch.logspace(-3, 0, 500, dtype=torch.float64)
    assert bool((cost(others) > cost(step)).all())


def test_natural_gradient_does_not_depend_on_the_scale_of_parameters_and_the_gradient_does():
    """f(w) with w = 5 u: the natural step moves the outputs alike, the gradient step 25 times as far."""

    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor, inner = factor, PROBLEMS["two classes"].model()
            self.weight = nn.Parameter(inner[0].weight.detach()[:2] / factor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.factor * self.weight)

    x = PROBLEMS["two classes"].inputs(8)
    images = []
    for factor in (1.0, 5.0):
        model = Scaled(factor)
        F, J, g = tl.FIM(model, x), tl.Jacobian(model, x), loss_gradient_two(model, x)
        images.append((J @ F.solve(g), J @ g))
    assert_close(images[0][0].data, images[1][0].data, factor=1e3)
    assert_close(25 * images[0][1].data, images[1][1].data)


def loss_gradient_two(model: nn.Module, x: torch.Tensor) -> tl.PVector:
    """Gradient of a cross entropy with two classes."""
    nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 2).backward()
    return tl.PVector.from_grad(model)
