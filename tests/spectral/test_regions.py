"""Regions of piecewise-linear networks: exact cells, against brute force over points."""

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull
from torch import Tensor, nn

from tangentlab.engine.memory import memory_limit
from tangentlab.errors import InputError, MemoryBudgetError, ModelError, NumericsError
from tangentlab.spectral import activation_pattern, enumerate_regions, region_affine, region_halfspaces, region_of
from tests.spectral.networks import Pyramid, hat, mlp, patterns_of, shallow, uniform


def volumes(partition) -> np.ndarray:
    if partition.dimension == 1:
        return np.array([np.ptp(partition.corners(i)) for i in range(len(partition))])
    return np.array([ConvexHull(partition.corners(i)).volume for i in range(len(partition))])


CASES = [(1, 16, 2), (1, 8, 4), (2, 8, 2), (2, 12, 3), (3, 6, 2), (4, 4, 2)]


@pytest.mark.parametrize("dimension, width, depth", CASES)
def test_cells_are_the_patterns_that_occur_each_once_and_fill_the_box(dimension: int, width: int, depth: int) -> None:
    model = mlp(dimension, width, depth, seed=dimension)
    partition = enumerate_regions(model, [[-1.5, 2.0]] * dimension)
    centres = torch.from_numpy(partition.complex.centres())
    cells = patterns_of(model, centres)
    assert len(cells) == len(partition)
    assert patterns_of(model, uniform(20_000, -1.5, 2.0, dimension)) <= cells
    assert volumes(partition).sum() == pytest.approx(3.5**dimension, rel=1e-12)


@pytest.mark.parametrize("dimension, width, depth", [(1, 16, 2), (2, 5, 2), (3, 4, 1)])
def test_the_count_is_that_of_a_fine_grid_of_points(dimension: int, width: int, depth: int) -> None:
    model = mlp(dimension, width, depth, seed=3)
    partition = enumerate_regions(model, [[-1.0, 1.0]] * dimension)
    assert volumes(partition).min() > 1e-3 * 0.5**dimension  # the grid cannot miss one
    steps = {1: 20_001, 2: 401, 3: 61}[dimension]
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, steps, dtype=torch.float64)] * dimension).view(-1, dimension)
    assert len(patterns_of(model, grid)) == len(partition)


@pytest.mark.parametrize(
    "activation", [nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.ReLU6, nn.Softshrink, nn.Hardsigmoid]
)
def test_the_affine_map_of_a_region_is_the_network_and_its_gradient(activation: type[nn.Module]) -> None:
    model = mlp(2, 6, 2, seed=1, outputs=3, activation=activation)
    partition = enumerate_regions(model, [[-4.0, 4.0]] * 2)
    x = torch.from_numpy(partition.complex.centres()).requires_grad_()
    y = model.double()(x)
    ours = partition.at(np.arange(len(partition)), x.detach().numpy())
    np.testing.assert_allclose(ours, y.detach().numpy(), atol=1e-12)
    for output in range(3):
        (gradient,) = torch.autograd.grad(y[:, output].sum(), x, retain_graph=True)
        np.testing.assert_allclose(partition.weights[:, output], gradient.numpy(), atol=1e-12)


