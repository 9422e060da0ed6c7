"""The quadratic model against its own differential equations, and the statements that its closed form makes."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from tangentlab.errors import InputError
from tangentlab.linearized.quadratic import QuadraticModel, sequential_value
from tangentlab.linearized.quadratic_examples import noisy_labels, reversed_order, spurious_feature

REGIMES = ("full", "linearized")


def random_model(seed, n=6, d=9) -> QuadraticModel:
    generator = seed(3)
    inputs = torch.randn(n, d, generator=generator, dtype=torch.float64)
    start = 0.05 + torch.rand(d, generator=generator, dtype=torch.float64)
    return QuadraticModel.of(inputs, torch.randn(n, generator=generator, dtype=torch.float64), start)


def weight_flow(model: QuadraticModel, times: torch.Tensor, linearized: bool) -> torch.Tensor:
    """theta(t) in input coordinates from dw/dt = -dl/dw, with nothing but the model's definition: no mode, no formula."""
    inputs, targets, basis = model.inputs.numpy(), model.targets.numpy(), model.basis.numpy()
    first = np.sqrt(2 * model.start.numpy())

    def theta(w):
        return basis @ (first**2 / 2 + first * (w - first) if linearized else w**2 / 2)

    def slope(_, w):
        gradient = basis.T @ (inputs.T @ (inputs @ theta(w) - targets))
        return -(first if linearized else w) * gradient

    found = solve_ivp(slope, (0, float(times[-1])), first, "DOP853", times.numpy(), rtol=1e-12, atol=1e-13)
    return torch.from_numpy(np.stack([theta(w) for w in found.y.T]))


@pytest.mark.parametrize("regime", REGIMES)
def test_the_closed_form_solves_the_flow_of_the_weights(seed, regime):
    model = random_model(seed)
    times = torch.linspace(0, 3, 7, dtype=torch.float64)
    truth = weight_flow(model, times, regime == "linearized")
    assert (model.weights(times, regime) - truth).abs().max() < 1e-8


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    "example", [reversed_order((5, 3, 2, 1, 0.5)), noisy_labels(8, 2, 1.5), spurious_feature(8, 2, 0.4, 0.6, 14)]
)
def test_the_three_examples_solve_the_flow_as_well(regime, example):
    model = example.model(1e-2)
    times = torch.linspace(0, 20, 5, dtype=torch.float64)
    truth = weight_flow(model, times, regime == "linearized")
    assert (model.weights(times, regime) - truth).abs().max() < 1e-8


def test_the_basis_is_orthonormal_diagonalizes_the_inputs_and_carries_labels_of_one_sign(seed):
    for model in (random_model(seed), random_model(seed, 9, 5), noisy_labels(10, 3, 2.0, 15).model(0.1)):
        d = model.inputs.shape[1]
        torch.testing.assert_close(model.basis.T @ model.basis, torch.eye(d, dtype=torch.float64), rtol=0, atol=1e-12)
        gram = model.basis.T @ model.inputs.T @ model.inputs @ model.basis
        torch.testing.assert_close(gram, torch.diag(model.mu), rtol=0, atol=1e-11)
        correlations = model.basis.T @ model.inputs.T @ model.targets
        torch.testing.assert_close(correlations, model.correlations, rtol=0, atol=1e-11)
        assert (correlations > -1e-11).all()


@pytest.mark.parametrize("regime", REGIMES)
def test_both_regimes_start_at_the_same_function_and_end_at_the_least_squares_solution(seed, regime):
    model = random_model(seed, 12, 5)
    first = model.basis @ model.start
    torch.testing.assert_close(model.weights(0.0, regime)[0], first)
    assert (model.solution > 0).all()
    best = torch.linalg.lstsq(model.inputs, model.targets[:, None]).solution[:, 0]
    torch.testing.assert_close(model.weights(torch.inf, regime)[0], best)


def test_a_mode_without_labels_decays_and_a_mode_without_inputs_stays(seed):
    model = noisy_labels(6, 1, 1.0, 10).model(0.2)
    modes = model.modes(torch.tensor([0.0, 1.0, 1e9]))
    silent = (model.mu > 0) & (model.solution == 0)
    beyond = model.mu == 0
    assert int(silent.sum()) == 4 and int(beyond.sum()) == 4
    assert (modes[2, silent] < 1e-8).all() and (modes[1, silent] < 0.1).all() and (modes[:, beyond] == 0.1).all()


