"""Potentials against their formulas, numerical derivatives, the weights they minimize over, and the flows they describe."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tangentlab.errors import InputError, SolveError
from tangentlab.implicit_bias import (
    Entropy,
    Euclidean,
    FlowPotential,
    diagonal_predictor,
    diagonal_start,
    distance_potential,
    follow_flow,
    least_l1,
    least_l2,
    minimum_on,
)

POTENTIALS = [
    Euclidean(),
    Entropy(),
    *(FlowPotential(alpha, depth) for alpha in (0.1, 1.0, 3.0) for depth in (2, 3, 4, 6)),
    distance_potential(0.5),
]
BETA = torch.tensor([0.02, 0.3, 1.0, 2.5, 7.0], dtype=torch.float64)


def problem(m: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=generator, dtype=torch.float64)
    return x, torch.randn(m, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("potential", POTENTIALS, ids=repr)
def test_the_gradient_is_the_derivative_of_the_value(potential):
    step = 1e-6 * BETA
    for j in range(len(BETA)):
        move = torch.zeros_like(BETA)
        move[j] = step[j]
        slope = (potential.value(BETA + move) - potential.value(BETA - move)) / (2 * step[j])
        torch.testing.assert_close(potential.gradient(BETA)[j], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("potential", POTENTIALS, ids=repr)
def test_the_mirror_map_and_its_slope_invert_the_gradient(potential):
    dual = potential.gradient(BETA)
    torch.testing.assert_close(potential.primal(dual), BETA, rtol=1e-9, atol=0)
    point = dual.clone().requires_grad_()
    (slope,) = torch.autograd.grad(potential.unit_primal(point).sum(), point)
    torch.testing.assert_close(potential.unit_slope(dual), slope)
    (primal,) = torch.autograd.grad(potential.unit_conjugate(point).sum(), point)
    torch.testing.assert_close(potential.unit_primal(dual), primal)


def test_the_potential_of_depth_two_is_the_corrected_q_of_the_slides():
    alpha = 0.7
    b = BETA / alpha**2
    q = 2 - (4 + b.square()).sqrt() + b * torch.asinh(b / 2)
    torch.testing.assert_close(FlowPotential(alpha).value(BETA), alpha**2 * q.sum())
    torch.testing.assert_close(FlowPotential(alpha).value(-BETA), FlowPotential(alpha).value(BETA))


@pytest.mark.parametrize("b", [0.1, 0.5, 1.0, 3.0, 10.0])
def test_the_distance_is_the_smallest_real_root_of_the_quartic_and_the_least_distance_of_weights(b):
    roots = np.roots([1, -6, 12 - 2 * b**2, -(8 + 10 * b**2), b**2 + b**4])
    real = roots[abs(roots.imag) < 1e-9].real
    potential = distance_potential(1.0)
    found = float(potential.value(torch.tensor([b], dtype=torch.float64)))
    assert found == pytest.approx(real.min(), rel=1e-7)
    weights = minimize(
        lambda w: (w[0] - 1) ** 2 + (w[1] - 1) ** 2,
        [1 + b, 0.5],
        constraints={"type": "eq", "fun": lambda w: w[0] ** 2 - w[1] ** 2 - b},
        options={"ftol": 1e-14},
    )
    assert found == pytest.approx(weights.fun, rel=1e-6)


def test_the_distance_at_depth_two_is_the_flow_of_depth_four():
    x, y = problem(4, 9)
    penalty = minimum_on(x, y, distance_potential(0.3)).beta
    flow = follow_flow(
        lambda w: (x @ diagonal_predictor(w, 4) - y).square().sum(),
        diagonal_start(9, 0.3**0.5),
        until=1e6,
        loss_below=1e-18,
    )
    torch.testing.assert_close(diagonal_predictor(flow.end, 4), penalty, rtol=0, atol=1e-7)


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 3.0])
def test_the_flow_of_a_diagonal_network_ends_at_the_minimizer_of_its_potential(alpha, depth):
    if alpha**depth < 1e-7:
        pytest.skip("the flow leaves this saddle too late for a quick test")
    x, y = problem(5, 12)
    path = follow_flow(
        lambda w: (x @ diagonal_predictor(w, depth) - y).square().sum(),
        diagonal_start(12, alpha),
        until=1e9,
        loss_below=1e-18,
    )
    minimum = minimum_on(x, y, FlowPotential(alpha, depth))
    torch.testing.assert_close(diagonal_predictor(path.end, depth), minimum.beta, rtol=0, atol=1e-6)


def test_the_product_of_both_weights_is_kept_by_the_flow_and_beta_obeys_the_corrected_dynamics():
    x, y = problem(3, 6)
    alpha = 0.4
    path = follow_flow(
        lambda w: (x @ diagonal_predictor(w) - y).square().sum(), diagonal_start(6, alpha), until=0.3, moments=301
    )
    positive, negative = path.weights.chunk(2, 1)
    torch.testing.assert_close(positive * negative, torch.full_like(positive, alpha**2), rtol=1e-6, atol=0)
    beta = positive**2 - negative**2
    speed = (beta[2:] - beta[:-2]) / (path.times[2:] - path.times[:-2])[:, None]
    slope = 2 * (beta[1:-1] @ x.t() - y) @ x
    expected = -4 * (beta[1:-1].square() + 4 * alpha**4).sqrt() * slope
    torch.testing.assert_close(speed, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("potential", POTENTIALS, ids=repr)
def test_the_minimizer_agrees_with_a_general_solver(potential):
    x, y = problem(3, 6, seed=1)
    if isinstance(potential, Entropy):
        y = x @ torch.linspace(0.2, 1.5, 6, dtype=torch.float64)
    found = minimum_on(x, y, potential)
    assert found.residual < 1e-9
    null = torch.linalg.svd(x).Vh[3:]  # every other interpolant is found.beta + null^T c

    def value(c: np.ndarray) -> float:
        beta = found.beta + torch.from_numpy(c) @ null
        if isinstance(potential, Entropy) and bool((beta <= 0).any()):
            return 1e9
        return float(potential.value(beta))

    least = minimize(value, 0.05 * np.ones(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    assert value(np.zeros(3)) <= least.fun + 1e-9 * abs(least.fun) + 1e-12
    assert np.abs(least.x).max() < 1e-3


def test_large_starts_give_the_l2_interpolant_and_small_ones_go_to_the_l1_interpolant():
    x, y = problem(5, 20, seed=2)
    l1, l2 = least_l1(x, y), least_l2(x, y)
    torch.testing.assert_close(minimum_on(x, y, FlowPotential(100.0)).beta, l2, rtol=0, atol=1e-6)
    gaps = [
        float(minimum_on(x, y, FlowPotential(alpha)).beta.abs().sum() - l1.abs().sum()) for alpha in (0.1, 1e-3, 1e-6)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 0.03 * float(l1.abs().sum())


def test_the_divergence_from_a_start_is_what_is_minimized():
    x, y = problem(3, 6, seed=3)
    start = torch.linspace(-1, 1, 6, dtype=torch.float64)
    found = minimum_on(x, y, Euclidean(), start=start)
    torch.testing.assert_close(found.beta, start + least_l2(x, y - x @ start))
    assert float(Euclidean().divergence(found.beta, start)) == pytest.approx(
        float((found.beta - start).square().sum() / 2)
    )


def test_targets_that_no_predictor_fits_are_refused():
    x = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(SolveError, match="dependent"):
        minimum_on(x, torch.tensor([1.0, 2.0]), FlowPotential(0.1))


def test_zero_targets_have_the_zero_interpolant():
    x, _ = problem(3, 6)
    assert float(minimum_on(x, torch.zeros(3), FlowPotential(0.1)).beta.abs().max()) == 0


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_is_refused(alpha):
    with pytest.raises(InputError, match="alpha"):
        FlowPotential(alpha)
    with pytest.raises(InputError, match="alpha"):
        distance_potential(alpha)


def test_a_start_below_the_range_of_numbers_is_refused():
    with pytest.raises(InputError, match="range"):
        FlowPotential(1e-150)


def test_a_depth_of_one_is_refused_with_the_way_out():
    with pytest.raises(InputError, match="Euclidean"):
        FlowPotential(1.0, depth=1)


def test_entropies_of_negative_entries_are_refused():
    with pytest.raises(InputError, match="positive"):
        Entropy().value(torch.tensor([-1.0]))


def test_features_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"\(m, d\)"):
        minimum_on(torch.zeros(3), torch.zeros(3), Euclidean())
