"""The scale of the start: the corrected limit of the slides, and a meter that reads 0 in the kernel regime."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from tangentlab import NTK
from tangentlab.errors import InputError
from tangentlab.kernels import predict, ridge_dual
from tangentlab.linearized import regime_of, scaled_init


class Net(nn.Module):
    """Two layers with a ReLU and without biases: homogeneous of degree 2."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 60, bias=False), nn.Linear(60, 1, bias=False)

    def forward(self, x):
        return self.outer(self.inner(x).relu())


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(6, 1, generator=generator, dtype=torch.float64)


def trained(alpha: float, steps: int = 8_000, rate: float = 0.03):
    torch.manual_seed(1)
    model = scaled_init(Net().double(), alpha)
    x, y = data()
    optimizer = torch.optim.SGD(model.model.parameters(), lr=rate / max(alpha, 1.0) ** 2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().sum()
        loss.backward()
        optimizer.step()
        if float(loss) < 1e-10:
            break
    return model, float(loss)


def test_outputs_are_zero_at_the_start_and_the_model_is_left_alone():
    model = Net()
    before = [parameter.clone() for parameter in model.parameters()]
    scaled = scaled_init(model, 5.0)
    assert float(scaled(torch.randn(4, 3)).detach().abs().max()) == 0
    for old, new, copy in zip(before, model.parameters(), scaled.model.parameters()):
        torch.testing.assert_close(old, new)
        torch.testing.assert_close(copy, 5 * old)


def test_large_starts_end_at_the_kernel_interpolant_and_small_ones_elsewhere():
    x, y = data()
    torch.manual_seed(2)
    probe = torch.randn(9, 3, dtype=torch.float64)
    errors, readings = [], []
    for alpha in (0.5, 3.0, 30.0):
        model, loss = trained(alpha)
        assert loss < 1e-6
        start = model.start
        start.requires_grad_()
        kernel = NTK(start, torch.cat([x, probe])).matrix()
        start.requires_grad_(False)
        twin = predict(kernel[6:, :6], ridge_dual(kernel[:6, :6], y, 0.0))
        with torch.no_grad():
            errors.append(float((model(probe) - twin).norm() / twin.norm()))
            offset = start(probe)
        readings.append(regime_of(start, model.model, probe, twin=twin + offset))
        assert readings[-1].function == pytest.approx(errors[-1], rel=1e-6)
    assert errors[0] > 10 * errors[1] > 30 * errors[2]
    assert errors[2] < 1e-2
    for name in ("kernel", "kernel_direction", "parameters", "linearity"):
        values = [getattr(reading, name) for reading in readings]
        assert values[0] > values[1] > values[2] >= 0
    assert readings[2].kernel < 0.02


def test_the_corrected_limit_holds_and_the_printed_one_does_not():
    """alpha^{D-1} (w_alpha(t / alpha^{2D-2}) - alpha w_0) -> w_K(t) - w_0 for D = 2, by gradient descent with small steps."""
    x, y = data()
    x, y = x[:, :2], y[:, 0]
    w0 = torch.cat([torch.ones(2), torch.ones(2)]).double()

    def predictor(w):
        return w[:2] ** 2 - w[2:] ** 2

    time, steps = 0.2, 1_000

    def path(alpha, linear=False):
        w = (w0 if linear else alpha * w0).clone()
        duration = time if linear else time / alpha**2
        for _ in range(steps):
            here = w.clone().requires_grad_()
            beta = 2 * torch.cat([w0[:2], -w0[2:]]) * (here - w0) if linear else None
            beta = beta[:2] + beta[2:] if linear else predictor(here)
            (slope,) = torch.autograd.grad((x @ beta - y).square().sum(), here)
            w = w - duration / steps * slope
        return w

    limit = path(1.0, linear=True) - w0
    errors = [float((alpha * (path(alpha) - alpha * w0) - limit).norm()) for alpha in (3.0, 10.0, 30.0)]
    assert errors[0] > 5 * errors[1] > 25 * errors[2]
    printed = [float((path(alpha) / alpha - w0 - limit).norm()) for alpha in (3.0, 10.0, 30.0)]
    assert min(printed) > 0.1


@pytest.mark.parametrize("alpha", [0.0, -2.0, math.nan, math.inf])
def test_scales_that_are_not_positive_are_refused(alpha):
    with pytest.raises(InputError, match="alpha"):
        scaled_init(Net(), alpha)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).eval()


def test_a_start_without_a_kernel_is_infinitely_far():
    start, trained, probe = small(), small(), torch.randn(5, 3)
    for parameter in start.parameters():
        nn.init.zeros_(parameter)
    reading = regime_of(start, trained, probe)
    assert reading.parameters == math.inf and regime_of(start, start, probe).parameters == 0


def test_the_start_keeps_its_own_running_statistics():
    start, probe = small(), torch.randn(5, 3)
    trained = deepcopy(start)
    with torch.no_grad():
        trained[1].running_mean += 1.0
    expected = (NTK(trained, probe).tensor() - NTK(start, probe).tensor()).norm() / NTK(start, probe).tensor().norm()
    assert regime_of(start, trained, probe).kernel == pytest.approx(float(expected), rel=1e-4)


def test_twins_and_starts_of_another_shape_are_refused():
    start, probe = small(), torch.randn(5, 3)
    with pytest.raises(InputError, match="twin"):
        regime_of(start, small(), probe, twin=torch.zeros(5))
    with pytest.raises(InputError, match="other names or shapes"):
        regime_of(nn.Linear(2, 1), nn.Linear(3, 1), probe)
    with pytest.raises(InputError, match="Module"):
        scaled_init(lambda x: x, 2.0)
