"""Inputs at the edge: units, frozen parameters, several outputs, gradient modes, chains that are none."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.errors import InputError, ModelError, NumericsError
from tangentlab.spectral import (
    band_norms,
    composition_kernel,
    connecting_path,
    decision_boundary,
    enumerate_regions,
    gaussian_kernel,
    high_frequency_volume,
    lipschitz_chain,
    mode_velocities,
    neighbour_probabilities,
    parameter_gradients,
    polytope_transform,
    spectral_norm,
    stationary_points,
)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.inner(x)


def line(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 6), nn.ReLU(), nn.Linear(6, outputs))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_spectral_norms_do_not_depend_on_units(scale):
    weight = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    exact = float(torch.linalg.matrix_norm(weight, 2))
    assert spectral_norm(scale * weight, 200) / scale == pytest.approx(exact, rel=1e-5)


def test_spectral_norms_of_whole_numbers_and_of_nothing_finite():
    assert spectral_norm(torch.tensor([[3, 0], [0, 1]]), 100) == pytest.approx(3)
    with pytest.raises(NumericsError):
        spectral_norm(torch.full((2, 2), float("nan")))


def test_a_layer_that_is_called_twice_counts_twice_in_the_lipschitz_chain():
    layer = nn.Linear(3, 3)
    chain = lipschitz_chain(nn.Sequential(layer, nn.ReLU(), layer))
    assert len(chain.layers) == 2 and chain.norms == pytest.approx(chain.layers[0] ** 2)


@pytest.mark.parametrize(
    "model",
    [
        Residual(nn.Linear(3, 3)),
        nn.Sequential(Residual(nn.Linear(3, 3)), nn.Linear(3, 1)),
        nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(5.0), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 1)),
    ],
    ids=["residual", "inner residual", "steep", "dropout", "widths"],
)
def test_networks_that_the_lipschitz_chain_does_not_bound_are_refused(model):
    with pytest.raises(ModelError, match="Lipschitz chain"):
        lipschitz_chain(model)


def test_frozen_parameters_have_gradients_but_no_velocity():
    x, k = torch.linspace(-1, 1, 7)[:, None], [3.0, 10.0]
    model, frozen = line(), line()
    frozen[0].requires_grad_(False)
    with torch.no_grad():
        np.testing.assert_array_equal(parameter_gradients(frozen, (-1, 1), k), parameter_gradients(model, (-1, 1), k))
    loss = (model(x) - x.sin()).square().sum()
    slopes = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model[2].parameters()))])
    expected = -(parameter_gradients(model, (-1, 1), k)[:, 12:] @ slopes.double().numpy())
    np.testing.assert_allclose(mode_velocities(frozen, x, x.sin(), (-1, 1), k), expected, rtol=1e-4)


def test_modes_refuse_several_outputs_other_counts_of_targets_and_no_frequencies():
    with pytest.raises(InputError, match="one output"):
        parameter_gradients(line(2), (-1, 1), [1.0])
    with pytest.raises(InputError, match="as many targets"):
        mode_velocities(line(), torch.zeros(3, 1), torch.zeros(1), (-1, 1), [1.0])
    with pytest.raises(InputError, match="at least one"):
        high_frequency_volume(line(), 1.0, 0.1, [])


def test_paths_have_no_graph_and_whole_numbers_are_refused():
    model = nn.Linear(2, 3)
    assert not connecting_path(model, torch.zeros(2, requires_grad=True), torch.ones(2), 0).points.requires_grad
    with pytest.raises(InputError, match="floating-point"):
        connecting_path(model, torch.zeros(2, dtype=torch.int64), torch.ones(2), 0)


def test_curves_in_single_precision_are_followed_and_frequencies_are_finite():
    def circle(z):
        return torch.stack([torch.cos(2 * torch.pi * z), torch.sin(2 * torch.pi * z)], 1)

    latent, k = torch.tensor([0.0, 1.0]), torch.tensor([[1.0, 2.0]])
    single = composition_kernel(lambda z: circle(z.float()), latent, k)
    torch.testing.assert_close(single, composition_kernel(circle, latent, k), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="finite"):
        composition_kernel(circle, torch.tensor([float("nan")]), k)
    with pytest.raises(InputError, match="finite"):
        composition_kernel(circle, latent, k * float("inf"))


@pytest.mark.parametrize(
    ("points", "queries", "counts"),
    [
        (torch.rand(4, 2), torch.rand(3, 3), [1]),
        (torch.rand(4), torch.rand(3), [1]),
        (torch.full((4, 2), float("nan")), torch.rand(3, 2), [1]),
        (torch.rand(4, 2), torch.rand(0, 2), [1]),
        (torch.rand(4, 2), torch.rand(3, 2), [1.5]),
    ],
    ids=["coordinates", "axes", "finite", "empty", "fraction"],
)
def test_neighbours_of_nonsense_are_refused(points, queries, counts):
    with pytest.raises(InputError):
        neighbour_probabilities(points, torch.tensor([0, 1, 1, 0]), queries, counts)


def test_levels_points_and_bands_are_checked():
    with pytest.raises(InputError, match="level"):
        decision_boundary(enumerate_regions(nn.Linear(2, 1), [(-1, 1)] * 2), level=float("nan"))
    with pytest.raises(InputError, match="axis"):
        gaussian_kernel(torch.rand(5), width=1.0)
    with pytest.raises(InputError, match="band"):
        band_norms(torch.rand(5), [])


def test_the_ends_of_a_curve_may_be_stationary():
    def speeding(z):
        return torch.stack([z.square(), 0 * z], 1)

    for latent, place in ((0.0, 0.0), (2.0, 1.0)):
        assert stationary_points(speeding, latent, torch.tensor([1.0, 0.0])).tolist() == [place]


@pytest.mark.parametrize("width", [1e-7, 1e-10, 1e-13, 1e-14, 1e-15])
def test_thin_polytopes_have_their_volume_or_are_refused(width):
    corners = [[0, 0], [1, 0], [0, width], [1, width]]
    if width > 1e-12:
        assert abs(polytope_transform(corners, [0, 0])) == pytest.approx(width, rel=1e-6)
    else:
        with pytest.raises(InputError, match=r"too thin|no volume"):
            polytope_transform(corners, [0, 0])
