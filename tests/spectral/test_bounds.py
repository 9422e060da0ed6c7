"""The Lipschitz chain, spectral norms, clipped weights, and how parameters move frequencies."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.errors import InputError, ModelError
from tangentlab.spectral import (
    clip_weights,
    continued_transform,
    enumerate_regions,
    high_frequency_volume,
    lipschitz_chain,
    mode_velocities,
    parameter_gradients,
    spectral_norm,
)
from tests.spectral.networks import hat, mlp, uniform


@pytest.mark.parametrize("seed", range(5))
def test_chain_of_eq_7_holds_from_finite_differences_to_parameters(seed: int) -> None:
    model = mlp(2, 10, 3, seed=seed).double()
    chain = lipschitz_chain(model, enumerate_regions(model, [[-2, 2]] * 2))
    x, y = uniform(2000, -2, 2, 2), uniform(2000, -2, 2, 2, seed=1)
    with torch.no_grad():
        quotient = float(((model(x) - model(y)).abs()[:, 0] / (x - y).norm(dim=1)).max())
    assert chain.slopes is not None
    assert quotient <= chain.slopes <= chain.norms <= chain.parameters


def test_scaling_all_weights_scales_the_bound_by_the_power_of_the_depth() -> None:
    model = mlp(2, 10, 3)
    before = lipschitz_chain(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    after = lipschitz_chain(model)
    assert after.norms == pytest.approx(3**4 * before.norms, rel=1e-6)
    assert after.parameters == pytest.approx(3**4 * before.parameters, rel=1e-6)


def test_other_layers_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="Conv2d"):
        lipschitz_chain(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Linear(2, 1)))
    with pytest.raises(ModelError, match="at least one"):
        lipschitz_chain(nn.Identity())


class TestSpectralNorm:
    def test_it_grows_towards_the_truth_from_below(self) -> None:
        matrix = torch.randn(30, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        truth = float(torch.linalg.matrix_norm(matrix, 2))
        found = [spectral_norm(matrix, steps) for steps in (1, 10, 100, 1000)]
        assert found == sorted(found) and found[-1] == pytest.approx(truth, rel=1e-9)
        assert found[1] > 0.95 * truth and found[-1] <= truth * (1 + 1e-12)

    def test_it_is_no_eigenvalue(self) -> None:
        nilpotent = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
        assert spectral_norm(nilpotent) == pytest.approx(2.0)
        assert spectral_norm(torch.zeros(3, 3)) == 0.0

    def test_a_vector_is_refused(self) -> None:
        with pytest.raises(InputError, match="matrix"):
            spectral_norm(torch.ones(3))


def test_clipped_weights_stay_in_the_ball_until_the_hook_is_removed() -> None:
    model = mlp(1, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    handle = clip_weights(optimizer, 0.1)
    assert max(float(parameter.detach().abs().max()) for parameter in model.parameters()) <= 0.1 + 1e-8
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(4, 1)) - 5).square().sum().backward()
        optimizer.step()
        assert max(float(parameter.detach().abs().max()) for parameter in model.parameters()) == pytest.approx(0.1)
    handle.remove()
    optimizer.step()
    assert max(float(parameter.detach().abs().max()) for parameter in model.parameters()) > 0.1
    with pytest.raises(InputError, match="bound"):
        clip_weights(optimizer, 0.0)


class TestGradientsOfASpectrum:
    K = np.array([0.7, 3.0, 20.0, 150.0])

    def test_they_are_finite_differences_of_the_transform(self) -> None:
        model = mlp(1, 5, 2, seed=3).double()
        exact = parameter_gradients(model, (-4, 4), self.K)
        flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        step = 1e-6
        for number in range(len(flat)):
            sides = []
            for sign in (1, -1):
                moved = flat.clone()
                moved[number] += sign * step
                torch.nn.utils.vector_to_parameters(moved, model.parameters())
                sides.append(continued_transform(enumerate_regions(model, (-4, 4)), self.K))
            torch.nn.utils.vector_to_parameters(flat, model.parameters())
            np.testing.assert_allclose((sides[0] - sides[1]) / (2 * step), exact[:, number], atol=3e-6)

    def test_they_decay_one_power_slower_than_the_function(self) -> None:
        model = mlp(1, 12, 2, seed=1)
        edges = np.geomspace(30, 30_000, 11)
        k = np.concatenate([np.linspace(a, b, 200) for a, b in zip(edges, edges[1:])])

        def slope(sizes: np.ndarray) -> float:
            return float(np.polyfit(np.log(edges[1:]), np.log(sizes.reshape(10, 200).max(1)), 1)[0])

        partition = enumerate_regions(model, (-4, 4))
        assert slope(np.abs(continued_transform(partition, k))) == pytest.approx(-2, abs=0.1)
        gradients = np.linalg.norm(parameter_gradients(model, (-4, 4), k), axis=1)
        assert slope(gradients) == pytest.approx(-1, abs=0.1)

    def test_a_mode_moves_as_a_small_step_of_gradient_descent_moves_it(self) -> None:
        model = mlp(1, 6, 1, seed=2).double()
        x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
        y = torch.sin(5 * x)
        velocity = mode_velocities(model, x, y, (-6, 6), self.K)
        before = continued_transform(enumerate_regions(model, (-6, 6)), self.K)
        step = 1e-7
        (model(x) - y).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= step * parameter.grad
        after = continued_transform(enumerate_regions(model, (-6, 6)), self.K)
        np.testing.assert_allclose((after - before) / step, velocity, rtol=1e-3, atol=1e-5)

    def test_the_speed_of_a_mode_is_of_order_one_over_k(self) -> None:
        model = mlp(1, 20, 2, seed=1)
        x = torch.arange(200, dtype=torch.float64)[:, None] / 200
        speeds = []
        for number in (1, 4, 16, 64):
            k = 2 * np.pi * number
            speeds.append(abs(mode_velocities(model, x, torch.sin(k * x), (-0.5, 1.5), [k])[0]) * k)
        assert max(speeds) < 20 * speeds[0]

    def test_zero_is_refused(self) -> None:
        with pytest.raises(InputError, match="other than 0"):
            parameter_gradients(hat(), (-2, 2), [0.0])


class TestVolume:
    def test_sets_are_nested_and_large_frequencies_rare(self) -> None:
        k = np.geomspace(1, 1000, 60)
        found = high_frequency_volume(mlp(1, 5, 1), 1.0, 1e-3, k, samples=40)
        assert (np.diff(found.share) <= 0).all()
        assert found.share[0] > 0.8 and found.share[-1] < 0.1

    def test_one_kink_is_its_formula(self) -> None:
        """f = v relu(w x + b): a kink of size |v w| where |b / w| < 1, so the share is P(|v w| > eps k^2, |b| < |w|)."""
        model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1, bias=False))
        k = np.array([1.0, 5.0, 8.0])
        found = high_frequency_volume(model, 1.0, 0.01, k, samples=600, generator=torch.Generator().manual_seed(1))
        draws = np.random.default_rng(0).uniform(size=(3, 1_000_000))
        truth = [(((draws[0] * draws[1]) > 0.01 * one**2) & (draws[2] < draws[0])).mean() for one in k]
        assert np.abs(found.share - truth).max() < 4 * 0.5 / np.sqrt(600)

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(InputError, match="positive"):
            high_frequency_volume(hat(), 1.0, 0.1, [2.0, 1.0])
