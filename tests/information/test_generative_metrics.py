"""Coverage of modes, similarity of images, adversarial losses and the encoders of the bottleneck."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Generator, Tensor

from tangentlab.data.toys import gaussian_grid, grid
from tangentlab.errors import InputError
from tangentlab.information.adversarial import (
    discriminator_loss,
    generator_loss,
    inference_loss,
    reconstruction_error,
    squared_cycle,
)
from tangentlab.information.bottleneck import AdditiveEncoder, GaussianEncoder, PropagatedEncoder
from tangentlab.information.coverage import coverage_of_modes, coverage_of_points
from tangentlab.information.image_similarity import SCALE_WEIGHTS, ms_ssim, scales_of


def test_true_samples_cover_all_modes_with_the_share_of_a_chi_distribution() -> None:
    data = gaussian_grid(20_000, Generator().manual_seed(0), spacing=2.0, spread=0.05)
    found = coverage_of_points(data.inputs, grid(5, 4.0), 0.05)
    assert found.modes == 25
    assert found.good_share == pytest.approx(stats.chi(2).cdf(3), abs=3e-3)
    assert found.reverse_kl == pytest.approx(24 / 2 / 20_000, abs=1e-3)


def test_the_reverse_divergence_is_that_of_scipy_and_lost_modes_cost_their_logarithm() -> None:
    assigned = torch.tensor([0, 0, 0, 2, 2, 3])
    found = coverage_of_modes(assigned, 5)
    histogram = [0.5, 0, 1 / 3, 1 / 6, 0]
    assert found.modes == 3 and found.histogram.tolist() == pytest.approx(histogram)
    assert found.reverse_kl == pytest.approx(stats.entropy(histogram, [0.2] * 5))
    assert coverage_of_modes(torch.arange(10), 1000).reverse_kl == pytest.approx(math.log(100))
    assert coverage_of_modes(torch.arange(10), 10).reverse_kl == pytest.approx(0.0, abs=1e-12)


def test_a_mode_counts_only_where_a_good_sample_hits_it() -> None:
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    found = coverage_of_points(torch.tensor([[0.1, 0.0], [3.0, 0.0]]), centres, 0.05)
    assert (found.modes, found.good_share, found.reverse_kl) == (1, 0.5, pytest.approx(0.0, abs=1e-12))
    with pytest.raises(InputError):
        coverage_of_points(torch.tensor([[math.nan, 0.0]]), centres, 0.05)
    with pytest.raises(InputError):
        coverage_of_modes(torch.tensor([5]), 5)


def slow_ms_ssim(first: np.ndarray, second: np.ndarray, data_range: float) -> float:
    """One image of one channel, by scipy's filters and loops over scales."""
    line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2

    def blur(image: np.ndarray) -> np.ndarray:
        return ndimage.correlate(image, window)[5:-5, 5:-5]

    weights = np.array(SCALE_WEIGHTS[: scales_of(len(first))])
    weights, value = weights / weights.sum(), 1.0
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    for scale, weight in enumerate(weights):
        m1, m2 = blur(first), blur(second)
        v1, v2, c = blur(first**2) - m1**2, blur(second**2) - m2**2, blur(first * second) - m1 * m2
        structure = ((2 * c + c2) / (v1 + v2 + c2)).mean()
        luminance = ((2 * m1 * m2 + c1) / (m1**2 + m2**2 + c1)).mean()
        value *= max(structure * (luminance if scale == len(weights) - 1 else 1), 0) ** weight
        half = len(first) // 2
        first, second = (
            image[: 2 * half, : 2 * half].reshape(half, 2, half, 2).mean((1, 3)) for image in (first, second)
        )
    return value


@pytest.mark.parametrize("pixels", [28, 64, 180])
def test_ms_ssim_is_that_of_a_slow_truth(pixels: int) -> None:
    generator = Generator().manual_seed(pixels)
    first = torch.rand(2, 1, pixels, pixels, generator=generator, dtype=torch.float64) * 2 - 1
    second = (first + 0.3 * torch.randn(first.shape, generator=generator, dtype=torch.float64)).clamp(-1, 1)
    expected = [slow_ms_ssim(a[0].numpy(), b[0].numpy(), 2.0) for a, b in zip(first, second)]
    assert ms_ssim(first, second).tolist() == pytest.approx(expected, rel=1e-10)
    assert ms_ssim(first, first).tolist() == pytest.approx([1.0, 1.0])


def test_the_number_of_scales_is_stated_for_28_and_64_pixels() -> None:
    assert [scales_of(pixels) for pixels in (28, 64, 175, 176)] == [2, 3, 4, 5]
    with pytest.raises(InputError):
        ms_ssim(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8))


def test_adversarial_losses_are_those_of_probabilities() -> None:
    real, fake = torch.randn(2, 50, dtype=torch.float64, generator=Generator().manual_seed(0))
    p, q = real.sigmoid(), fake.sigmoid()
    assert discriminator_loss(real, fake).item() == pytest.approx(-(p.log().mean() + (1 - q).log().mean()).item())
    assert generator_loss(fake).item() == pytest.approx(-q.log().mean().item())
    assert inference_loss(real, fake).item() == pytest.approx(-((1 - p).log().mean() + q.log().mean()).item())


def test_reconstruction_errors_are_distances_of_whole_examples() -> None:
    first, second = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    assert reconstruction_error(first, second).tolist() == [2.0, 2.0]
    assert squared_cycle(first, second).item() == 4.0


def test_the_rate_of_a_gaussian_encoder_is_the_divergence_from_the_standard_normal() -> None:
    torch.manual_seed(0)
    encoder, x = GaussianEncoder(6, (8,), latent=3), torch.randn(5, 6)
    found = encoder(x)
    mean, raw = encoder.network(x).chunk(2, 1)
    q = torch.distributions.Normal(mean, torch.nn.functional.softplus(raw - 5))
    expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(found.rate, expected)
    assert not torch.equal(found.z, encoder(x).z)
    assert torch.equal(encoder.eval()(x).z, mean)


@pytest.mark.parametrize("make", [GaussianEncoder, AdditiveEncoder, PropagatedEncoder])
def test_encoders_are_noisy_in_training_and_a_function_in_evaluation(make: type[torch.nn.Module]) -> None:
    encoder, x = make(6, (8,), latent=3), torch.randn(5, 1, 2, 3)

    def codes() -> Tensor:
        return encoder(x).z

    assert codes().shape == (5, 3) and not torch.equal(codes(), codes())
    encoder.eval()
    assert torch.equal(codes(), codes())