@pytest.mark.parametrize("regime", REGIMES)
def test_convergence_times_are_when_the_distance_is_eps(seed, regime):
    model = random_model(seed, 12, 6)
    eps = 1e-3
    times = model.convergence_times(eps, regime)
    reached = torch.stack([model.modes(float(t), regime)[0, mode] for mode, t in enumerate(times)])
    torch.testing.assert_close((reached - model.solution).abs(), torch.full_like(times, eps), rtol=1e-8, atol=0)


def test_convergence_times_above_the_solution_of_silent_modes_and_within_eps():
    model = noisy_labels(6, 1, 1.0, 10).model(0.2)
    times = model.convergence_times(1e-2)
    silent = (model.mu > 0) & (model.solution == 0)
    torch.testing.assert_close(model.modes(float(times[silent][0]))[0, silent], torch.full((4,), 1e-2).double())
    assert (times[model.mu == 0] == 0).all()


@pytest.mark.parametrize("regime", REGIMES)
def test_leading_terms_of_the_convergence_times_become_exact_for_small_starts(regime):
    example = reversed_order((5, 3, 2, 1))
    errors = []
    for sigma in (1e-2, 1e-4, 1e-6):
        model = example.model(sigma)
        exact, leading = (model.convergence_times(1e-3, regime, approximate=a) for a in (False, True))
        errors.append(float(((leading - exact) / exact).abs().max()))
    assert errors[0] > errors[2] and errors[2] < 1e-3


def test_claim_1_labels_set_the_order_of_the_full_model_only():
    model = reversed_order((5, 3, 2, 1, 0.5)).model(1e-3)
    assert model.schedule("full").tolist() == [4, 3, 2, 1, 0]
    assert model.schedule("linearized").tolist() == [0, 1, 2, 3, 4]
    halves = torch.stack([model.convergence_times(float(end) / 2, "full")[i] for i, end in enumerate(model.solution)])
    torch.testing.assert_close(halves, torch.tensor([5.3, 3.3, 1.9, 1.5, 1.0]).double(), rtol=0.05, atol=0.05)
    lazy = [float(model.convergence_times(float(end) / 2, "linearized")[i]) for i, end in enumerate(model.solution)]
    assert np.allclose(lazy, (138, 231, 347, 696, 1393), rtol=0.01)


def test_claim_1_ratios_of_times_approach_the_inverse_ratios_of_correlations():
    gaps = []
    for sigma in (1e-4, 1e-12, 1e-48):
        model = reversed_order((4, 2, 1)).model(sigma)
        times = model.convergence_times(1e-2)
        predicted = model.correlations[0] / model.correlations
        gaps.append(float((times / times[0] / predicted - 1).abs().max()))
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.05


@pytest.mark.parametrize("sigma", [1e-4, 1e-8])
def test_claim_2_the_finite_sigma_form_is_right_to_a_percent(sigma):
    base = reversed_order((4, 2, 1))
    shape = torch.tensor([1.0, 2.0, 0.5]).double()
    model = QuadraticModel.of(base.inputs, base.targets, sigma * shape)
    for mode in range(3):
        moment = float(model.convergence_times(1e-3)[mode])
        for other in range(3):
            if other != mode:
                measured = float(model.modes(moment)[0, other])
                assert measured == pytest.approx(sequential_value(model, mode, other, 1e-3, sigma, shape), rel=0.01)


def test_claim_2_modes_are_learnt_one_after_the_other_as_the_start_goes_to_zero():
    shares = []
    for sigma in (1e-3, 1e-9, 1e-30):
        model = reversed_order((10, 7)).model(sigma)  # correlations 7 and 10
        slow, fast = 0, 1
        assert model.correlations[fast] > model.correlations[slow]
        at_fast, at_slow = (model.modes(float(model.convergence_times(1e-2)[m]))[0] for m in (fast, slow))
        shares.append((float(at_fast[slow] / model.solution[slow]), float(at_slow[fast] / model.solution[fast])))
    early, late = zip(*shares)
    assert early[0] > early[1] > early[2] and early[2] < 1e-3
    assert all(value > 0.99 for value in late)


