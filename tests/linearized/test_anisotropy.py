"""Anisotropy directions: the matrix-free operator against a dense one, theorem 1, the older definition, and the data."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from tangentlab.errors import InputError, ModelError
from tangentlab.linearized.anisotropy import MixedDerivative, anisotropy_directions, gradient_directions
from tangentlab.linearized.anisotropy_data import direction_dataset
from tangentlab.models import MLP, LeNet5, ResNet


def dense(network: nn.Module, points: torch.Tensor) -> torch.Tensor:
    """(parameters, inputs): the gradient in the parameters of every entry of the mean input gradient, one by one."""
    x = points.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(network(x).mean(), x, create_graph=True)
    entries = gradient.flatten(1).sum(0)
    parameters = list(network.parameters())
    columns = []
    for entry in entries:
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        columns.append(torch.cat([g.flatten() for g in torch.autograd.grad(entry, parameters, **options)]))
    return torch.stack(columns, 1)


@pytest.fixture
def tiny(seed) -> nn.Module:
    return MLP((6, 10, 8, 1), "tanh").double().eval()


@pytest.mark.parametrize("count", [1, 7])
def test_products_are_those_of_the_dense_matrix_and_of_its_transpose(tiny, seed, count):
    points = torch.randn(count, 6, generator=seed(1), dtype=torch.float64)
    mixed, matrix = MixedDerivative(tiny, points), dense(tiny, points)
    v = torch.randn(3, 6, generator=seed(2), dtype=torch.float64)
    u = torch.randn(3, matrix.shape[0], generator=seed(3), dtype=torch.float64)
    torch.testing.assert_close(mixed.mv(v), v @ matrix.T)
    torch.testing.assert_close(mixed.rmv(u), u @ matrix)
    torch.testing.assert_close((mixed.mv(v) * u).sum(), (mixed.rmv(u) * v).sum())


def test_the_matrix_is_the_change_of_the_input_gradient_with_the_parameters(tiny, seed):
    """Against finite differences, which know nothing of second derivatives."""
    point = torch.randn(1, 6, generator=seed(4), dtype=torch.float64)
    direction = torch.randn(sum(p.numel() for p in tiny.parameters()), generator=seed(5), dtype=torch.float64)
    found = MixedDerivative(tiny, point).rmv(direction[None])[0]
    base = nn.utils.parameters_to_vector(tiny.parameters()).detach()
    gradients = []
    for step in (1e-5, -1e-5):
        nn.utils.vector_to_parameters(base + step * direction, tiny.parameters())
        x = point.clone().requires_grad_()
        gradients.append(torch.autograd.grad(tiny(x).sum(), x)[0][0])
    nn.utils.vector_to_parameters(base, tiny.parameters())
    torch.testing.assert_close(found, (gradients[0] - gradients[1]) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("k", [None, 2])
def test_directions_are_the_singular_vectors_of_the_dense_matrix(tiny, seed, k):
    points = torch.randn(4, 6, generator=seed(6), dtype=torch.float64)
    found = anisotropy_directions(tiny, points, k)
    _, singular, right = torch.linalg.svd(dense(tiny, points), full_matrices=False)
    count = 6 if k is None else k
    torch.testing.assert_close(found.singular_values, singular[:count])
    assert (found.directions * right[:count]).sum(1).abs().min() > 1 - 1e-8


@pytest.mark.parametrize(
    "network",
    [lambda: LeNet5(1, 8, 1, "gelu"), lambda: ResNet((1, 1), 1, base=3, in_channels=1, activation="gelu")],
)
@pytest.mark.parametrize("zero", [True, False])
def test_convolutional_networks_at_zero_and_averaged_over_data(seed, network, zero):
    model = network().eval()
    points = torch.zeros(1, 1, 8, 8) if zero else torch.randn(3, 1, 8, 8, generator=seed(7))
    found = anisotropy_directions(model, points, 10)
    matrix = dense(model.double(), points.double())
    singular, right = torch.linalg.svd(matrix, full_matrices=False)[1:]
    torch.testing.assert_close(found.singular_values, singular[:10], rtol=1e-6, atol=0)
    images = (matrix @ found.directions.flatten(1).T).norm(dim=0)
    torch.testing.assert_close(images, found.singular_values, rtol=1e-6, atol=0)
    assert found.directions.shape == (10, 1, 8, 8) and found.spectra().shape == (10, 1, 8, 8)


def test_theorem_1_the_alignment_of_a_linear_function_is_the_squared_image_of_its_direction(seed):
    """E[u.x grad f(x)] = E[mixed] u for x ~ N(0, I), by sampling both sides from other draws."""
    network = MLP((4, 12, 1), "tanh").double().eval()
    u = nn.functional.normalize(torch.randn(4, generator=seed(8), dtype=torch.float64), dim=0)
    draws = 200_000
    x = torch.randn(draws, 4, generator=seed(9), dtype=torch.float64)
    weighted = (x @ u * network(x)[:, 0]).mean()
    left = torch.cat([g.flatten() for g in torch.autograd.grad(weighted, list(network.parameters()))])
    other = torch.randn(draws, 4, generator=seed(10), dtype=torch.float64)
    right = MixedDerivative(network, other).mv(u[None])[0]
    assert float((left - right).norm() / right.norm()) < 0.02
    assert float(left.norm() ** 2) == pytest.approx(float(right.norm() ** 2), rel=0.02)


def test_the_zero_scale_of_the_last_norms_silences_the_branches(seed):
    """With a scale of 0 the branches' own convolutions cannot move the input gradient at first order."""
    network = ResNet((1, 1), 1, base=3, in_channels=1, activation="gelu", zero_init_residual=True).double().eval()
    matrix = dense(network, torch.zeros(1, 1, 8, 8, dtype=torch.float64))
    names = [(name, p.numel()) for name, p in network.named_parameters()]
    rows = dict(zip([n for n, _ in names], matrix.split([size for _, size in names]), strict=True))
    assert rows["layer1.0.conv1.weight"].abs().max() == 0 and rows["layer1.0.conv2.weight"].abs().max() == 0
    assert rows["layer1.0.bn2.weight"].abs().max() > 0 and rows["conv1.weight"].abs().max() > 0


