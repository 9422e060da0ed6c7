"""What the closed forms of training refuse: shapes that would broadcast, divergence, settings out of range."""

import math

import pytest
import torch

from tangentlab import FVector
from tangentlab.errors import InputError
from tangentlab.linearized import GradientDescent, GradientFlow, KernelDynamics, kernel_descent
from tangentlab.objects.matrix_free import Eigenpairs


@pytest.fixture
def dynamics() -> KernelDynamics:
    return KernelDynamics(torch.eye(5), torch.ones(5))


def test_a_column_next_to_a_list_is_refused_instead_of_becoming_a_square(dynamics) -> None:
    cross = torch.rand(3, 5)
    with pytest.raises(InputError, match=r"initial has the shape \(3, 1\), the function \(3,\)"):
        dynamics.test(1.0, cross, torch.zeros(3, 1))
    with pytest.raises(InputError, match="targets has the shape"):
        dynamics.early_stopping([1.0], cross, torch.zeros(3, 1))
    with pytest.raises(InputError, match="initial has the shape"):
        dynamics.early_stopping([1.0], cross, torch.zeros(3), torch.zeros(3, 1))
    path = kernel_descent(torch.eye(5), lambda f: f.square().sum(), torch.ones(5), range(3), lr=0.1)
    with pytest.raises(InputError, match="initial has the shape"):
        path.test(cross, torch.zeros(3, 1))
    assert path.test(cross, torch.zeros(3)).shape == (3, 3)


def test_descent_that_has_left_all_numbers_is_refused_with_the_largest_rate() -> None:
    kernel, diverging = torch.diag(torch.tensor([1.0, 0.1])), GradientDescent(lr=5.0)
    dynamics = KernelDynamics(kernel, torch.ones(2), optimizer=diverging)
    assert torch.isfinite(dynamics.train(20)).all()
    for time in (5000, math.inf):
        with pytest.raises(InputError, match="allows less than 2"):
            dynamics.train(time)


def test_settings_that_torch_refuses_are_refused() -> None:
    with pytest.raises(InputError, match="momentum"):
        GradientDescent(nesterov=True)
    options = {"loss": lambda f: f.sum(), "initial": torch.ones(2)}
    with pytest.raises(InputError, match="lr"):
        kernel_descent(torch.eye(2), steps=[1], lr=-0.1, **options)
    with pytest.raises(InputError, match="steps are"):
        kernel_descent(torch.eye(2), steps=5, lr=0.1, **options)


@pytest.mark.parametrize("time", [50.0, 200.0, 1000.0])
def test_the_bound_of_what_is_left_out_holds_for_oscillating_modes_too(time: float) -> None:
    flow, kept = GradientFlow(lr=0.1, momentum=0.999), FVector(torch.eye(3)[:1, None, :])
    pairs = Eigenpairs(torch.ones(1), kept, torch.zeros(1), 0, True, "by hand")
    bound = float(KernelDynamics(pairs, torch.ones(3), optimizer=flow).error_bound(time))
    every = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    largest = float((1 - flow.factors(every, time)[0]).abs().max())
    assert 0.9999 * largest <= bound / math.sqrt(2) <= 1.0001 * largest
