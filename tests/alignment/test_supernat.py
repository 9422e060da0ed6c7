"""SuperNat in modes against its explicit coordinates, against natural gradient, and the finding on its free constants."""

import pytest
import torch

from tangentlab.alignment import kernel_modes, step_rescaling, supernat_descent
from tangentlab.errors import InputError, NumericsError
from tests.alignment.linear import features, normal


def explicit(phi, targets, steps, lr, rate):
    """The paper's pseudo-code: gradient step, closed-form map, reparametrization; everything stored."""
    n, dim = phi.shape
    a_total = torch.eye(dim, dtype=torch.float64)
    current, w = phi.clone(), torch.zeros(dim, dtype=torch.float64)
    functions, unchanged = [phi @ torch.linalg.solve(a_total.t(), w)], []
    for _ in range(steps):
        gradient = (current @ w - targets) / n
        moved = w - lr * current.t() @ gradient
        u, s, vt = torch.linalg.svd(current, full_matrices=False)
        nu = 1 / (rate * (u.t() @ gradient).abs())
        step_map = (vt.t() * nu.sqrt()) @ vt + torch.eye(dim, dtype=torch.float64) - vt.t() @ vt
        before = current @ moved
        w, current = step_map.t() @ moved, torch.linalg.solve(step_map, current.t()).t()
        a_total = a_total @ step_map
        unchanged.append(float((current @ w - before).abs().max()))
        functions.append(current @ w)
    return torch.stack(functions), a_total, current, unchanged


@pytest.fixture
def problem():
    return features(6, 4), normal(6, seed=1)


def test_modes_follow_the_explicit_algorithm_and_reparametrization_changes_no_function(problem):
    phi, targets = problem
    path = supernat_descent(phi, targets, 6, lr_scale=0.3, rate_scale=2.0)
    functions, a_total, current, unchanged = explicit(phi, targets, 6, path.lr, path.rate)
    assert torch.allclose(path.predictions(phi), functions, atol=1e-9)
    assert max(unchanged) < 1e-10
    assert torch.allclose(current, torch.linalg.solve(a_total, phi.t()).t(), atol=1e-9)  # Phi_t = A_t^-1 Phi
    eigenvalues = torch.linalg.svdvals(current).square()
    assert torch.allclose(path.eigenvalues[-1].sort(descending=True).values, eigenvalues, rtol=1e-8)


def test_every_step_is_a_natural_gradient_step_with_the_accumulated_metric(problem):
    phi, targets = problem
    path = supernat_descent(phi, targets, 5)
    _, _, vt = torch.linalg.svd(phi, full_matrices=False)
    for t in range(5):
        inverse = (vt.t() * (path.eigenvalues[t] / path.singular_values.square())) @ vt  # g_A^-1 on the features' span
        gradient = phi.t() @ (phi @ path.weights[t] - targets) / 6
        assert torch.allclose(path.weights[t + 1] - path.weights[t], -path.lr * inverse @ gradient, atol=1e-12)


def test_eigenvalues_are_multiplied_by_the_gradient_as_the_optimal_rescaling_says(problem):
    phi, targets = problem
    path = supernat_descent(phi, targets, 1)
    modes = kernel_modes(phi @ phi.t())
    best = step_rescaling(modes, (phi @ path.weights[0] - targets) / 6, path.lr, kappa=1 / path.rate)
    assert torch.allclose(path.eigenvalues[1], modes.values / best.nu, rtol=1e-9)


@pytest.mark.parametrize(("normalization", "kept"), [("trace", torch.sum), ("max", torch.max)])
def test_normalizations_keep_what_they_name(problem, normalization, kept):
    path = supernat_descent(*problem, 10, lr_scale=0.1, normalization=normalization)
    sizes = torch.stack([kept(row) for row in path.eigenvalues])
    assert torch.allclose(sizes, sizes[0].expand_as(sizes), rtol=1e-10)
    ratio = path.eigenvalues[1] / path.eigenvalues[0]
    fixed = supernat_descent(*problem, 10, lr_scale=0.1)
    other = fixed.eigenvalues[1] / fixed.eigenvalues[0]
    assert torch.allclose(ratio / ratio[0], other / other[0], rtol=1e-10)  # the same up to a common factor


def test_without_rescaling_it_is_gradient_descent(problem):
    phi, targets = problem
    path = supernat_descent(phi, targets, 8, lr_scale=0.2, normalization="none")
    w = torch.zeros(4, dtype=torch.float64)
    for _ in range(8):
        w = w - path.lr * phi.t() @ (phi @ w - targets) / 6
    assert torch.allclose(path.weights[-1], w, atol=1e-12)
    assert torch.equal(path.eigenvalues[0], path.eigenvalues[-1])


def noisy_regression(seed, d=10, n=50, variance=0.1):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    signal, noise = draw(n, 1), draw(n, d) / d**0.5
    targets = signal[:, 0] + noise @ (noise.t() @ draw(n)) * variance**0.5
    test_signal, test_noise = draw(1000, 1), draw(1000, d) / d**0.5
    return torch.cat([signal, noise], 1), targets, torch.cat([test_signal, test_noise], 1), test_signal[:, 0]


def test_a_fixed_rate_freezes_noise_and_renormalizing_does_not():
    """Mean over 6 draws of the noisy regression, clean test error after 2000 steps."""
    final = {"fixed": [], "trace": [], "none": []}
    best = {"trace": [], "none": []}
    for seed in range(6):
        phi, targets, test, clean = noisy_regression(seed)
        for name, errors in final.items():
            path = supernat_descent(phi, targets, 2000, lr_scale=0.3, normalization=name)
            error = (path.predictions(test) - clean).square().mean(1)
            errors.append(float(error[-1]))
            if name in best:
                best[name].append(float(error.min()))
    mean = {name: sum(errors) / 6 for name, errors in final.items()}
    assert mean["fixed"] < 0.3 * mean["none"]
    assert all(one < other for one, other in zip(final["fixed"], final["none"]))
    assert mean["trace"] == pytest.approx(mean["none"], rel=0.05)
    assert sum(best["trace"]) < sum(best["none"])


def test_noise_eigenvalues_shrink_relative_to_the_signal():
    phi, targets, _, _ = noisy_regression(0)
    path = supernat_descent(phi, targets, 60, lr_scale=0.1)
    u, _, _ = torch.linalg.svd(phi, full_matrices=False)
    shares = (u.t() @ targets).abs()
    signal = int(shares.argmax())
    ratios = path.eigenvalues / path.eigenvalues[:, signal : signal + 1]
    others = [j for j in range(len(shares)) if shares[j] < 0.3 * shares[signal]]
    early = int(0.5 / 0.1)
    assert others and bool((ratios[early, others] < ratios[0, others]).all())


def test_targets_of_zero_change_nothing_and_wrong_input_is_refused(problem):
    phi, targets = problem
    still = supernat_descent(phi, torch.zeros(6), 3, normalization="trace")
    assert float(still.weights.abs().max()) == 0 and bool(torch.isfinite(still.eigenvalues).all())
    with pytest.raises(InputError, match="normalization"):
        supernat_descent(phi, targets, 3, normalization="mean")
    with pytest.raises(InputError, match="zero"):
        supernat_descent(torch.zeros(6, 4), targets, 3)
    with pytest.raises(InputError, match=r"targets \(n,\)"):
        supernat_descent(phi, targets[:3], 3)
    with pytest.raises(NumericsError, match="smaller lr_scale"):
        supernat_descent(phi, targets, 500, lr_scale=10.0, rate_scale=50.0)
