"""Closed forms of training in function space against simulated training, ODE solvers and kernel regression."""

import math

import pytest
import torch
from torch import Tensor, nn

from tangentlab import NTK, FMatDense, FMatImplicit
from tangentlab.errors import InputError
from tangentlab.kernels import gaussian_process, predict, ridge_dual
from tangentlab.linearized import GradientDescent, GradientFlow, KernelDynamics, kernel_descent, kernel_flow, linearize
from tangentlab.models import MLP

SGD = {
    "plain": {"lr": 0.3},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "decay": {"lr": 0.3, "weight_decay": 0.05},
    "all": {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
}


class Features:
    """A linear model with random features: 12 training points, 5 others, 30 parameters; one direction is a null mode."""

    def __init__(self, outputs: int | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        both = torch.randn(17, 30, generator=generator, dtype=torch.float64) / 30**0.5
        both[11] = both[10]  # two equal points: a null mode with different targets
        self.train, self.test = both[:12], both[12:]
        self.kernel, self.cross = self.train @ self.train.t(), self.test @ self.train.t()
        shape = (17,) if outputs is None else (17, outputs)
        self.initial = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.targets = torch.randn(shape, generator=generator, dtype=torch.float64)

    def simulate(self, steps: int, scale: float, **options: float) -> tuple[Tensor, Tensor]:
        """torch's own SGD on the weights."""
        weights = nn.Parameter(torch.zeros(30, *self.targets.shape[1:], dtype=torch.float64))
        optimizer = torch.optim.SGD([weights], **options)
        for _ in range(steps):
            optimizer.zero_grad()
            (0.5 * scale * (self.initial[:12] + self.train @ weights - self.targets[:12]).square().sum()).backward()
            optimizer.step()
        moved = weights.detach()
        return self.initial[:12] + self.train @ moved, self.initial[12:] + self.test @ moved

    def dynamics(self, optimizer, kernel=None) -> KernelDynamics:
        kernel = self.kernel if kernel is None else kernel
        return KernelDynamics(kernel, self.targets[:12], self.initial[:12], optimizer=optimizer)


@pytest.mark.parametrize("outputs", [None, 3])
@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 300])
def test_gradient_descent_in_closed_form_is_simulated_training_to_rounding(steps, options, outputs) -> None:
    data = Features(outputs)
    dynamics = data.dynamics(GradientDescent(scale=0.7, **options))
    train, test = data.simulate(steps, 0.7, **options)
    torch.testing.assert_close(dynamics.train(steps), train, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dynamics.test(steps, data.cross, data.initial[12:]), test, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dynamics.loss(steps), 0.35 * (train - data.targets[:12]).square().sum())


@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_the_limit_is_where_many_steps_end(options) -> None:
    data = Features()
    dynamics = data.dynamics(GradientDescent(**options))
    for found, truth in (
        (dynamics.train(math.inf), dynamics.train(10**6)),
        (dynamics.test(math.inf, data.cross), dynamics.test(10**6, data.cross)),
    ):
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("time", [0.0, 0.3, 20.0])
def test_gradient_flow_solves_its_differential_equation(time: float, decay: float, momentum: float | None) -> None:
    from scipy.integrate import solve_ivp

    data, scale, lr = Features(), 0.7, 0.2
    flow = data.dynamics(GradientFlow(lr, momentum, decay, scale))
    start, train, y = (t.numpy() for t in (data.initial[:12], data.train, data.targets[:12]))

    def gradient(w):
        return scale * train.T @ (start + train @ w - y) + decay * w

    def slope(_, state):
        if momentum is None:
            return -lr * gradient(state)
        w, velocity = state[:30], state[30:]
        force = -(1 - momentum) / math.sqrt(lr) * velocity - gradient(w)
        return math.sqrt(lr) * torch.cat([torch.tensor(velocity), torch.tensor(force)]).numpy()

    size = 30 if momentum is None else 60
    solved = solve_ivp(slope, (0, max(time, 1e-9)), torch.zeros(size).double().numpy(), rtol=1e-12, atol=1e-13)
    w = torch.from_numpy(solved.y[:30, -1])
    torch.testing.assert_close(flow.train(time), data.initial[:12] + data.train @ w, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        flow.test(time, data.cross, data.initial[12:]), data.initial[12:] + data.test @ w, rtol=1e-8, atol=1e-8
    )


