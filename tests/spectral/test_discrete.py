"""Discrete and radial spectra against what is known of sines, peaks and Gaussians."""

import math

import pytest
import torch

from tangentlab.data import sinusoid_sum
from tangentlab.errors import InputError, NumericsError
from tangentlab.spectral import amplitudes, discrete_spectrum, radial_spectrum


@pytest.mark.parametrize("samples", [200, 201])
def test_the_amplitudes_of_sines_are_their_entries_and_all_others_are_zero(samples: int):
    generator = torch.Generator().manual_seed(0)
    frequencies, factors = (5, 10, 45), (0.1, 2.0, 0.7)
    z = torch.arange(samples, dtype=torch.float64) / samples
    phases = 6 * torch.rand(3, generator=generator)
    values = 3 + sum(
        a * torch.sin(2 * math.pi * k * z + p) for k, a, p in zip(frequencies, factors, phases, strict=True)
    )
    spectrum = discrete_spectrum(values)
    expected = torch.zeros((samples + 1) // 2, dtype=torch.float64)
    expected[[0, *frequencies]] = torch.tensor([3.0, *factors], dtype=torch.float64)
    torch.testing.assert_close(spectrum, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(amplitudes(values, frequencies), expected[list(frequencies)], atol=1e-12, rtol=0)


def test_the_spectrum_of_the_sinusoids_of_the_data_room_has_their_amplitudes():
    data = sinusoid_sum(200, (5, 10, 50), torch.Generator().manual_seed(1), (0.1, 0.5, 1.0))
    found = amplitudes(data.targets[:, 0], (5, 10, 50))
    torch.testing.assert_close(found, torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64), atol=1e-5, rtol=0)


def test_a_peak_has_the_flat_spectrum_of_one_over_n():
    peak = torch.zeros(200)
    peak[100] = 1
    torch.testing.assert_close(discrete_spectrum(peak, "plain"), torch.full((100,), 0.005, dtype=torch.float64))


def test_parseval_holds_with_a_factor_of_n():
    values = torch.randn(2, 31, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    spectrum = discrete_spectrum(values, "plain")
    both_sides = spectrum[:, 0].square() + 2 * spectrum[:, 1:].square().sum(1)
    torch.testing.assert_close(values.square().sum(1), 31 * both_sides)


@pytest.mark.parametrize("spread", [0.2, 0.35])
def test_the_radial_spectrum_of_a_gaussian_is_that_of_its_transform(spread: float):
    side, half = 400, 8.0
    line = (torch.arange(side, dtype=torch.float64) - side / 2) * (2 * half / side)
    values = torch.exp(-(line[:, None] ** 2 + line[None, :] ** 2) / (2 * spread**2))
    k, zeta = radial_spectrum(values, 2 * half / side)
    truth = 2 * math.pi * k * 2 * math.pi * spread**2 * torch.exp(-2 * (math.pi * spread * k) ** 2)
    assert float((zeta - truth).abs().max()) < 0.03 * float(truth.max())
    width = float(k[1] - k[0])
    assert float(zeta.sum() * width) == pytest.approx(float(truth.sum() * width), rel=0.02)


def test_a_wave_on_the_plane_is_found_at_the_length_of_its_frequency():
    side = 120
    line = torch.arange(side, dtype=torch.float64) / side
    values = torch.cos(2 * math.pi * (12 * line[:, None] + 16 * line[None, :]))
    k, zeta = radial_spectrum(values, 1 / side)
    assert float(k[zeta.argmax()]) == pytest.approx(20)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: discrete_spectrum(torch.zeros(4), "loud"), "normalization is 'amplitude' or 'plain'"),
        (lambda: discrete_spectrum(torch.zeros(4, dtype=torch.complex64)), "real function"),
        (lambda: amplitudes(torch.zeros(20), (5, 10)), "whole frequencies 0 to 9"),
        (lambda: amplitudes(torch.zeros(20), (2.5,)), "whole frequencies"),
        (lambda: amplitudes(torch.zeros(20), ()), "whole frequencies"),
        (lambda: radial_spectrum(torch.zeros(5, 6), 1.0), "square grid"),
        (lambda: radial_spectrum(torch.zeros(6, 6), 0.0), "spacing is positive"),
    ],
)
def test_what_has_no_spectrum_is_refused(call, words: str):
    with pytest.raises(InputError, match=words):
        call()


def test_values_that_are_not_numbers_are_refused():
    with pytest.raises(NumericsError, match="non-finite"):
        discrete_spectrum(torch.tensor([1.0, math.nan]))
