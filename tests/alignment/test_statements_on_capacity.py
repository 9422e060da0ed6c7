"""The paper's statements on Rademacher complexities, bounds and rescalings (theorems 2, 11, 13; propositions 3, 10, 14, 15).

Exact statements hold to float64 rounding; Monte-Carlo ones within their stated confidence.
"""

import math
from itertools import product

import pytest
import torch

from tangentlab import FMatDense
from tangentlab.alignment import (
    flow_bound,
    flow_exact,
    flow_monte_carlo,
    interpolant_capacity,
    kernel_modes,
    margin_bound,
    margins,
    multiclass_bound,
    multiclass_flow_bound,
    optimal_rescaling,
    rademacher_of_values,
    ramp_loss,
    rescaled_kernel,
    step_rescaling,
)
from tangentlab.errors import InputError
from tangentlab.kernels import rademacher_exact, rademacher_monte_carlo, rademacher_trace_bound, ridge_primal
from tests.alignment.linear import features, normal


def all_signs(n):
    return torch.tensor(list(product((-1.0, 1.0), repeat=n)), dtype=torch.float64)


def invertible(dim, seed=0):
    return normal(dim, dim, seed=seed) + 2 * torch.eye(dim, dtype=torch.float64)


def test_complexity_of_a_norm_ball_is_the_mean_of_the_supremum_over_its_weights():
    """For each sign vector the supremum over |w|_A <= M is attained at w = g_A^-1 Phi^T s, scaled to the norm M."""
    phi, a, radius, n = features(8, 5), invertible(5), 1.7, 8
    metric = a @ a.t()
    suprema = []
    for signs in all_signs(n):
        best = torch.linalg.solve(metric, phi.t() @ signs)
        best = best * radius / (best @ metric @ best).sqrt()
        suprema.append(float(signs @ (phi @ best)) / n)
        for seed in range(3):  # nothing else on the sphere does better
            other = normal(5, seed=seed)
            other = other * radius / (other @ metric @ other).sqrt()
            assert float(signs @ (phi @ other)) / n <= suprema[-1] + 1e-12
    kernel = rescaled_kernel(phi, a)
    assert torch.allclose(kernel, phi @ torch.linalg.inv(metric) @ phi.t(), atol=1e-12)
    assert float(rademacher_exact(kernel, radius)) == pytest.approx(sum(suprema) / len(suprema), rel=1e-12)


@pytest.mark.parametrize("n", [3, 8, 12])
def test_the_trace_bound_holds_and_is_at_most_root_two_loose(n):
    kernel = rescaled_kernel(features(n, 6, seed=n), invertible(6, seed=n))
    exact, bound = float(rademacher_exact(kernel, 0.8)), float(rademacher_trace_bound(kernel, 0.8))
    assert bound / math.sqrt(2) <= exact <= bound


def test_the_monte_carlo_interval_covers_the_exact_complexity_as_often_as_it_says():
    """200 intervals of 95 %: fewer than 178 hits have probability below 1e-3."""
    kernel = rescaled_kernel(features(10, 6), invertible(6))
    exact = float(rademacher_exact(kernel))
    generator = torch.Generator().manual_seed(0)
    found = [rademacher_monte_carlo(kernel, samples=400, generator=generator) for _ in range(200)]
    assert sum(float(e.lower) <= exact <= float(e.upper) for e in found) >= 178


def test_a_flow_is_the_sum_over_steps_and_its_bound_the_sum_of_feature_norms():
    phi, n = features(8, 5), 8
    maps, radii = [invertible(5, seed=s) for s in range(3)], [0.5, 1.0, 0.2]
    kernels = [rescaled_kernel(phi, a) for a in maps]
    # sup over the whole flow, for every sign vector
    total = 0.0
    for signs in all_signs(n):
        for a, m in zip(maps, radii):
            best = torch.linalg.solve(a @ a.t(), phi.t() @ signs)
            best = best * m / (best @ a @ a.t() @ best).sqrt()
            total += float(signs @ (phi @ best)) / n
    assert flow_exact(kernels, radii) == pytest.approx(total / 2**n, rel=1e-12)
    norms = [float(torch.linalg.solve(a, phi.t()).norm()) for a in maps]
    bound = flow_bound(kernels, radii)
    assert bound == pytest.approx(sum(m / n * norm for m, norm in zip(radii, norms)), rel=1e-12)
    assert flow_exact(kernels, radii) <= bound
    found = flow_monte_carlo(kernels, radii, samples=4000, confidence=0.999, generator=torch.Generator().manual_seed(1))
    assert float(found.lower) <= flow_exact(kernels, radii) <= float(found.upper)
    assert float(found.standard_error) < 0.01 * bound


