"""Kernel methods (George 2023, sections 2.2 and 2.5) as identities; seeds are fixed where anything is random."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tangentlab import kernels
from tangentlab.errors import InputError, NumericsError, SolveError

DTYPES = [torch.float32, torch.float64]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual, expected, atol):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


shapes = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000), st.floats(1e-3, 10))


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_primal_weights_are_the_features_times_the_dual_coefficients(case):
    n, p, seed, penalty = case
    features, targets = draw(n, p, seed=seed), draw(n, seed=seed + 1)
    weights = kernels.ridge_primal(features, targets, penalty)
    coefficients = kernels.ridge_dual(features @ features.T, targets, penalty)
    close(weights, features.T @ coefficients, 1e-9)


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_gradient_of_the_penalized_loss_vanishes_at_the_ridge_weights(case):
    n, p, seed, penalty = case
    features, targets = draw(n, p, seed=seed), draw(n, seed=seed + 1)
    weights = kernels.ridge_primal(features, targets, penalty).requires_grad_()
    loss = (features @ weights - targets).square().mean() + penalty * weights.square().sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    close(gradient, torch.zeros_like(gradient), 1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [(), (3,)])
def test_primal_and_dual_predict_the_same_at_new_points(outputs, dtype):
    features, new = draw(15, 6, dtype=dtype), draw(8, 6, seed=1, dtype=dtype)
    targets = draw(15, *outputs, seed=2, dtype=dtype)
    primal = new @ kernels.ridge_primal(features, targets, 0.1)
    dual = kernels.predict(new @ features.T, kernels.ridge_dual(features @ features.T, targets, 0.1))
    assert primal.shape == dual.shape == (8, *outputs) and dual.dtype == dtype
    close(primal, dual, 1e-4 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize(("n", "p"), [(5, 20), (20, 5)])
def test_without_penalty_primal_and_dual_are_the_least_norm_solution(n, p):
    features, targets = draw(n, p), draw(n, 2, seed=1)
    expected = torch.linalg.pinv(features) @ targets
    close(kernels.ridge_primal(features, targets, 0.0), expected, 1e-10)
    close(features.T @ kernels.ridge_dual(features @ features.T, targets, 0.0), expected, 1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "p"), [(10, 4), (6, 6), (1, 3)])
def test_mercer_features_rebuild_the_kernel_with_its_rank(n, p, dtype):
    features = draw(n, p, dtype=dtype)
    kernel = features @ features.T
    mercer = kernels.mercer_features(kernel)
    assert mercer.shape == (n, min(n, p))
    close(mercer @ mercer.T, kernel, 1e-4 if dtype == torch.float32 else 1e-11)
    best = kernels.mercer_features(kernel, rank=1)
    top = torch.linalg.eigvalsh(kernel)[-1]
    torch.testing.assert_close(best.norm() ** 2, top)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10), st.integers(1, 10), st.integers(0, 1000))
def test_rkhs_norm_of_a_kernel_expansion_is_the_norm_of_its_weights(n, p, seed):
    features, coefficients = draw(n, p, seed=seed), draw(n, 2, seed=seed + 1)
    norms = kernels.rkhs_norm(features @ features.T, coefficients)
    close(norms, (features.T @ coefficients).norm(dim=0), 1e-6)
    assert kernels.rkhs_norm(features @ features.T, coefficients[:, 0]).shape == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10), st.integers(1, 10), st.integers(0, 1000))
def test_function_values_differ_at_most_by_the_lipschitz_bound(n, p, seed):
    features, weights = draw(n, p, seed=seed), draw(p, seed=seed + 1)
    values = features @ weights
    bound = kernels.lipschitz_bound(features @ features.T, float(weights.norm()))
    assert bool(((values[:, None] - values).abs() <= bound + 1e-6).all())


def test_lipschitz_bound_is_reached_by_weights_along_the_feature_difference():
    features = draw(4, 6)
    weights = features[0] - features[1]
    bound = kernels.lipschitz_bound(features @ features.T, weights.norm())
    assert float(bound[0, 1]) == pytest.approx(float((features[0] - features[1]) @ weights), rel=1e-12)
    assert bool((bound.diagonal() == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [(), (2,)])
def test_gaussian_process_mean_is_kernel_ridge_with_lambda_n_equal_to_the_noise(outputs, dtype):
    features, new, targets = draw(12, 5, dtype=dtype), draw(7, 5, seed=1, dtype=dtype), draw(12, *outputs, seed=2)
    kernel, noise = features @ features.T, 0.3
    posterior = kernels.gaussian_process(kernel, targets.to(dtype), noise, cross_kernel=new @ features.T)
    ridge = kernels.ridge_dual(kernel, targets.to(dtype), noise / 12)
    close(posterior.mean, kernels.predict(new @ features.T, ridge), 1e-4 if dtype == torch.float32 else 1e-12)
    assert posterior.covariance is None and posterior.mean.shape == (7, *outputs)


def test_gaussian_process_posterior_is_the_conditional_of_the_joint_gaussian():
    features = draw(9, 12)
    joint = features @ features.T
    observed, unseen = slice(0, 6), slice(6, 9)
    targets, noise = draw(6, seed=1), 0.2
    posterior = kernels.gaussian_process(
        joint[observed, observed],
        targets,
        noise,
        cross_kernel=joint[unseen, observed],
        test_kernel=joint[unseen, unseen],
    )
    noisy = joint + noise * torch.diag((torch.arange(9) < 6).double())
    precision = torch.linalg.inv(noisy)[unseen, unseen]
    close(posterior.covariance, torch.linalg.inv(precision), 1e-9)
    close(posterior.mean, joint[unseen, observed] @ torch.linalg.solve(noisy[observed, observed], targets), 1e-10)
    normal = torch.distributions.MultivariateNormal(torch.zeros(6).double(), noisy[observed, observed])
    assert float(posterior.log_marginal_likelihood) == pytest.approx(float(normal.log_prob(targets)), rel=1e-12)


def test_gaussian_process_variances_alone_are_the_diagonal_and_outputs_are_independent():
    features, targets = draw(8, 5), draw(8, 2, seed=1)
    kernel = features @ features.T
    whole = kernels.gaussian_process(kernel, targets, 0.1)
    variances = kernels.gaussian_process(kernel, targets, 0.1, cross_kernel=kernel, test_kernel=kernel.diagonal())
    assert whole.covariance is not None and variances.covariance is not None
    close(variances.covariance, whole.covariance.diagonal(), 1e-12)
    single = kernels.gaussian_process(kernel, targets[:, 1], 0.1)
    close(whole.log_marginal_likelihood[1], single.log_marginal_likelihood, 1e-12)
    close(whole.mean[:, 1], single.mean, 1e-12)


def test_noise_free_gaussian_process_interpolates_and_is_certain_at_the_data():
    features, targets = draw(5, 9), draw(5, seed=1)
    posterior = kernels.gaussian_process(features @ features.T, targets, 0.0)
    close(posterior.mean, targets, 1e-10)
    assert posterior.covariance is not None and float(posterior.covariance.abs().max()) < 1e-10


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1000), st.floats(0, 5))
def test_exact_complexity_lies_between_the_trace_bound_over_root_two_and_the_trace_bound(n, p, seed, radius):
    features = draw(n, p, seed=seed)
    exact = float(kernels.rademacher_exact(features @ features.T, radius))
    bound = float(kernels.rademacher_trace_bound(features @ features.T, radius))
    assert bound / 2**0.5 - 1e-12 <= exact <= bound + 1e-12


def test_complexity_bounds_are_attained():
    orthogonal = torch.eye(6, dtype=torch.float64)
    assert float(kernels.rademacher_exact(orthogonal)) == pytest.approx(6**0.5 / 6)
    twice_the_same = torch.ones(2, 2, dtype=torch.float64)
    ratio = kernels.rademacher_exact(twice_the_same) / kernels.rademacher_trace_bound(twice_the_same)
    assert float(ratio) == pytest.approx(0.5**0.5)


def test_exact_complexity_is_the_mean_of_the_supremum_over_every_sign_vector():
    features = draw(5, 3)
    suprema = []
    for code in range(2**5):
        signs = torch.tensor([1.0 if code >> i & 1 else -1.0 for i in range(5)], dtype=torch.float64)
        direction = features.T @ signs
        # The supremum over the ball of radius 2 is reached at its boundary, along this direction.
        suprema.append(float((signs @ features @ (2 * direction / direction.norm())).abs()) / 5)
    assert float(kernels.rademacher_exact(features @ features.T, 2.0)) == pytest.approx(sum(suprema) / 32, rel=1e-12)


def test_monte_carlo_intervals_cover_the_exact_complexity_as_often_as_they_say():
    features = draw(8, 4)
    kernel = features @ features.T
    exact = float(kernels.rademacher_exact(kernel, 1.5))
    generator = torch.Generator().manual_seed(3)
    runs = [kernels.rademacher_monte_carlo(kernel, 1.5, samples=400, generator=generator) for _ in range(400)]
    covered = sum(float(run.lower) <= exact <= float(run.upper) for run in runs)
    # Binomial(400, 0.95) has standard deviation 4.4: 360 and 398 are more than four of them away from 380.
    assert 360 <= covered <= 398
    assert all(float(run.lower) < float(run.estimate) < float(run.upper) for run in runs)
    narrow = kernels.rademacher_monte_carlo(kernel, samples=400, confidence=0.5, generator=generator)
    assert float(narrow.upper - narrow.lower) == pytest.approx(2 * 0.67449 * float(narrow.standard_error), rel=1e-4)


def test_generalization_bounds_are_the_stated_formulas():
    assert kernels.generalization_bound(0.1, 50, 0.05) == pytest.approx(0.2 + math.sqrt(math.log(20) / 100))
    assert kernels.empirical_generalization_bound(0.1, 50, 0.05) == pytest.approx(0.2 + math.sqrt(math.log(40) / 50))
    assert kernels.generalization_bound(0.0, 50, 1.0) == 0.0


def test_generalization_bounds_are_violated_at_most_as_often_as_delta_says():
    """The whole norm ball at once, with the loss ``(1 - y f(x)) / 2``, which lies in [0, 1] on unit features.

    The largest gap over the ball is ``|mean(y phi) - E(y phi)| / 2`` exactly. Without the complexity term the same
    inequality fails nearly always, so the test has power.
    """
    n, dim, delta, trials = 40, 60, 0.7, 400
    generator = torch.Generator().manual_seed(4)
    population = torch.nn.functional.normalize(draw(500, dim, seed=5), dim=1)
    labels = torch.sign(population @ draw(dim, seed=6))
    signed = labels[:, None] * population
    failures = {"expected": 0, "empirical": 0, "without complexity": 0}
    samples = [torch.randint(0, 500, (n,), generator=generator) for _ in range(trials)]
    empirical = [
        float(
            kernels.rademacher_monte_carlo(population[i] @ population[i].T, samples=200, generator=generator).estimate
        )
        for i in samples
    ]
    # Contraction: the complexity of the loss class is at most half that of the ball, as the loss has slope 1/2.
    expected = sum(empirical) / trials / 2
    for index, complexity in zip(samples, empirical, strict=True):
        gap = float((signed[index].mean(0) - signed.mean(0)).norm()) / 2
        failures["expected"] += gap > kernels.generalization_bound(expected, n, delta)
        failures["empirical"] += gap > kernels.empirical_generalization_bound(complexity / 2, n, delta)
        failures["without complexity"] += gap > kernels.generalization_bound(0.0, n, delta)
    assert failures["expected"] <= delta * trials and failures["empirical"] <= delta * trials
    assert failures["without complexity"] > 0.9 * trials


class WithMatrix:
    def __init__(self, matrix: torch.Tensor) -> None:
        self.stored = matrix

    def matrix(self) -> torch.Tensor:
        return self.stored


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("penalty", [0.1, 0.0])
def test_half_precision_is_solved_up_to_its_own_rounding(dtype, penalty):
    features, targets = draw(8, 20, dtype=dtype) / 4, draw(8, 2, seed=1, dtype=dtype)
    kernel = (features.double() @ features.double().T).to(dtype)
    eps = torch.finfo(dtype).eps
    for found, expected in (
        (kernels.ridge_dual(kernel, targets, penalty), kernels.ridge_dual(kernel.double(), targets.double(), penalty)),
        (
            kernels.ridge_primal(features, targets, penalty),
            kernels.ridge_primal(features.double(), targets.double(), penalty),
        ),
        (
            kernels.gaussian_process(kernel, targets, 0.5).mean,
            kernels.gaussian_process(kernel.double(), targets.double(), 0.5).mean,
        ),
    ):
        assert found.dtype == dtype
        close(found.double(), expected, 40 * eps * float(expected.abs().max()))


def test_objects_with_a_matrix_method_are_kernels_too():
    features, targets = draw(6, 4), draw(6, seed=1)
    matrix = features @ features.T
    kernel = WithMatrix(matrix)
    assert torch.equal(kernels.ridge_dual(kernel, targets, 0.1), kernels.ridge_dual(matrix, targets, 0.1))
    assert torch.equal(kernels.rademacher_exact(kernel), kernels.rademacher_exact(matrix))
    assert torch.equal(kernels.rkhs_norm(kernel, targets), kernels.rkhs_norm(matrix, targets))
    assert torch.equal(
        kernels.gaussian_process(kernel, targets, 0.1).mean, kernels.gaussian_process(matrix, targets, 0.1).mean
    )


def test_one_example_has_the_scalar_formulas():
    kernel, targets = torch.tensor([[4.0]]), torch.tensor([3.0])
    assert float(kernels.ridge_dual(kernel, targets, 2.0)) == pytest.approx(3 / 6)
    assert float(kernels.ridge_primal(torch.tensor([[2.0]]), targets, 2.0)) == pytest.approx(1.0)
    assert float(kernels.rademacher_exact(kernel, 5.0)) == pytest.approx(10.0)
    assert float(kernels.rademacher_trace_bound(kernel, 5.0)) == pytest.approx(10.0)
    posterior = kernels.gaussian_process(kernel, targets, 1.0)
    assert float(posterior.mean) == pytest.approx(2.4)
    assert posterior.covariance is not None and float(posterior.covariance) == pytest.approx(0.8)


def test_zero_kernel_gives_the_zero_function_and_the_prior():
    kernel, targets = torch.zeros(3, 3), torch.ones(3)
    assert kernels.predict(kernel, kernels.ridge_dual(kernel, targets, 0.5)).tolist() == [0.0, 0.0, 0.0]
    assert kernels.ridge_dual(kernel, targets, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert kernels.ridge_primal(torch.zeros(3, 2), targets, 0.0).tolist() == [0.0, 0.0]
    assert kernels.mercer_features(kernel).shape == (3, 0)
    assert float(kernels.rademacher_exact(kernel)) == float(kernels.rademacher_trace_bound(kernel)) == 0.0
    posterior = kernels.gaussian_process(kernel, targets, 2.0)
    assert posterior.mean.tolist() == [0.0, 0.0, 0.0]
    assert float(posterior.log_marginal_likelihood) == pytest.approx(-0.5 * (1.5 + 3 * math.log(4 * math.pi)), rel=1e-6)
    with pytest.raises(SolveError, match="singular"):
        kernels.gaussian_process(kernel, targets, 0.0)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: kernels.ridge_dual(torch.zeros(2, 3), torch.zeros(2), 1.0), InputError),
        (lambda: kernels.ridge_dual(torch.zeros(0, 0), torch.zeros(0), 1.0), InputError),
        (lambda: kernels.ridge_dual(torch.eye(3), torch.zeros(2), 1.0), InputError),
        (lambda: kernels.ridge_dual(torch.eye(3), torch.zeros(3), -1.0), InputError),
        (lambda: kernels.ridge_dual(torch.full((2, 2), torch.nan), torch.zeros(2), 1.0), NumericsError),
        (lambda: kernels.ridge_dual(torch.diag(torch.tensor([-5.0, 1.0])), torch.zeros(2), 1.0), NumericsError),
        (lambda: kernels.ridge_dual(torch.eye(3), torch.zeros(3, dtype=torch.float64), 1.0), InputError),
        (lambda: kernels.ridge_dual(torch.eye(3), torch.zeros(3, dtype=torch.int64), 1.0), InputError),
        (lambda: kernels.ridge_primal(torch.eye(3), torch.zeros(2), 1.0), InputError),
        (lambda: kernels.predict(torch.zeros(4, 3), torch.zeros(2)), InputError),
        (lambda: kernels.rademacher_exact(torch.eye(17)), InputError),
        (lambda: kernels.rademacher_exact(torch.eye(2), -1.0), InputError),
        (lambda: kernels.rademacher_monte_carlo(torch.eye(2), samples=1), InputError),
        (lambda: kernels.rademacher_monte_carlo(torch.eye(2), confidence=1.0), InputError),
        (lambda: kernels.generalization_bound(0.1, 0, 0.1), InputError),
        (lambda: kernels.empirical_generalization_bound(0.1, 5, 0.0), InputError),
    ],
)
def test_inputs_without_meaning_are_refused(call, error):
    with pytest.raises(error):
        call()
