"""The exact transform against quadrature that knows nothing of regions, and against quadrature in every region."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec
from torch import nn

from tangentlab.spectral import NetworkTransform, Partition, enumerate_regions
from tangentlab.spectral.simplices import simplices_of
from tests.spectral.networks import mlp

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


def trained(inputs: int, width: int, depth: int) -> nn.Sequential:
    model = mlp(inputs, width, depth, seed=0)
    x = 2 * torch.rand(256, inputs, generator=torch.Generator().manual_seed(0)) - 1
    y = torch.sin(3 * x.sum(1, keepdim=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model.double()


def tent() -> nn.Sequential:
    """A network with compact support: relu(1 - |x| - |y|) from plain layers, turned and moved."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    turn = torch.tensor([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])
    with torch.no_grad():
        model[0].weight.copy_(torch.cat([turn, -turn]))
        model[0].bias.copy_(torch.tensor([0.1, -0.2, -0.1, 0.2]))
        model[2].weight.fill_(-1.0)
        model[2].bias.fill_(1.0)
        model[4].weight.fill_(1.0)
        model[4].bias.fill_(0.0)
    return model


class OnLines:
    """Integrals over a box in 2-D by lines: exact kinks on each line, adaptive quadrature over the lines."""

    def __init__(self, model: nn.Sequential) -> None:
        self.layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in model[::2]]

    def hidden(self, points: np.ndarray, depth: int) -> np.ndarray:
        """Values before the bends of a layer."""
        for weight, bias in self.layers[:depth]:
            points = np.maximum(points @ weight.T + bias, 0)
        weight, bias = self.layers[depth]
        return points @ weight.T + bias

    def breaks(self, x: float, low: float, high: float) -> np.ndarray:
        cuts = np.array([low, high])
        for depth in range(len(self.layers) - 1):
            z = self.hidden(np.stack([np.full_like(cuts, x), cuts], 1), depth)
            place, unit = np.nonzero(z[1:] * z[:-1] < 0)
            share = z[place, unit] / (z[place, unit] - z[place + 1, unit])
            cuts = np.unique(np.concatenate([cuts, cuts[place] + share * (cuts[place + 1] - cuts[place])]))
        return cuts

    def transform(self, k: np.ndarray, low: float, high: float) -> complex:
        def line(x: float) -> complex:
            cuts = self.breaks(x, low, high)
            half, middle = np.diff(cuts)[:, None] / 2, (cuts[1:] + cuts[:-1])[:, None] / 2
            y = (middle + half * NODES).reshape(-1)
            f = self.hidden(np.stack([np.full_like(y, x), y], 1), len(self.layers) - 1)[:, 0]
            return complex(np.exp(-1j * k[0] * x) * ((half * WEIGHTS).reshape(-1) * f) @ np.exp(-1j * k[1] * y))

        return complex(quad_vec(line, low, high, epsabs=1e-10, epsrel=0, limit=20_000)[0])


FREQUENCIES = [(0.0, 0.0), (1e-6, -2e-6), (1e-3, 2e-3), (0.1, 0.2), (3.0, 0.0), (3.0, 1e-9), (3.0, 1e-4), (-7.0, 9.0)]


@pytest.mark.parametrize("k", FREQUENCIES)
def test_a_compactly_supported_network_in_2d(k: tuple[float, float]) -> None:
    model = tent()
    partition = enumerate_regions(model, [[-2.0, 2.0]] * 2)
    truth = OnLines(model).transform(np.array(k), -2.0, 2.0)
    for border in (True, False):
        assert abs(NetworkTransform(partition, border=border)(k) - truth) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("k", FREQUENCIES)
def test_a_trained_network_on_a_box_in_2d(k: tuple[float, float]) -> None:
    model = trained(2, 8, 2)
    partition = enumerate_regions(model, [[-1.0, 1.5]] * 2)
    truth = OnLines(model).transform(np.array(k), -1.0, 1.5)
    assert abs(NetworkTransform(partition)(k) - truth) < 1e-8