def test_weights_in_moving_coordinates_give_the_same_flow():
    """<dw_t, Phi> with |dw_t|_{A_t} <= m is <A_t^T dw_t, A_t^-1 Phi> with a plain norm."""
    phi, a, step = features(6, 4), invertible(4), normal(4, seed=1)
    moved, rotated = torch.linalg.solve(a, phi.t()).t(), a.t() @ step
    assert torch.allclose(phi @ step, moved @ rotated, atol=1e-12)
    assert float((step @ a @ a.t() @ step).sqrt()) == pytest.approx(float(rotated.norm()), rel=1e-12)


def test_brute_force_over_a_finite_class_is_the_definition():
    values = normal(7, 5)
    expected = sum(float((values @ signs).max()) / 5 for signs in all_signs(5)) / 32
    assert rademacher_of_values(values) == pytest.approx(expected, rel=1e-13)
    with pytest.raises(InputError, match="2\\^17"):
        rademacher_of_values(normal(2, 17))


def test_margins_are_signed_distances_to_the_runner_up():
    outputs = torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 4.5]])
    assert margins(outputs, torch.tensor([1, 2])).tolist() == [1.0, -0.5]
    assert margins(torch.tensor([2.0, -1.0]), torch.tensor([1, 0])).tolist() == [2.0, 1.0]
    assert margins(torch.tensor([[2.0], [-1.0]]), torch.tensor([-1, 1])).tolist() == [-2.0, -1.0]
    losses = ramp_loss(torch.tensor([-1.0, 0.0, 0.25, 0.5, 2.0]), 0.5)
    assert losses.tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]
    with pytest.raises(InputError, match="positive"):
        ramp_loss(losses, 0.0)


def test_losses_of_one_output_have_at_most_the_complexity_of_the_class_over_the_margin():
    for seed in range(5):
        values, labels = normal(9, 6, seed=seed), torch.tensor([1, -1, 1, 1, -1, -1])
        for gamma in (0.3, 1.0):
            losses = torch.stack([ramp_loss(margins(f, labels), gamma) for f in values])
            assert rademacher_of_values(losses) <= rademacher_of_values(values) / gamma + 1e-12


def test_losses_of_several_outputs_have_at_most_c_over_gamma_times_the_sum_over_classes():
    classes, n = 3, 6
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    for seed in range(5):
        values = normal(8, n, classes, seed=seed)
        parts = [rademacher_of_values(values[:, :, y]) for y in range(classes)]
        losses = torch.stack([ramp_loss(margins(f, labels), 0.7) for f in values])
        # the two steps of the proof: margins against each class, then the classes one by one
        ones = [torch.stack([margins(f, torch.full_like(labels, y)) for f in values]) for y in range(classes)]
        of_margins = [rademacher_of_values(one) for one in ones]
        assert rademacher_of_values(losses) <= sum(of_margins) / 0.7 + 1e-12
        assert all(one <= sum(parts) + 1e-12 for one in of_margins)
        assert rademacher_of_values(losses) <= classes / 0.7 * sum(parts) + 1e-12


def test_the_multiclass_bound_holds_on_functions_of_the_ball_and_is_ordered():
    classes, n, dim, radius, gamma = 3, 6, 8, 1.3, 0.9
    phi = normal(classes, n, dim)
    kernel = FMatDense(torch.einsum("cnp,dmp->cndm", phi, phi))
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    weights = normal(4000, dim, seed=1)
    weights = weights * radius / weights.norm(dim=1, keepdim=True)
    values = torch.einsum("cnp,fp->fnc", phi, weights)
    losses = torch.stack([ramp_loss(margins(f, labels), gamma) for f in values])
    tight, loose = (multiclass_bound(kernel, radius, gamma, by_class=flag) for flag in (True, False))
    blocks = [kernel.data[y, :, y].trace() for y in range(classes)]
    assert tight == pytest.approx(classes / gamma * radius / n * sum(float(b) ** 0.5 for b in blocks), rel=1e-12)
    assert loose == pytest.approx(classes**1.5 * radius / (gamma * n) * float(kernel.trace()) ** 0.5, rel=1e-12)
    assert rademacher_of_values(losses) <= tight <= loose


