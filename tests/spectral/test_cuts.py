"""Cuts through networks of many inputs, convolutional and residual ones included."""

import numpy as np
import pytest
import torch
from torch import nn

from tangentlab.errors import InputError
from tangentlab.models import ResNet18
from tangentlab.spectral import (
    cut_rectangle,
    cut_segment,
    cut_triangle,
    enumerate_regions,
    kinks,
    network_transform,
    regions,
)
from tests.spectral.networks import mlp, patterns_of


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(3, 4, 2), nn.PReLU(4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2),
    ).eval()  # fmt: skip


def on_the_cut(partition, model: nn.Module, points: int = 4000) -> None:
    """The cells against the network at random points of the domain, and against all patterns seen there."""
    corners = partition.complex.corners
    generator = np.random.default_rng(0)
    u = generator.uniform(corners.min(0), corners.max(0), size=(points, partition.dimension))
    if partition.dimension == 2 and len(partition.corners(0)) and partition.complex.walls.min() >= -3:  # a triangle
        u = generator.dirichlet([1, 1, 1], size=points) @ corners[:3]
    x = partition.frame.points(torch.from_numpy(u))
    cells = patterns_of(model, partition.frame.points(torch.from_numpy(partition.complex.centres())))
    assert len(cells) == len(partition)
    assert patterns_of(model, x) <= cells


@pytest.mark.parametrize("cut", [cut_triangle, cut_rectangle])
def test_plane_through_three_images(cut) -> None:
    model = convolutional()
    images = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    partition = cut(model, *images)
    on_the_cut(partition, model)
    corners = partition.frame.points(torch.from_numpy(partition.complex.corners))
    for image in images.double():
        assert float((corners - image).flatten(1).norm(dim=1).min()) < 1e-12 or cut is cut_rectangle


def test_segment_has_the_slopes_of_the_network_along_it() -> None:
    model = convolutional().double()
    start, end = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    partition = cut_segment(model, start, end)
    on_the_cut(partition, model)
    direction = (end - start) / (end - start).norm()
    x = partition.frame.points(torch.from_numpy(partition.complex.centres())).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
    np.testing.assert_allclose(partition.weights[:, 1, 0], (gradient * direction).flatten(1).sum(1).numpy(), atol=1e-12)


def test_residual_network_along_a_segment_and_on_a_triangle() -> None:
    torch.manual_seed(0)
    model = ResNet18(3, base=2).eval()
    images = 0.5 * torch.randn(3, 3, 8, 8)
    line = cut_segment(model, images[0], images[1])
    on_the_cut(line, model, 300)
    assert len(line) > 50
    small = images[0] + 0.05 * (images - images[0])
    on_the_cut(cut_triangle(model, *small), model, 300)


def test_work_that_is_divided_into_parts_gives_the_same_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(2, 24, 3, seed=2)
    whole = enumerate_regions(model, [[-1, 1]] * 2)
    line = cut_segment(model, torch.tensor([-1.0, 0.3]), torch.tensor([1.0, -0.4]))
    monkeypatch.setattr(regions, "PART_BYTES", 5000)
    parts = enumerate_regions(model, [[-1, 1]] * 2)
    assert whole.parts == 1 and parts.parts > 5
    assert len(parts) == len(whole)
    assert parts.lipschitz == pytest.approx(whole.lipschitz, rel=1e-12)
    k = np.random.default_rng(0).normal(size=(10, 2)) * 20
    np.testing.assert_allclose(network_transform(parts, k), network_transform(whole, k), atol=1e-15)
    divided = cut_segment(model, torch.tensor([-1.0, 0.3]), torch.tensor([1.0, -0.4]))
    assert divided.parts > 1
    np.testing.assert_allclose(kinks(divided), kinks(line), atol=1e-13)


def test_max_pooling_has_one_region_per_pattern_of_winners() -> None:
    class Peaks(nn.Module):
        """max of three planes: a tripod, three regions; a tournament alone would give four."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            planes = torch.stack([x[:, 0], -0.5 * x[:, 0] + x[:, 1], -0.5 * x[:, 0] - x[:, 1]], 1)
            return torch.nn.functional.max_pool1d(planes.unsqueeze(1), 3).flatten(1)

    assert len(enumerate_regions(Peaks(), [[-1, 1]] * 2)) == 3


def test_inputs_that_span_no_cut_are_refused() -> None:
    model, x = mlp(3, 4, 1), torch.ones(3)
    with pytest.raises(InputError, match="different"):
        cut_segment(model, x, x)
    with pytest.raises(InputError, match="one line"):
        cut_triangle(model, x, 2 * x, 3 * x)
    with pytest.raises(InputError, match="one shape"):
        cut_segment(model, x, torch.ones(2))


def test_one_bend_with_many_walls_is_divided_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(2, 120, 1, seed=2)
    whole = enumerate_regions(model, [[-1, 1]] * 2)
    monkeypatch.setattr(regions, "PART_BYTES", 20_000)
    parts = enumerate_regions(model, [[-1, 1]] * 2)
    assert parts.parts > 5 and len(parts) == len(whole)


def test_transform_along_a_line_of_a_convolutional_network_is_quadrature() -> None:
    model = convolutional().double()
    start, end = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    partition = cut_segment(model, start, end)
    k = np.array([0.0, 0.01, 1.0, 7.0, 40.0])
    ends = np.unique(partition.complex.corners)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half, middle = np.diff(ends)[:, None] / 2, (ends[1:] + ends[:-1])[:, None] / 2
    points, weights = (middle + half * nodes).reshape(-1), (half * weights).reshape(-1)
    with torch.no_grad():
        values = model(partition.frame.points(torch.from_numpy(points)[:, None]))[:, 1].numpy()
    truth = np.exp(-1j * np.multiply.outer(k, points)) @ (weights * values)
    np.testing.assert_allclose(network_transform(partition, k, output=1), truth, atol=1e-11)
