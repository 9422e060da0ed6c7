"""Every fact about implicit bias that the slides list, against an exact oracle."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tangentlab import NTK
from tangentlab.errors import InputError, ModelError, SolveError
from tangentlab.implicit_bias import (
    Entropy,
    Euclidean,
    FlowPotential,
    convolutional_predictor,
    coordinate_descent,
    diagonal_predictor,
    diagonal_start,
    follow_flow,
    fourier_norm,
    homogeneity,
    l1_margin,
    l2_margin,
    least_l1,
    least_l2,
    least_nuclear,
    margin_stationarity,
    minimum_on,
    mirror_descent,
    orthogonal_start,
    product_kernel,
    product_matrix,
)
from tests.implicit_bias.test_potentials import problem


def separable(m: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=generator, dtype=torch.float64)
    return x, (x @ torch.randn(d, generator=generator, dtype=torch.float64)).sign()


def direction(vector: torch.Tensor) -> torch.Tensor:
    return vector / vector.norm()


def test_gradient_flow_on_least_squares_from_zero_ends_at_the_least_l2_norm():
    x, y = problem(5, 12)
    path = follow_flow(lambda w: (x @ w - y).square().sum(), torch.zeros(12), until=1e4, loss_below=1e-20)
    torch.testing.assert_close(path.end, least_l2(x, y), rtol=0, atol=1e-7)


@pytest.mark.parametrize("potential", [Entropy(), FlowPotential(0.3)], ids=["entropy", "hyperbolic"])
def test_mirror_and_natural_gradient_descent_end_at_the_least_potential(potential):
    x, _ = problem(4, 10)
    y = x @ torch.linspace(0.1, 1.5, 10, dtype=torch.float64)
    expected = minimum_on(x, y, potential).beta
    torch.testing.assert_close(mirror_descent(x, y, potential, rate=0.02, steps=6_000), expected, rtol=0, atol=1e-6)
    errors = [
        float((mirror_descent(x, y, potential, rate=rate, steps=int(80 / rate), natural=True) - expected).norm())
        for rate in (0.02, 0.005)
    ]
    assert errors[1] < 0.35 * errors[0] < 0.05  # natural gradients agree as the rate goes to zero, in proportion to it


def test_mirror_descent_from_elsewhere_minimizes_the_divergence_from_there():
    x, _ = problem(3, 8)
    start = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
    y = x @ torch.linspace(2.0, 0.5, 8, dtype=torch.float64)
    expected = minimum_on(x, y, Entropy(), start=start).beta
    found = mirror_descent(x, y, Entropy(), rate=0.02, steps=6_000, start=start)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert float((expected - minimum_on(x, y, Entropy()).beta).abs().max()) > 0.01


def test_the_flow_of_the_logistic_loss_goes_to_the_direction_of_the_hard_margin():
    x, y = separable(5, 8)
    path = follow_flow(lambda w: F.softplus(-y * (x @ w)).sum().log(), torch.zeros(8), until=1e6, loss_below=-300)
    cosine = float(direction(path.end) @ direction(l2_margin(x, y)))
    assert cosine > 1 - 1e-3
    assert float(direction(path.end) @ direction(l1_margin(x, y))) < cosine


def test_coordinate_descent_goes_to_the_largest_l1_margin():
    x, y = separable(5, 8, seed=1)
    oracle = l1_margin(x, y)
    best = 1 / float(oracle.abs().sum())
    errors = []
    for steps in (2_000, 20_000):
        found = coordinate_descent(x, y, steps=steps, rate=0.05)
        errors.append(1 - float((y * (x @ found)).min()) / best)
    assert 0 <= errors[1] < errors[0]
    assert errors[1] < 0.01
    l2 = l2_margin(x, y)
    assert float((y * (x @ l2)).min() / l2.abs().sum()) < 0.97 * best


def test_margins_of_the_oracles_are_one_and_no_direction_has_more():
    x, y = separable(10, 5, seed=2)
    l1, l2 = l1_margin(x, y), l2_margin(x, y)
    for beta in (l1, l2):
        assert float((y * (x @ beta)).min()) == pytest.approx(1)
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
    margins = (y * (others @ x.t())).min(1).values
    assert float((margins / others.norm(dim=1)).max()) <= 1 / float(l2.norm()) + 1e-9
    assert float((margins / others.abs().sum(1)).max()) <= 1 / float(l1.abs().sum()) + 1e-9


def test_the_hard_margin_is_that_of_a_support_vector_machine_on_mirrored_points():
    from sklearn.svm import SVC

    x, y = separable(12, 4, seed=3)
    both, labels = torch.cat([x, -x]), torch.cat([y, -y])  # the mirrored points force its bias to zero
    machine = SVC(kernel="linear", C=1e8, tol=1e-10).fit(both.numpy(), labels.numpy())
    torch.testing.assert_close(torch.from_numpy(machine.coef_[0]), l2_margin(x, y), rtol=0, atol=1e-4)


@pytest.mark.parametrize("oracle", [l1_margin, l2_margin])
def test_labels_that_cannot_be_separated_are_refused(oracle):
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    with pytest.raises(SolveError):
        oracle(x, torch.tensor([1.0, 1.0]))


def test_factored_matrices_with_small_starts_come_to_nearly_the_least_nuclear_norm():
    generator = torch.Generator().manual_seed(0)
    truth = torch.outer(*torch.randn(2, 5, generator=generator, dtype=torch.float64))
    a = torch.randn(14, 25, generator=generator, dtype=torch.float64)
    y = a @ truth.flatten()
    oracle = least_nuclear(a, y, (5, 5), gap=1e-5)
    assert oracle.lower <= oracle.norm
    start = orthogonal_start(5, 5, 1.0)
    norms = []
    for alpha in (1.0, 1e-3):
        noise = torch.randn(len(start), generator=generator, dtype=torch.float64)
        path = follow_flow(
            lambda w: (a @ product_matrix(w, 5, 5).flatten() - y).square().sum(),
            alpha * (start + 0.1 * noise),
            until=1e6,
            loss_below=1e-14,
        )
        norms.append(float(torch.linalg.matrix_norm(product_matrix(path.end, 5, 5), "nuc")))
    assert norms[1] < 1.01 * oracle.norm < norms[0]
    assert norms[1] > oracle.lower - 1e-4


def test_the_nuclear_minimum_of_observed_entries_is_certified():
    truth = torch.outer(torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, -0.5, 2.0])).double()
    seen = torch.eye(9, dtype=torch.float64)[[0, 1, 2, 3, 6, 4]]
    found = least_nuclear(seen, seen @ truth.flatten(), (3, 3), gap=1e-6)
    torch.testing.assert_close(seen @ found.matrix.flatten(), seen @ truth.flatten())
    assert found.lower <= found.norm <= found.lower * (1 + 1e-5)
    assert found.norm <= float(torch.linalg.matrix_norm(truth, "nuc")) + 1e-6


def test_linear_convolutions_on_the_exponential_loss_are_sparse_in_frequency():
    """Of depth 2 the direction minimizes the L1 norm of the Fourier transform: smaller than that of the L2 margin."""
    x, y = separable(6, 8, seed=4)
    generator = torch.Generator().manual_seed(1)

    def loss(w: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(-y * (x @ convolutional_predictor(w, 2)), 0)

    path = follow_flow(
        loss, 0.1 * torch.randn(16, generator=generator, dtype=torch.float64), until=1e6, loss_below=-200
    )
    beta = convolutional_predictor(path.end, 2)
    beta = beta / (y * (x @ beta)).min()
    l2 = l2_margin(x, y)
    assert fourier_norm(beta, 1) < 0.97 * fourier_norm(l2, 1)
    assert float(beta.norm()) > float(l2.norm())


def test_the_spectrum_of_a_convolutional_network_is_the_product_of_its_layers():
    generator = torch.Generator().manual_seed(0)
    layers = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    beta = convolutional_predictor(layers.flatten(), 3)
    by_hand = layers[0]
    for layer in layers[1:]:
        by_hand = sum(layer[k] * by_hand.roll(k) for k in range(7))
    torch.testing.assert_close(beta, by_hand)


@pytest.mark.parametrize("depth", [2, 3])
def test_diagonal_networks_on_the_squared_loss_go_to_the_l1_norm_at_any_depth(depth):
    x, y = problem(4, 10, seed=5)
    l1 = float(least_l1(x, y).abs().sum())
    sizes = [float(minimum_on(x, y, FlowPotential(alpha, depth)).beta.abs().sum()) for alpha in (1.0, 0.1, 0.01)]
    assert sizes[0] > sizes[1] > sizes[2] >= l1 * (1 - 1e-9)
    assert sizes[2] < 1.08 * l1


def test_diagonal_networks_of_depth_two_on_the_exponential_loss_go_to_the_l1_margin():
    x, y = separable(6, 8, seed=6)
    path = follow_flow(
        lambda w: torch.logsumexp(-y * (x @ diagonal_predictor(w)), 0),
        diagonal_start(8, 0.1),
        until=1e6,
        loss_below=-500,
    )
    beta = diagonal_predictor(path.end)
    best = 1 / float(l1_margin(x, y).abs().sum())
    assert float((y * (x @ beta)).min() / beta.abs().sum()) > 0.98 * best
    l2 = l2_margin(x, y)
    assert float((y * (x @ l2)).min() / l2.abs().sum()) < 0.95 * best


class TwoLayers(nn.Module):
    """A two-layer ReLU network without biases, homogeneous of degree 2."""

    def __init__(self, width: int = 6, features: int = 3) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(features, width, bias=False), nn.Linear(width, 1, bias=False)

    def forward(self, x):
        return self.outer(self.inner(x).relu())


@pytest.mark.parametrize(
    ("model", "degree"),
    [
        (nn.Linear(3, 1, bias=False), 1),
        (TwoLayers(), 2),
        (nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(4))), 4),
    ],
    ids=["linear", "two layers", "four linear layers"],
)
def test_the_degree_of_homogeneous_models_is_measured(model, degree):
    assert homogeneity(model, torch.randn(5, 3)) == pytest.approx(degree, abs=1e-4)


def test_a_model_with_biases_is_not_homogeneous():
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="homogeneous"):
        homogeneity(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(5, 3))


def test_the_exponential_loss_brings_a_relu_network_to_a_stationary_point_of_the_margin():
    torch.manual_seed(3)
    x, y = separable(8, 3, seed=7)
    model = TwoLayers(width=3).double()
    before = margin_stationarity(model, x, y, degree=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4_000):  # on the logarithm of the loss: the same direction, with steps that do not fade
        optimizer.zero_grad()
        torch.logsumexp(-y * model(x)[:, 0], 0).backward()
        size = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.param_groups[0]["lr"] = 0.01 / float(size)
        optimizer.step()
    after = margin_stationarity(model, x, y, degree=2)
    torch.testing.assert_close(after.margins, (y * model(x)[:, 0]).detach())
    assert after.normalized_margin > before.normalized_margin
    assert after.alignment > 0.999
    assert before.alignment < 0.9
    assert after.slackness < 0.05
    assert bool((after.multipliers >= 0).all())


def test_stationarity_wants_one_output_and_signs():
    model = nn.Linear(3, 2, bias=False)
    with pytest.raises(InputError, match="One output"):
        margin_stationarity(model, torch.randn(4, 3), torch.ones(4), degree=1)
    with pytest.raises(InputError, match="\\+1 or -1"):
        margin_stationarity(nn.Linear(3, 1, bias=False), torch.randn(4, 3), torch.arange(4.0), degree=1)


def test_stationarity_in_weights_does_not_imply_it_in_function_space():
    """A unit that is zero has no gradient, so w is stationary without it; a network that used it would need a smaller norm."""
    x = torch.tensor([[1.0, 0.2], [-1.0, 0.2]], dtype=torch.float64)
    y = torch.ones(2, dtype=torch.float64)
    model, better = TwoLayers(2, 2).double(), TwoLayers(2, 2).double()
    with torch.no_grad():
        model.inner.weight.copy_(
            torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        )  # one unit sees both points, with a small margin
        model.outer.weight.copy_(torch.tensor([[1.0, 0.0]]))
        directions = x / x.norm(dim=1, keepdim=True)
        better.inner.weight.copy_(directions)  # one unit for each point
        better.outer.weight.copy_(torch.ones(1, 2))
    stuck, free = (margin_stationarity(net, x, y, degree=2) for net in (model, better))
    assert stuck.alignment == pytest.approx(1, abs=1e-9)
    assert stuck.slackness == pytest.approx(0, abs=1e-9)
    assert free.normalized_margin > 2 * stuck.normalized_margin


def test_the_kernel_of_a_factored_matrix_is_that_of_the_slides():
    class Product(nn.Module):
        def __init__(self, weights):
            super().__init__()
            self.weights = nn.Parameter(weights)

        def forward(self, entries):
            return (entries @ product_matrix(self.weights, 3, 4).flatten())[:, None]

    torch.manual_seed(0)
    weights = torch.randn(7 * 2, dtype=torch.float64)
    kernel = NTK(Product(weights), torch.eye(12, dtype=torch.float64)).matrix()
    torch.testing.assert_close(kernel, product_kernel(weights, 3, 4))
    start = product_kernel(orthogonal_start(3, 4, 0.5), 3, 4)
    torch.testing.assert_close(start, 2 * 0.5**2 * torch.eye(12, dtype=torch.float64))


def test_the_kernel_of_the_squared_parametrization_is_eight_times_the_inner_product():
    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(diagonal_start(5, 1.0))

        def forward(self, x):
            return (x @ diagonal_predictor(self.weights))[:, None]

    x = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(NTK(Squared(), x).matrix(), 8 * x @ x.t())


def test_the_kernel_regime_ends_at_the_least_kernel_norm():
    x, y = problem(4, 9, seed=8)
    path = follow_flow(
        lambda w: (x @ diagonal_predictor(w) - y).square().sum(), diagonal_start(9, 30.0), until=10, loss_below=1e-18
    )
    torch.testing.assert_close(diagonal_predictor(path.end), least_l2(x, y), rtol=0, atol=1e-5)


def test_the_euclidean_potential_is_the_l2_oracle():
    x, y = problem(4, 9, seed=9)
    torch.testing.assert_close(minimum_on(x, y, Euclidean()).beta, least_l2(x, y))


def test_flows_of_tensors_that_are_not_flat_are_refused():
    with pytest.raises(InputError, match="flat"):
        follow_flow(lambda w: w.square().sum(), torch.zeros(2, 2), until=1)


def test_a_loss_that_stays_above_its_bound_is_an_error():
    with pytest.raises(SolveError, match="still above"):
        follow_flow(lambda w: w.square().sum() + 1, torch.ones(2), until=1, loss_below=0.5)