def test_principal_components_of_input_gradients_find_the_same_subspace(seed):
    """A linear convolution followed by a linear read-out of the first three pixels: only these can ever matter."""

    def make(draw: int) -> nn.Module:
        torch.manual_seed(draw)
        reader = nn.Linear(8, 1).double()
        with torch.no_grad():
            reader.weight[:, 3:] = 0
        return nn.Sequential(reader, nn.Tanh()).eval()

    found = gradient_directions(make, torch.zeros(8, dtype=torch.float64), 40)
    assert (found.singular_values[3:] < 1e-12).all() and found.singular_values[2] > 0.05
    assert found.directions[:3, 3:].abs().max() < 1e-12
    gradients = []
    for draw in range(40):
        x = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
        gradients.append(torch.autograd.grad(make(draw)(x).sum(), x)[0][0])
    second = torch.stack(gradients).T @ torch.stack(gradients) / 40
    torch.testing.assert_close(found.alignments[:3], torch.linalg.eigvalsh(second)[-3:].flip(0))


def test_both_definitions_agree_where_the_network_prefers_one_scale_of_inputs(seed):
    """First-layer weights that are larger on some inputs make these the leading directions of both."""

    def make(draw: int) -> nn.Module:
        torch.manual_seed(draw)
        network = nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.Linear(40, 1)).double().eval()
        with torch.no_grad():
            network[0].weight *= torch.tensor([3.0, 2.0, 0.1, 0.1, 0.1, 0.1])
        return network

    older = gradient_directions(make, torch.zeros(6, dtype=torch.float64), 300, 2)
    assert older.directions[:, 2:].norm() < 0.1
    newer = anisotropy_directions(make(0), torch.zeros(1, 6), 1)
    assert newer.directions[0, :2].norm() > 0.9