def test_the_multiclass_bound_of_a_flow_holds_on_functions_of_the_flow_and_is_ordered():
    classes, n, dim, radii, gamma = 3, 6, 8, (1.3, 0.4, 2.0), 0.9
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    maps = [normal(classes, n, dim, seed=step) for step in range(3)]
    kernels = [FMatDense(torch.einsum("cnp,dmp->cndm", phi, phi)) for phi in maps]
    values = torch.zeros(4000, n, classes, dtype=torch.float64)
    for step, (phi, radius) in enumerate(zip(maps, radii)):
        moves = normal(4000, dim, seed=10 + step)
        values += torch.einsum("cnp,fp->fnc", phi, moves * radius / moves.norm(dim=1, keepdim=True))
    losses = torch.stack([ramp_loss(margins(f, labels), gamma) for f in values])
    tight, loose = (multiclass_flow_bound(kernels, radii, gamma, by_class=flag) for flag in (True, False))
    assert rademacher_of_values(losses) <= tight <= loose
    # each output is a flow of its own, and the sum over outputs of the flows' bounds is what the statement has
    outputs = [flow_bound([k.data[y, :, y] for k in kernels], radii) for y in range(classes)]
    assert tight == pytest.approx(classes / gamma * sum(outputs), rel=1e-12)
    with pytest.raises(InputError, match="one radius per kernel"):
        multiclass_flow_bound(kernels, radii[:2], gamma)
    with pytest.raises(InputError, match="same examples"):
        multiclass_flow_bound([kernels[0], FMatDense(kernels[1].data[:, :4, :, :4])], radii[:2], gamma)


def test_the_margin_bound_is_the_sum_of_its_parts_and_covers_the_test_error():
    """Linear functions on Gaussian data: 40 samples of 200, none of which may exceed the bound (delta = 1e-3 each)."""
    direction = normal(5, seed=3)
    for seed in range(40):
        x = normal(200, 5, seed=seed)
        labels = torch.where(x @ direction + normal(200, seed=seed + 100) > 0, 1, -1)
        w = ridge_primal(x, labels.double(), 1e-2)
        radius, gamma = float(w.norm()), 0.5
        complexity = float(rademacher_trace_bound(x @ x.t(), radius)) / gamma
        found = margin_bound(x @ w, labels, gamma, complexity, delta=1e-3)
        assert found["bound"] == pytest.approx(found["empirical"] + found["complexity"] + found["confidence"])
        assert found["confidence"] == pytest.approx(3 * math.sqrt(math.log(2000) / 400))
        fresh = normal(4000, 5, seed=seed + 1000)
        truth = torch.where(fresh @ direction + normal(4000, seed=seed + 2000) > 0, 1, -1)
        assert float((margins(fresh @ w, truth) < 0).double().mean()) <= found["bound"]


def test_the_interpolant_of_least_norm_in_modes_and_the_covariance_of_its_noise():
    phi, targets = features(5, 12), normal(5, seed=1)
    best = ridge_primal(phi, targets, 0)
    u, s, vt = torch.linalg.svd(phi, full_matrices=False)
    assert torch.allclose(best, phi.t() @ torch.linalg.solve(phi @ phi.t(), targets), atol=1e-10)
    assert torch.allclose(best, vt.t() @ (u.t() @ targets / s), atol=1e-10)
    # cov[w*] = sum_j s2 / l_j v_j v_j^T for targets with noise of variance s2: w* is linear in them
    solution = torch.stack([ridge_primal(phi, row, 0) for row in torch.eye(5, dtype=torch.float64)], 1)
    assert torch.allclose(0.3 * solution @ solution.t(), 0.3 * (vt.t() / s**2) @ vt, atol=1e-8)