@pytest.mark.slow
def test_frequencies_orthogonal_to_walls_and_nearly_so_in_2d() -> None:
    model = trained(2, 8, 2)
    partition = enumerate_regions(model, [[-1.0, 1.5]] * 2)
    transform, truth = NetworkTransform(partition), OnLines(model)
    parts = transform.walls.parts
    along = partition.complex.corners[parts.corners[:, 1]] - partition.complex.corners[parts.corners[:, 0]]
    for edge in along[np.argsort(-parts.volumes)[:3]]:
        normal = np.array([-edge[1], edge[0]]) / np.linalg.norm(edge)
        for tilt in (0.0, 1e-12, 1e-8, 1e-4):
            k = 6 * normal + tilt * edge
            assert abs(transform(k) - truth.transform(k, -1.0, 1.5)) < 1e-8


def in_every_region(partition: Partition, model: nn.Module, k: np.ndarray, order: int) -> complex:
    """Gauss's rule on every simplex of every region, with values of the network itself."""
    parts = simplices_of(partition.complex, partition.dimension)
    nodes, weights = np.polynomial.legendre.leggauss(order)
    nodes, weights = (nodes + 1) / 2, weights / 2
    d = partition.dimension
    grid = np.stack(np.meshgrid(*[nodes] * d, indexing="ij"), -1).reshape(-1, d)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * d, indexing="ij"), -1).reshape(-1, d), 1)
    local = grid.copy()  # the cube is folded onto the simplex: l_i = u_i prod_{j < i} (1 - u_j)
    rest = np.ones(len(grid))
    for i in range(d):
        local[:, i] = grid[:, i] * rest
        weight = weight * rest if i else weight
        rest = rest * (1 - grid[:, i])
    corners = partition.complex.corners[parts.corners]
    points = corners[:, None, 0] + np.einsum("ni,sid->snd", local, corners[:, 1:] - corners[:, :1])
    scale = np.prod(np.arange(1, d + 1)) * parts.volumes
    with torch.no_grad():
        f = model(torch.from_numpy(points.reshape(-1, d))).numpy().reshape(points.shape[:2])
    return complex(np.einsum("s,n,sn->", scale, weight, f * np.exp(-1j * points @ k)))


@pytest.mark.parametrize("k", [(0.0, 0.0, 0.0), (1e-3, 0.0, 2e-3), (4.0, 0.0, 0.0), (4.0, 1e-9, 0.0), (3.0, -5.0, 2.0)])
def test_quadrature_in_every_region_in_3d(k: tuple[float, float, float]) -> None:
    model = mlp(3, 5, 2, seed=2).double()
    partition = enumerate_regions(model, [[-1.0, 1.0]] * 3)
    coarse, truth = (in_every_region(partition, model, np.array(k), order) for order in (10, 12))
    assert abs(coarse - truth) < 1e-10
    assert abs(NetworkTransform(partition)(k) - truth) < 1e-8


@pytest.mark.parametrize("k", [(40.0, 13.0), (100.0, 0.0), (100.0, 1e-7)])
def test_large_frequencies_in_every_region_in_2d(k: tuple[float, float]) -> None:
    model = mlp(2, 8, 2, seed=2).double()
    partition = enumerate_regions(model, [[-1.0, 1.0]] * 2)
    coarse, truth = (in_every_region(partition, model, np.array(k), order) for order in (120, 140))
    assert abs(coarse - truth) < 1e-10
    assert abs(NetworkTransform(partition)(k) - truth) < 1e-8


@pytest.mark.slow
def test_cubature_without_regions_in_3d() -> None:
    model = trained(3, 6, 2)
    transform = NetworkTransform(enumerate_regions(model, [[-1.0, 1.0]] * 3))
    nodes, weights = np.polynomial.legendre.leggauss(150)
    k = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, -1.0], [5.0, 0.0, 0.0], [4.0, -3.0, 5.0]])
    truth = np.zeros(len(k), dtype=complex)
    plane = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    area = np.multiply.outer(weights, weights).reshape(-1)
    for x, width in zip(nodes, weights):
        points = np.concatenate([np.full((len(plane), 1), x), plane], 1)
        with torch.no_grad():
            f = model(torch.from_numpy(points)).numpy()[:, 0]
        truth += width * (np.exp(-1j * k @ points.T) @ (area * f))
    assert np.abs(transform(k) - truth).max() < 1e-4 * np.abs(truth).max()
