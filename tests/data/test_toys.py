"""The toy sets have the geometry that the papers give them."""

import math

import pytest
import torch
from torch import Generator

from tangentlab.data import (
    disk,
    disk_labels,
    flower,
    gaussian_grid,
    gaussian_mixture,
    grid,
    sinusoid_sum,
    sinusoids,
    spiral,
    spiral_curve,
    yin_yang,
    yin_yang_labels,
)
from tangentlab.errors import InputError


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_the_disk_covers_half_of_the_square():
    data = disk(40000, rng())
    assert data.inputs.abs().max() <= 1
    assert abs(data.targets.float().mean().item() - 0.5) < 0.01
    assert disk_labels(torch.tensor([[0.0, 0.0], [0.79, 0.0], [0.81, 0.0]])).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("point", "label"),
    [
        ((0.9, 0.9), 1),
        ((-0.9, -0.9), 0),
        ((0.5, -0.5), 1),
        ((0.5, -0.79), 1),
        ((0.5, -0.81), 0),
        ((-0.5, 0.5), 0),
        ((-0.5, 0.81), 1),
        ((-0.5, -0.5), 0),
    ],
)
def test_yin_yang_is_the_upper_half_with_two_disks_swapped(point: tuple[float, float], label: int):
    assert yin_yang_labels(torch.tensor([point])).item() == label


def test_yin_yang_is_balanced_by_its_symmetry():
    data = yin_yang(40000, rng())
    assert abs(data.targets.float().mean().item() - 0.5) < 0.01
    opposite = yin_yang_labels(-data.inputs)
    assert (opposite == 1 - data.targets).float().mean() > 0.999


def test_a_flower_without_petals_is_the_unit_circle_and_with_petals_has_that_many():
    latent = torch.arange(1000) / 1000
    assert torch.allclose(flower(latent, 0).norm(dim=1), torch.ones(1000))
    radius = flower(latent, 5).norm(dim=1)
    peaks = ((radius > radius.roll(1)) & (radius > radius.roll(-1))).sum()
    assert peaks == 5 and radius.max() == pytest.approx(1.5, abs=1e-4) and radius.min() == pytest.approx(0.5, abs=1e-4)
    with pytest.raises(InputError, match="petals"):
        flower(latent, -1)


def test_sinusoids_show_their_amplitudes_at_whole_frequencies_of_the_spectrum():
    data = sinusoid_sum(200, (5, 10, 50), rng(), amplitudes=(1.0, 0.1, 0.5))
    spectrum = 2 * torch.fft.rfft(data.targets[:, 0].double()).abs() / 200
    assert spectrum[[5, 10, 50]].tolist() == pytest.approx([1.0, 0.1, 0.5], abs=1e-5)
    assert spectrum[[0, 1, 7, 20, 99]].max() < 1e-5


def test_sinusoid_phases_come_from_the_generator():
    assert torch.equal(sinusoid_sum(20, (1, 2), rng(3)).targets, sinusoid_sum(20, (1, 2), rng(3)).targets)
    assert not torch.equal(sinusoid_sum(20, (1, 2), rng(3)).targets, sinusoid_sum(20, (1, 2), rng(4)).targets)
    assert sinusoid_sum(20, (1,), rng(), petals=4).inputs.shape == (20, 2)
    assert sinusoids(torch.tensor([0.25]), (1.0,)).item() == pytest.approx(1.0)
    with pytest.raises(InputError, match="as many amplitudes"):
        sinusoids(torch.zeros(3), (1.0, 2.0), (1.0,))


def test_twenty_five_gaussians_sit_on_a_centred_grid():
    data = gaussian_grid(50000, rng())
    means = torch.stack([data.inputs[data.targets == k].mean(0) for k in range(25)])
    assert torch.allclose(means, grid(5, 2.0), atol=0.01)
    assert (data.inputs - means[data.targets]).std() == pytest.approx(0.05, rel=0.02)


def test_a_mixture_draws_its_components_evenly():
    counts = gaussian_mixture(9000, torch.eye(3), 0.1, rng()).targets.bincount()
    assert (counts - 3000).abs().max() < 4 * math.sqrt(2000)


def test_the_grid_goes_row_by_row_from_the_bottom_left():
    assert grid(2).tolist() == [[-1, -1], [1, -1], [-1, 1], [1, 1]]


def test_a_spiral_is_its_curve_with_noise_and_tells_where_on_it_a_point_is():
    data = spiral(4000, torch.Generator().manual_seed(0), turns=2.0, radius=3.0, spread=0.1)
    offsets = data.inputs - spiral_curve(data.targets, 2.0, 3.0)
    assert data.inputs.shape == (4000, 2) and 0 <= float(data.targets.min()) and float(data.targets.max()) <= 1
    assert float(offsets.std()) == pytest.approx(0.1, rel=0.05)
    assert torch.allclose(
        spiral_curve(torch.tensor([0.0, 1.0]), 2.0, 3.0), torch.tensor([[0.0, 0.0], [3.0, 0.0]]), atol=1e-5
    )