def test_the_model_is_left_as_it_was_and_what_cannot_be_differentiated_is_refused(tiny):
    before = {name: value.clone() for name, value in tiny.state_dict().items()}
    anisotropy_directions(tiny, torch.zeros(1, 6), 1)
    assert all(torch.equal(before[n], value) for n, value in tiny.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in tiny.parameters())
    with pytest.raises(ModelError, match="GELU"):
        anisotropy_directions(MLP((6, 4, 1)).eval(), torch.zeros(1, 6))
    with pytest.raises(ModelError, match="eval"):
        anisotropy_directions(ResNet((1,), 1, base=3, activation="gelu"), torch.zeros(1, 3, 8, 8))
    with pytest.raises(InputError, match="between 1 and 6"):
        anisotropy_directions(tiny, torch.zeros(1, 6), 7)
    with pytest.raises(InputError, match="outputs 0 to 0"):
        MixedDerivative(tiny, torch.zeros(1, 6, dtype=torch.float64), 1)
    with pytest.raises(InputError, match="examples"):
        MixedDerivative(tiny, torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize(("half", "reach"), [(False, 0.8), (True, 0.4)])
def test_the_data_are_exactly_at_the_margin_along_u_and_isotropic_across(seed, half, reach):
    u = torch.randn(1, 4, 4, generator=seed(11))
    options = {"margin": 0.8, "variance": 2.0, "half_margin": half}
    data = direction_dataset(u, 20_000, seed(12), **options)
    unit = (u / u.norm()).flatten()
    along = data.inputs.flatten(1) @ unit
    torch.testing.assert_close(along, reach * (2.0 * data.targets - 1), rtol=0, atol=1e-5)
    assert 0.48 < data.targets.float().mean() < 0.52
    across = data.inputs.flatten(1) - along[:, None] * unit
    projector = torch.eye(16) - torch.outer(unit, unit)
    torch.testing.assert_close(across.T @ across / 20_000, 2.0 * projector, rtol=0, atol=0.12)


def test_a_linear_classifier_separates_the_data_without_error(seed):
    data = direction_dataset(torch.randn(30, generator=seed(13)), 500, seed(14))
    model = LogisticRegression(C=1e4, max_iter=5000).fit(data.inputs.numpy(), data.targets.numpy())
    other = direction_dataset(torch.randn(30, generator=seed(13)), 500, seed(15), split="test")
    assert model.score(data.inputs.numpy(), data.targets.numpy()) == 1.0
    assert model.score(other.inputs.numpy(), other.targets.numpy()) > 0.99
    with pytest.raises(InputError, match="other than 0"):
        direction_dataset(torch.zeros(3), 5, seed(16))


class FunctionalRelu(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(super().forward(x)).sum(1, keepdim=True)


def test_a_relu_that_is_no_module_is_refused_too():
    with pytest.raises(ModelError, match=r"relu of torch has no second derivative"):
        anisotropy_directions(FunctionalRelu(4, 3), torch.randn(5, 4), 1)


@pytest.mark.parametrize(
    "kink",
    [
        lambda x: nn.functional.leaky_relu(x),
        lambda x: nn.functional.relu6(x),
        lambda x: x.clamp_min(0),
        torch.abs,
        lambda x: torch.maximum(x, 0.5 * x),
        nn.Threshold(0.0, 0.0),
        nn.PReLU(),
        nn.MaxPool1d(2),
    ],
)
def test_everything_with_kinks_is_refused(kink):
    class Kinked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 8)
            self.kink = kink

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kink(super().forward(x)).sum(1, keepdim=True)

    with pytest.raises(ModelError, match="no second derivative"):
        anisotropy_directions(Kinked(), torch.randn(5, 4), 1)


def test_a_bound_that_never_clips_is_no_kink(tiny):
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(nn.functional.normalize(x))

    assert len(anisotropy_directions(Normalized(), torch.randn(5, 6), 1).directions) == 1