def test_label_noise_example_has_the_eigenvalues_and_label_components_of_the_text():
    n, q, eta = 20, 3, 2.0
    example = noisy_labels(n, q, eta)
    model = example.model(1e-2)
    assert model.mu[:2].tolist() == pytest.approx([n + eta**2, eta**2])
    assert int((model.mu - eta**2).abs().lt(1e-9).sum()) == n - 1
    assert float(model.correlations[0]) == pytest.approx((n + eta**2) ** 0.5 * (n - 2 * q) / n**0.5)
    assert float(model.correlations[1]) == pytest.approx(2 * eta * (q * (1 - q / n)) ** 0.5)
    assert (model.correlations[2:] == 0).all()


def test_spurious_example_has_two_informative_eigenvalues_that_hold_all_labels():
    n, q, lam, eta = 20, 4, 0.3, 0.5
    model = spurious_feature(n, q, lam, eta).model(1e-3)
    root = (n**2 * (1 - lam**2) ** 2 + 4 * lam**2 * (n - 2 * q) ** 2) ** 0.5
    expected = [(n * (1 + lam**2) + sign * root) / 2 + eta**2 for sign in (1, -1)]
    assert model.mu[:2].tolist() == pytest.approx(expected)
    assert float((model.correlations[:2].square() / model.mu[:2]).sum()) == pytest.approx(n)


@pytest.mark.parametrize(
    ("example", "sigma", "level", "few", "expected"),
    [
        # without the modes that carry no label: they are dropped below, as in the numbers of the specification
        (noisy_labels(20, 3, 2.0), 1e-2, ("clean", 0.1), "noisy", (1.09, 0.69)),
        (spurious_feature(20, 4, 0.3, 0.5), 1e-3, ("total", 0.30), "minority", (1.127, 0.783)),
    ],
)
def test_the_full_model_leaves_the_few_behind_more_than_the_linearized_one(example, sigma, level, few, expected):
    model = example.model(sigma)
    silent = (model.solution == 0) & (model.mu > 0)
    measured = []
    for regime in REGIMES:
        times = torch.logspace(-4, 4, 20001).double()
        modes = model.modes(times, regime).masked_fill(silent, 0.0)
        losses = 0.5 * (modes @ model.basis.T @ model.inputs.T - model.targets).square()
        groups = example.group_losses(losses)
        progress = losses.mean(1) if level[0] == "total" else groups[level[0]]
        first = int((progress <= level[1]).nonzero()[0])
        measured.append(float(groups[few][first]))
    assert measured == pytest.approx(expected, rel=0.02) and measured[0] > measured[1]


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(InputError, match="never moves"):
        QuadraticModel.of(torch.eye(2), torch.ones(2), 0.0)
    with pytest.raises(InputError, match="regime"):
        reversed_order((2, 1)).model(0.1).modes(1.0, "lazy")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="negative"):
        reversed_order((2, 1)).model(0.1).modes(-1.0)
    with pytest.raises(InputError, match="descending"):
        reversed_order((1, 2))
    with pytest.raises(InputError, match="few"):
        noisy_labels(6, 3, 1.0)
    with pytest.raises(InputError, match="features"):
        spurious_feature(6, 1, 0.5, 1.0, 7)


def test_a_turned_model_solves_the_same_flow_and_spreads_the_labels_over_its_degenerate_modes():
    from tangentlab.experiments.lazy.quadratic import flow_error

    example = noisy_labels(20, 5, 5.0)
    model = example.model(1e-2)
    turned = model.turned(torch.Generator().manual_seed(0))
    assert torch.allclose(turned.basis @ turned.solution, model.basis @ model.solution)
    assert torch.allclose(turned.basis.T @ turned.basis, torch.eye(len(turned.mu), dtype=torch.float64))
    shared = turned.mu == turned.mu[1]
    assert int((model.solution[shared] > 1e-9).sum()) == 1 and int((turned.solution[shared] > 1e-9).sum()) == 19
    assert max(flow_error(turned, np.linspace(0, 2, 5), regime) for regime in ("full", "linearized")) < 1e-8