class Awkward(nn.Module):
    """Residual sums, in-place bends, functional calls, a reused layer, absolute values and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(2, 6), nn.Linear(6, 6), nn.Linear(12, 1)
        self.norm = nn.BatchNorm1d(6)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.norm(self.first(x)))
        h = h + 0.5 * self.act(self.again(h))
        h += torch.nn.functional.leaky_relu(self.again(h), 0.2)
        h = torch.cat([h.abs() - 1, 2 - h.clamp(-0.5, 0.5) / 3], dim=1)
        return self.last(torch.relu(h)).squeeze(1).unsqueeze(1)


def test_forwards_as_users_write_them_are_followed_exactly() -> None:
    torch.manual_seed(0)
    model = Awkward()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2.0)
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    partition = enumerate_regions(model, [[-2.0, 2.0]] * 2)
    cells = patterns_of(model, torch.from_numpy(partition.complex.centres()))
    assert len(cells) == len(partition)
    assert patterns_of(model, uniform(20_000, -2, 2, 2)) <= cells
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_lipschitz_constant_bounds_all_difference_quotients_and_is_one_of_them() -> None:
    model = mlp(2, 16, 2, seed=5).double()
    partition = enumerate_regions(model, [[-1.0, 1.0]] * 2)
    x, y = uniform(20_000, -1, 1, 2), uniform(20_000, -1, 1, 2, seed=1)
    with torch.no_grad():
        quotients = (model(x) - model(y)).abs()[:, 0] / (x - y).norm(dim=1)
    assert float(quotients.max()) <= partition.lipschitz * (1 + 1e-12)
    steepest = int(np.linalg.norm(partition.weights[:, 0], axis=1).argmax())
    point, slope = partition.complex.centres()[steepest], partition.weights[steepest, 0]
    step = 1e-7 * slope / np.linalg.norm(slope)
    with torch.no_grad():
        rise = float(model(torch.from_numpy(point + step)[None]) - model(torch.from_numpy(point)[None]))
    assert rise / 1e-7 == pytest.approx(partition.lipschitz, rel=1e-6)


def test_region_of_an_input_has_its_map_and_its_half_spaces() -> None:
    model = mlp(3, 7, 3, seed=2, outputs=2).double()
    inputs = uniform(20, -1, 1, 3)
    pattern = activation_pattern(model, inputs)
    for number, x in enumerate(inputs):
        region = region_of(model, x)
        assert torch.allclose(region.weight @ x + region.bias, model(x[None])[0], atol=1e-12)
        assert region.contains(x)
        mine = [part[number] for part in pattern]
        weight, bias = region_affine(model, mine, (3,))
        normals, offsets = region_halfspaces(model, mine, (3,))
        assert torch.allclose(weight, region.weight, atol=1e-12) and torch.allclose(bias, region.bias, atol=1e-12)
        same = torch.tensor([bool((normals @ y <= offsets).all()) for y in inputs])
        truth = torch.stack([(part == part[number]).flatten(1).all(1) for part in pattern]).all(0)
        assert torch.equal(same, truth)


class TestDegenerateInput:
    def test_dead_and_constant_units_cut_nothing(self) -> None:
        model = shallow([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], [0.0, 1.0, -1.0, 9.0], [1.0, 1.0, 1.0, 1.0])
        assert len(enumerate_regions(model, [[-1, 1], [-1, 1]])) == 2

    def test_a_unit_that_is_zero_everywhere_cuts_nothing(self) -> None:
        model = shallow([[0.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [1.0, 1.0])
        assert len(enumerate_regions(model, [[-1, 1], [-1, 1]])) == 2

    @pytest.mark.parametrize("scale", [1.0, 1 / 3, -7.7, 1e-9, 1e9])
    def test_duplicated_lines_cut_once(self, scale: float) -> None:
        line = [0.3, -0.7]
        model = shallow([line, [scale * w for w in line], [1.0, 0.0]], [0.1, scale * 0.1, 0.0], [1.0, 1.0, 1.0])
        assert len(enumerate_regions(model, [[-1, 1], [-1, 1]])) == 4

    def test_parallel_lines_and_lines_through_one_point(self) -> None:
        parallel = shallow([[1.0, 2.0]] * 5, [-1.0, -0.5, 0.0, 0.5, 1.0], [1.0] * 5)
        assert len(enumerate_regions(parallel, [[-1, 1], [-1, 1]])) == 6
        angles = np.linspace(0, np.pi, 7, endpoint=False) + 0.1
        pencil = shallow([[float(np.cos(a)), float(np.sin(a))] for a in angles], [0.0] * 7, [1.0] * 7)
        assert len(enumerate_regions(pencil, [[-1, 1], [-1, 1]])) == 14

    def test_lines_on_the_border_and_through_the_corners_of_the_box(self) -> None:
        border = shallow([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0])
        assert len(enumerate_regions(border, [[-1, 1], [-1, 1]])) == 4

    def test_planes_through_edges_and_corners_of_a_cube(self) -> None:
        model = shallow([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 1.0]], [0.0, 0.0, 1.0], [1.0] * 3)
        partition = enumerate_regions(model, [[-1, 1]] * 3)
        assert volumes(partition).sum() == pytest.approx(8, rel=1e-12)
        assert len(partition) == len(patterns_of(model, uniform(20_000, -1, 1, 3)))

    def test_a_pattern_without_volume_is_no_region(self) -> None:
        model = shallow([[1.0], [-1.0]], [0.0, 0.0], [1.0, 1.0])  # both units inactive at 0 alone
        assert len(enumerate_regions(model, (-1, 1))) == 2

    def test_float32_weights_are_taken_as_the_numbers_that_they_are(self) -> None:
        model = mlp(2, 16, 2, seed=4)
        single = enumerate_regions(model, [[-1, 1]] * 2)
        double = enumerate_regions(model.double(), [[-1, 1]] * 2)
        assert np.array_equal(single.complex.corners, double.complex.corners)

    def test_a_tiny_box_far_away_is_cut_as_well(self) -> None:
        model = shallow([[1.0, 0.0], [0.0, 1.0]], [-1000.0, -1000.0], [1.0, 1.0])
        assert len(enumerate_regions(model, [[1000 - 1e-6, 1000 + 1e-6]] * 2)) == 4


class TestRefusals:
    @pytest.mark.parametrize("activation, name", [(nn.GELU, "gelu"), (nn.Tanh, "tanh"), (nn.SiLU, "silu")])
    def test_other_activations_by_name(self, activation: type[nn.Module], name: str) -> None:
        with pytest.raises(ModelError, match=name):
            enumerate_regions(mlp(2, 4, 1, activation=activation), [[-1, 1]] * 2)

    def test_products_of_two_functions_of_the_input(self) -> None:
        class Product(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x[:, :1] * x[:, 1:]

        with pytest.raises(ModelError, match="mul"):
            enumerate_regions(Product(), [[-1, 1]] * 2)

    def test_train_mode(self) -> None:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
        with pytest.raises(ModelError, match="model.eval"):
            enumerate_regions(model, [[-1, 1]] * 2)

    def test_examples_that_are_mixed(self) -> None:
        class Mixed(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.relu() - x.relu().mean(0, keepdim=True)

        with pytest.raises((ModelError, NumericsError), match="examples"):
            enumerate_regions(Mixed(), [[-1, 1]] * 2)

    @pytest.mark.parametrize("box", [[[1, -1]], [[0, 1, 2]], [[0, float("inf")]], 3.0])
    def test_boxes_that_are_none(self, box: object) -> None:
        with pytest.raises(InputError, match="box"):
            enumerate_regions(hat(), box)  # type: ignore[arg-type]

    def test_boxes_and_shapes_that_the_network_does_not_take(self) -> None:
        with pytest.raises(ModelError, match=r"inputs of shape \(3,\)"):
            enumerate_regions(mlp(2, 4, 1), [[-1, 1]] * 3)
        with pytest.raises(InputError, match="shape"):
            enumerate_regions(mlp(2, 4, 1), [[-1, 1]] * 2, shape=(3,))

    def test_a_partition_that_would_not_fit(self) -> None:
        with memory_limit(300_000), pytest.raises(MemoryBudgetError, match="regions"):
            enumerate_regions(mlp(2, 64, 3), [[-5, 5]] * 2)


def test_pyramid_has_the_regions_of_its_formula() -> None:
    assert len(enumerate_regions(Pyramid(), [[-2, 2]] * 2)) == 8
    assert len(enumerate_regions(Pyramid(), [[-2, 2]] * 3)) == 16


def test_a_shape_read_after_a_bend_is_that_of_all_corners() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 4), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.first(x))
            return self.last(torch.cat([h.reshape(h.shape[0], 4), x.view(x.size(0), -1)], 1))

    torch.manual_seed(0)
    model = Flattened()
    partition = enumerate_regions(model, [[-1, 1]] * 2)
    assert len(partition) == len(patterns_of(model, uniform(20_000, -1, 1, 2)))