def explicit_map(phi, nu):
    """A_nu = sum_j sqrt(nu_j) v_j v_j^T + Id on the complement."""
    _, _, vt = torch.linalg.svd(phi, full_matrices=False)
    complement = torch.eye(phi.shape[1], dtype=torch.float64) - vt.t() @ vt
    return (vt.t() * nu.sqrt()) @ vt + complement


def test_norm_and_trace_under_a_rescaling_are_those_of_the_explicit_map():
    phi, targets = features(5, 12), normal(5, seed=1)
    nu = torch.rand(5, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5
    a, best = explicit_map(phi, nu), ridge_primal(phi, targets, 0)
    found = interpolant_capacity(phi @ phi.t(), targets, nu)
    assert found.norm == pytest.approx(float((best @ a @ a.t() @ best).sqrt()), rel=1e-9)
    assert found.trace == pytest.approx(float(rescaled_kernel(phi, a).trace()), rel=1e-9)
    plain = interpolant_capacity(phi @ phi.t(), targets)
    assert plain.bound == pytest.approx(float(best.norm() * phi.norm()) / 5, rel=1e-9)
    with pytest.raises(InputError, match="positive nu"):
        interpolant_capacity(phi @ phi.t(), targets, -nu)


def test_the_optimal_rescaling_has_the_closed_form_and_nothing_near_it_is_better():
    phi, targets = features(5, 12), normal(5, seed=1)
    kernel = phi @ phi.t()
    modes = kernel_modes(kernel)
    best = optimal_rescaling(kernel, targets, kappa=0.7)
    shares = modes.coefficients(targets).abs()
    weights = ridge_primal(phi, targets, 0)
    right = phi.t() @ modes.vectors[:, 0].t() / modes.values.sqrt()
    assert torch.allclose(best.nu, 0.7 * modes.values / shares, rtol=1e-9)
    assert torch.allclose(best.nu, 0.7 * modes.values.sqrt() / (right.t() @ weights).abs(), rtol=1e-6)
    assert best.bound == pytest.approx(float(shares.sum()) / 5, rel=1e-12)
    assert best.bound <= interpolant_capacity(kernel, targets).bound
    for seed in range(50):
        other = best.nu * (0.3 * normal(5, seed=seed)).exp()
        assert interpolant_capacity(kernel, targets, other).bound >= best.bound * (1 - 1e-12)
    assert optimal_rescaling(kernel, targets, 9.0).bound == pytest.approx(best.bound, rel=1e-12)


def test_modes_without_labels_are_switched_off_at_no_cost():
    found = optimal_rescaling(torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.tensor([1.0, 0.0, 2.0]))
    assert found.nu.isinf().tolist() == [False, True, False]
    assert found.bound == pytest.approx(1.0)
    with pytest.raises(InputError, match="no modes"):
        optimal_rescaling(torch.zeros(3, 3), torch.ones(3))


def test_the_optimal_rescaling_of_a_step_divides_by_the_gradient():
    phi, gradient, lr = features(5, 12), normal(5, seed=1), 0.2
    modes = kernel_modes(phi @ phi.t())
    found = step_rescaling(modes, gradient, lr, kappa=1.5)
    signal = modes.coefficients(gradient).abs()
    assert torch.allclose(found.nu, 1.5 / signal, rtol=1e-9)
    step = -lr * phi.t() @ gradient
    a = explicit_map(phi, found.nu)
    assert found.norm == pytest.approx(float((step @ a @ a.t() @ step).sqrt()), rel=1e-9)
    assert found.trace == pytest.approx(float(torch.linalg.solve(a, phi.t()).square().sum()), rel=1e-9)
    least = found.norm * found.trace**0.5
    assert least == pytest.approx(lr * float((modes.values * signal).sum()), rel=1e-9)
    for seed in range(30):
        nu = found.nu * (0.3 * normal(5, seed=seed)).exp()
        a = explicit_map(phi, nu)
        assert float((step @ a @ a.t() @ step).sqrt() * torch.linalg.solve(a, phi.t()).norm()) >= least * (1 - 1e-12)
    # the rescaled features have eigenvalues l_j |u_j^T grad| up to the common factor
    moved = torch.linalg.svdvals(torch.linalg.solve(explicit_map(phi, found.nu), phi.t())).square()
    expected = (modes.values * signal / 1.5).sort(descending=True).values
    assert torch.allclose(moved, expected, rtol=1e-9)
