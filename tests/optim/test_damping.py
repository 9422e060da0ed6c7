"""The forms of damping, and what adaptive dampings decide."""

import math

import pytest
import torch

from tangentlab.optim import LevenbergMarquardt, NoiseAware, Trial
from tangentlab.optim.damping import balance, damped


def test_factored_damping_adds_to_the_eigenvalues_of_both_factors() -> None:
    torch.manual_seed(0)
    left, right, scale = torch.rand(2, 3), torch.rand(2, 4), torch.rand(2, 3, 4)
    eps, pi = 0.07, torch.tensor([[2.0], [0.5]])
    product = (left + math.sqrt(eps) / 1 * 1 / pi * 1)[:, :, None] * (right + math.sqrt(eps) * pi)[:, None, :]
    truth = scale + product - left[:, :, None] * right[:, None, :]
    torch.testing.assert_close(damped(scale, left, right, eps, "factored", pi), truth)
    torch.testing.assert_close(damped(scale, left, right, eps, "plain", pi), scale + eps)


def test_pi_makes_both_factors_equally_damped() -> None:
    left, right = torch.tensor([[0.01]]), torch.tensor([[4.0]])
    pi = balance(left, right, True)
    assert float(pi) == pytest.approx(20.0)
    root = 0.1
    assert float(root * pi / right) == pytest.approx(float(root / pi / left))
    assert float(balance(left, right, False)) == 1.0


@pytest.mark.parametrize(
    ("change", "grows"), [(-1.0, -1), (-0.8, -1), (-0.5, 0), (-0.2, 1), (0.3, 1), (float("nan"), 1)]
)
@pytest.mark.parametrize("kind", [LevenbergMarquardt, NoiseAware])
def test_without_noise_the_ratio_of_changes_decides(kind, change: float, grows: int) -> None:
    damping = kind(0.1, period=3, factor=0.9)
    damping.update(Trial(change, 0.0, predicted=-1.0))
    assert damping.value == pytest.approx(0.1 * 0.9 ** (-3 * grows))


@pytest.mark.parametrize("kind", [LevenbergMarquardt, NoiseAware])
def test_a_step_that_the_model_itself_calls_bad_raises_the_damping(kind) -> None:
    damping = kind(0.1, period=1, factor=0.5)
    damping.update(Trial(-1.0, 0.1, predicted=0.2))
    assert damping.value == pytest.approx(0.2)


def test_noise_aware_damping_moves_by_the_probability_of_failure_minus_that_of_success() -> None:
    trial = Trial(change=-0.2, error=0.3, predicted=-1.0)
    damping = NoiseAware(0.1, period=1, factor=0.5)
    normal = torch.distributions.Normal(0.0, 1.0)
    bad = float(normal.cdf(torch.tensor((-0.2 + 0.25) / 0.3)))
    good = float(normal.cdf(torch.tensor((-0.75 + 0.2) / 0.3)))
    damping.update(trial)
    assert damping.value == pytest.approx(0.1 * 2 ** (bad - good), rel=1e-5)


def test_the_noisier_a_measurement_the_less_it_moves_the_damping() -> None:
    moves = [abs(NoiseAware().direction(Trial(0.1, error, -1.0))) for error in (0.01, 0.3, 1.0, 10.0)]
    assert moves == sorted(moves, reverse=True)
    assert moves[0] > 0.999 and moves[-1] < 0.05


def test_the_damping_stays_within_its_bounds() -> None:
    damping = LevenbergMarquardt(0.1, period=1, factor=0.1, bounds=(0.05, 0.5))
    damping.update(Trial(1.0, 0.0, -1.0))
    assert damping.value == 0.5
    for _ in range(3):
        damping.update(Trial(-1.0, 0.0, -1.0))
    assert damping.value == 0.05