def test_heavy_ball_flow_is_the_limit_of_small_learning_rates_at_fixed_friction() -> None:
    data, errors, friction = Features(), [], 0.5
    for lr in (1e-2, 1e-3, 1e-4):
        momentum, steps = 1 - friction * math.sqrt(lr), round(4 / math.sqrt(lr))
        runs = [data.dynamics(kind(lr, momentum)).train(steps) for kind in (GradientDescent, GradientFlow)]
        errors.append(float((runs[0] - runs[1]).norm()))
    assert errors[0] / errors[1] == pytest.approx(10**0.5, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(10**0.5, rel=0.2)


def test_at_infinity_it_is_kernel_regression_of_the_residual_and_with_weight_decay_ridge_regression() -> None:
    data = Features(2)
    residual = data.targets[:12] - data.initial[:12]
    limit = data.dynamics(GradientFlow()).test(math.inf, data.cross, data.initial[12:])
    interpolated = data.initial[12:] + predict(data.cross, ridge_dual(data.kernel, residual, 0.0))
    torch.testing.assert_close(limit, interpolated, rtol=1e-9, atol=1e-9)
    for optimizer in (GradientFlow(0.1, weight_decay=0.3, scale=2.0), GradientDescent(0.1, 0.9, 0.3, 2.0)):
        decayed = data.dynamics(optimizer)
        ridge = ridge_dual(data.kernel, residual, 0.3 / (2.0 * 12))
        torch.testing.assert_close(decayed.coefficients(math.inf), ridge, rtol=1e-9, atol=1e-9)
        process = gaussian_process(data.kernel, residual, 0.15, cross_kernel=data.cross)
        torch.testing.assert_close(decayed.test(math.inf, data.cross), process.mean, rtol=1e-9, atol=1e-9)


def test_modes_decay_on_their_own_with_their_time_constants() -> None:
    data = Features()
    for optimizer in (GradientFlow(0.2), GradientDescent(0.2), GradientFlow(0.5, 0.3)):
        dynamics = data.dynamics(optimizer)
        constants = dynamics.time_constants()
        assert bool((constants[:-1] <= constants[1:] + 1e-9).all()) and math.isinf(float(constants[-1]))
        slow = slice(5, 10)  # the slow, overdamped modes
        late, later = (dynamics.modes(t).abs()[slow, 0].log() for t in (400, 800))
        if optimizer.momentum is None:
            torch.testing.assert_close((late - later) / 400, 1 / constants[slow], rtol=1e-8, atol=1e-8)
        residuals = dynamics.train(7) - data.targets[:12]
        torch.testing.assert_close(dynamics.spectrum.vectors @ dynamics.modes(7)[:, 0], residuals)


def test_time_constants_of_momentum_are_the_rates_of_late_decay() -> None:
    data = Features()
    for optimizer in (GradientDescent(0.3, 0.9), GradientDescent(0.3, 0.9, nesterov=True), GradientFlow(0.3, 0.9)):
        dynamics = data.dynamics(optimizer)
        envelopes = []
        for start in (150, 250):
            window = torch.stack([dynamics.modes(start + t).abs()[:, 0] for t in range(40)])
            envelopes.append(window.max(0).values.log())
        rate = (envelopes[0] - envelopes[1])[:10] / 100
        torch.testing.assert_close(rate, 1 / dynamics.time_constants()[:10], rtol=0.1, atol=1e-3)


def test_a_learning_rate_at_the_limit_of_stability_is_refused_at_infinity_and_named() -> None:
    data = Features()
    for options in ({}, {"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}, {"weight_decay": 0.3, "momentum": 0.2}):
        largest = data.dynamics(GradientDescent(1e-3, **options)).largest_lr()
        calm, wild = (data.dynamics(GradientDescent(f * largest, **options)) for f in (0.98, 1.02))
        assert calm.loss(2000) < 1e3 < wild.loss(2000)
        calm.train(math.inf)
        with pytest.raises(InputError, match="diverges"):
            wild.train(math.inf)


def network() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(16, 4, dtype=torch.float64)
    return MLP((4, 8, 3), "tanh").double(), x[:10], x[10:], torch.randn(10, 3, dtype=torch.float64)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_tangent_kernel_of_a_network_predicts_the_training_of_its_linearization(momentum: float) -> None:
    model, x, other, y = network()
    linear = linearize(model)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=momentum)
    for _ in range(50):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(linear(x), y).backward()
        optimizer.step()
    descent = GradientDescent(0.1, momentum, scale=2 / y.numel())
    dynamics = KernelDynamics(NTK(model, x), y, model(x).detach(), optimizer=descent)
    torch.testing.assert_close(dynamics.train(50), linear(x).detach(), rtol=1e-10, atol=1e-10)
    for kind in (FMatDense, FMatImplicit):
        cross = NTK(model, other, x, representation=kind)
        found = dynamics.test(50, cross, model(other).detach())
        torch.testing.assert_close(found, linear(other).detach(), rtol=1e-10, atol=1e-10)


def test_eigenpairs_of_an_implicit_kernel_give_the_dynamics_of_what_they_span_with_a_bound_of_the_rest() -> None:
    torch.manual_seed(0)
    model = MLP((4, 6, 1), "tanh").double()
    x, y = torch.randn(120, 4, dtype=torch.float64), torch.randn(120, 1, dtype=torch.float64)
    implicit = NTK(model, x, representation=FMatImplicit)
    exact = KernelDynamics(NTK(model, x), y, model(x).detach(), optimizer=GradientFlow(0.01))
    few = KernelDynamics(implicit.top_eigenpairs(20), y, model(x).detach(), optimizer=GradientFlow(0.01))
    assert not few.spectrum.complete and exact.spectrum.complete and float(exact.error_bound(5.0)) == 0
    cross = NTK(model, x[:5] + 0.1, x, representation=FMatImplicit)
    previous = -1.0
    for time in (0.0, 1.0, 10.0, 100.0, 1e5):
        error, bound = (few.train(time) - exact.train(time)).norm(), few.error_bound(time)
        assert error <= bound + 1e-9 and float(bound) >= previous
        previous = float(bound)
    torch.testing.assert_close(few.modes(3.0).abs(), exact.modes(3.0)[:20].abs(), rtol=1e-7, atol=1e-7)
    assert float(few.error_bound(0.01)) < 1e-3 * float(y.norm())
    torch.testing.assert_close(few.test(1.0, cross), exact.test(1.0, cross), rtol=0.05, atol=0.05)
    sgd = KernelDynamics(implicit.top_eigenpairs(20), y, model(x).detach(), optimizer=GradientDescent(1e-3, 0.9))
    full = KernelDynamics(NTK(model, x), y, model(x).detach(), optimizer=GradientDescent(1e-3, 0.9))
    assert (sgd.train(100) - full.train(100)).norm() <= sgd.error_bound(100) + 1e-9


def test_early_stopping_finds_the_best_of_the_times_and_infinity_may_be_one() -> None:
    data = Features(2)
    dynamics = data.dynamics(GradientFlow())
    candidates = [0.0, 0.1, 1.0, 10.0, math.inf]
    best = dynamics.early_stopping(candidates, data.cross, data.targets[12:], data.initial[12:])
    losses = [
        0.5 * (dynamics.test(t, data.cross, data.initial[12:]) - data.targets[12:]).square().sum().item() / 5
        for t in candidates
    ]
    assert best.losses.tolist() == pytest.approx(losses) and best.loss == pytest.approx(min(losses))
    assert best.time == candidates[losses.index(min(losses))]
    with pytest.raises(InputError, match="at least one"):
        dynamics.early_stopping([], data.cross, data.targets[12:])


@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_steps_with_any_loss_are_the_closed_form_for_the_squared_one(options) -> None:
    data = Features(2)
    y = data.targets[:12]
    run = kernel_descent(
        data.kernel,
        lambda f: 0.35 * (f - y).square().sum(),
        data.initial[:12],
        [0, 3, 40],
        **{"momentum": 0.0, **options},
    )
    dynamics = data.dynamics(GradientDescent(scale=0.7, **options))
    for place, steps in enumerate(run.times.tolist()):
        torch.testing.assert_close(run.train[place], dynamics.train(steps), rtol=1e-11, atol=1e-11)
        other = run.test(data.cross, data.initial[12:])[place]
        torch.testing.assert_close(other, dynamics.test(steps, data.cross, data.initial[12:]), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", [FMatDense, FMatImplicit])
def test_cross_entropy_in_function_space_is_the_training_of_the_linearized_network(kind) -> None:
    model, x, other, _ = network()
    labels = torch.arange(10) % 3

    def loss(outputs: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, labels)

    linear = linearize(model)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.3, momentum=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        loss(linear(x)).backward()
        optimizer.step()
    kernel, cross = NTK(model, x, representation=kind), NTK(model, other, x, representation=kind)
    run = kernel_descent(kernel, loss, model(x).detach(), [20], lr=0.3, momentum=0.5)
    torch.testing.assert_close(run.train[0], linear(x).detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        run.test(cross, model(other).detach())[0], linear(other).detach(), rtol=1e-10, atol=1e-10
    )


def test_the_flow_of_any_loss_is_the_closed_form_for_the_squared_one_and_the_limit_of_small_steps() -> None:
    data = Features(2)
    y, labels = data.targets[:12], torch.arange(12) % 2
    flow = kernel_flow(data.kernel, lambda f: 0.5 * (f - y).square().sum(), data.initial[:12], [0.0, 1.0, 30.0], lr=0.5)
    dynamics = data.dynamics(GradientFlow(0.5))
    for place, time in enumerate(flow.times.tolist()):
        torch.testing.assert_close(flow.train[place], dynamics.train(time), rtol=1e-6, atol=1e-6)

    def loss(outputs: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, labels)

    truth, errors = kernel_flow(data.kernel, loss, data.initial[:12], [10.0]).train[0], []
    for steps in (100, 200):
        found = kernel_descent(data.kernel, loss, data.initial[:12], [steps], lr=10.0 / steps).train[0]
        errors.append(float((found - truth).norm()))
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


def test_shapes_and_settings_that_mean_nothing_are_refused() -> None:
    data = Features()
    kernel, y = data.kernel, data.targets[:12]
    with pytest.raises(InputError, match="do not belong"):
        KernelDynamics(kernel, y[:5])
    with pytest.raises(InputError, match="initial"):
        KernelDynamics(kernel, y, data.initial)
    with pytest.raises(InputError, match="positive semi-definite"):
        KernelDynamics(-kernel, y)
    with pytest.raises(InputError, match="whole steps"):
        data.dynamics(GradientDescent(0.1)).train(1.5)
    with pytest.raises(InputError, match="time"):
        data.dynamics(GradientFlow()).train(-1)
    for bad in ({"lr": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"scale": 0.0}):
        with pytest.raises(InputError):
            GradientFlow(**bad)
    with pytest.raises(InputError, match="columns"):
        data.dynamics(GradientFlow()).test(1.0, data.cross[:, :3])
    with pytest.raises(InputError, match="one number"):
        kernel_descent(kernel, lambda f: f, y, [1], lr=0.1)


def test_results_follow_the_dtype_and_rounding_is_no_mode() -> None:
    data = Features()
    single = KernelDynamics(data.kernel.float(), data.targets[:12].float(), data.initial[:12].float())
    assert single.train(1.0).dtype == torch.float32
    assert int((single.eigenvalues == 0).sum()) == 1
    exact = data.dynamics(GradientFlow())
    torch.testing.assert_close(single.train(math.inf).double(), exact.train(math.inf), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        single.test(math.inf, data.cross.float()).double(), exact.test(math.inf, data.cross), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("optimizer", [GradientFlow(), GradientFlow(lr=1e-2, momentum=0.9), GradientDescent(lr=1e-2)])
def test_null_modes_do_not_blow_up_their_rounding_on_other_points(optimizer, dtype) -> None:
    features = torch.randn(14, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features[1] = features[0]
    kernel = (features @ features.t() / 40).to(dtype)
    targets = torch.sin(torch.arange(12, dtype=dtype))
    targets[1] = targets[0]
    dynamics = KernelDynamics(kernel[:12, :12], targets, optimizer=optimizer)
    late, limit = (dynamics.test(time, kernel[12:, :12]) for time in (1e7, math.inf))
    torch.testing.assert_close(late, limit, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("value", [1e-14, 1e-9, 1e-3, 10.0])
def test_time_constants_of_the_heavy_ball_do_not_cancel(value: float) -> None:
    found = float(GradientFlow(lr=1e-6, momentum=0.9).time_constants(torch.tensor([value]))[0])
    half = (1 - 0.9) / 1e-3 / 2
    slower = (half + math.sqrt(half**2 - value)) / value  # the larger root of value T^2 - 2 half T + 1
    assert found == pytest.approx(slower / 1e-3, rel=1e-6)


@pytest.mark.parametrize(
    "optimizer", [GradientFlow(), GradientDescent(momentum=0.9), GradientDescent(momentum=0.9, nesterov=True)]
)
def test_a_null_mode_takes_for_ever(optimizer) -> None:
    assert math.isinf(float(optimizer.time_constants(torch.zeros(1))[0]))
