"""Principal components: bookkeeping, refusals, and their Fourier content."""

import pytest
import torch

from tangentlab.alignment import fourier_power, kernel_modes, main_frequency
from tangentlab.errors import InputError
from tests.alignment.linear import features, normal


def test_rounding_modes_are_left_out_and_rank_keeps_the_largest():
    phi = features(8, 3)
    modes = kernel_modes(phi @ phi.t())
    assert len(modes.values) == 3 and bool((modes.values[:-1] >= modes.values[1:]).all())
    two = kernel_modes(phi @ phi.t(), rank=2)
    assert torch.equal(two.values, modes.values[:2])


def test_functions_and_kernels_of_other_examples_are_refused():
    phi = features(6, 9)
    modes = kernel_modes(phi @ phi.t())
    with pytest.raises(InputError, match="new points on its rows"):
        modes.at(normal(3, 5))
    with pytest.raises(InputError, match=r"\(1, 6\)"):
        modes.coefficients(normal(5))
    with pytest.raises(InputError, match="no modes"):
        kernel_modes(torch.ones(4, 4), center="global")


def test_a_pure_wave_has_one_frequency_and_shares_sum_to_one():
    z = torch.arange(50, dtype=torch.float64) / 50
    waves = torch.stack([torch.cos(2 * torch.pi * k * z + 0.3) for k in (0, 1, 7, 25)])
    assert main_frequency(waves).tolist() == [0, 1, 7, 25]
    assert torch.allclose(fourier_power(waves).amax(-1), torch.ones(4, dtype=torch.float64))
    for n in (50, 51):
        noise = normal(3, n)
        assert torch.allclose(fourier_power(noise).sum(-1), torch.ones(3, dtype=torch.float64))
    mixed = 3 * torch.cos(2 * torch.pi * 4 * z) + 4 * torch.sin(2 * torch.pi * 9 * z)
    assert torch.allclose(fourier_power(mixed)[[4, 9]], torch.tensor([0.36, 0.64], dtype=torch.float64))
    with pytest.raises(InputError, match="zero everywhere"):
        fourier_power(torch.zeros(2, 8))


def test_modes_of_a_stationary_kernel_on_a_circle_are_waves_in_order_of_their_frequency():
    z = torch.arange(40, dtype=torch.float64) / 40
    distance = torch.sin(torch.pi * (z[:, None] - z)).square()
    modes = kernel_modes(torch.exp(-4 * distance), rank=9)
    assert main_frequency(modes.vectors[:, 0]).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_numbers_out_of_range_are_refused_as_such():
    modes = kernel_modes(torch.eye(3, dtype=torch.float64))
    with pytest.raises(InputError, match="lr is positive"):
        modes.time_constants(-0.1)
    with pytest.raises(InputError, match="rank is at least 1"):
        kernel_modes(torch.eye(3), rank=0)
