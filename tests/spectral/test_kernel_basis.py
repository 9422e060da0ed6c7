"""Eigenvectors of a kernel in place of frequencies: order, completeness, noise, bands."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tangentlab import NTK
from tangentlab.errors import InputError
from tangentlab.kernels import main_frequency
from tangentlab.models import MLP
from tangentlab.spectral import KernelBasis, band_norms, gaussian_kernel, index_bands, wave_rates


@pytest.mark.parametrize("width", [0.01, 0.02, 0.05])
def test_eigenvectors_of_a_gaussian_on_a_line_are_ordered_by_frequency(width: float):
    points = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    basis = KernelBasis.of(gaussian_kernel(points, width=width))
    crossings = [int(((row[:-1] * row[1:]) < 0).sum()) for row in basis.vectors]
    assert crossings == list(range(50))
    order = spearmanr(np.arange(50), main_frequency(basis.vectors)).statistic
    assert order > 0.999
    assert (basis.values.diff() <= 0).all()


def test_the_gaussian_kernel_is_its_formula():
    x, y = torch.randn(5, 3, 2), torch.randn(4, 6)
    kernel = gaussian_kernel(x, y, width=1.7)
    truth = [[float(np.exp(-float((a.flatten().double() - b.double()).square().sum()) / 1.7**2)) for b in y] for a in x]
    np.testing.assert_allclose(kernel.numpy(), truth, rtol=1e-12)


def test_a_function_is_the_sum_of_its_coefficients_times_the_eigenvectors():
    model = MLP((3, 8, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    kernel = NTK(model, x, progress=False)
    basis = KernelBasis.of(kernel)
    function = torch.randn(4, 2, 6, dtype=torch.float64)
    coefficients = basis.spectrum(function)
    assert coefficients.shape == (4, 12)
    torch.testing.assert_close((coefficients @ basis.vectors).reshape(4, 2, 6), function)
    matrix = kernel.matrix()
    torch.testing.assert_close(basis.vectors @ matrix @ basis.vectors.t(), torch.diag(basis.values), atol=1e-9, rtol=0)


@pytest.mark.parametrize("exponent", [0.5, 2.0])
def test_noise_has_the_spectrum_that_its_exponent_says(exponent: float):
    basis = KernelBasis.of(gaussian_kernel(torch.randn(30, 4), width=2.0))
    expected = (torch.arange(1, 31, dtype=torch.float64) / 30) ** exponent
    torch.testing.assert_close(basis.spectrum(basis.noise(exponent)), expected)


def test_bands_cover_every_index_once_and_their_norms_add_up():
    for size in (1, 2, 3, 4, 5, 16, 17, 100):
        bands = index_bands(size)
        assert [place for band in bands for place in band] == list(range(size)) and all(len(band) for band in bands)
    assert [(band.start, band.stop) for band in index_bands(20)] == [(0, 1), (1, 4), (4, 16), (16, 20)]
    coefficients = torch.randn(20, dtype=torch.float64)
    norms = band_norms(coefficients, index_bands(20))
    torch.testing.assert_close(norms.square().sum(), coefficients.square().sum())


def test_rates_of_waves_on_a_circle_are_eigenvalues():
    """A kernel of the distance along a circle is circulant, and waves are its eigenvectors."""
    angles = 2 * torch.pi * torch.arange(24, dtype=torch.float64) / 24
    kernel = torch.exp(torch.cos(angles[:, None] - angles[None, :]))
    truth = torch.fft.fft(kernel[0]).real
    torch.testing.assert_close(wave_rates(kernel, (0, 1, 5, 11)), truth[[0, 1, 5, 11]])


def test_rates_are_means_over_the_phases_of_sines():
    model, n = MLP((1, 16, 1)).double(), 20
    z = torch.arange(n, dtype=torch.float64) / n
    kernel = NTK(model, z[:, None], progress=False)
    phases = 2 * torch.pi * torch.arange(50, dtype=torch.float64) / 50
    waves = torch.sin(2 * torch.pi * 3 * z + phases[:, None])
    quotients = torch.einsum("pi,ij,pj->p", waves, kernel.matrix(), waves) / waves.square().sum(1)
    torch.testing.assert_close(wave_rates(kernel, (3,))[0], quotients.mean())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gaussian_kernel(torch.zeros(3, 2), width=0), "width is positive"),
        (lambda: gaussian_kernel(torch.zeros(3, 2), torch.zeros(3, 4), width=1), "no distance"),
        (lambda: KernelBasis.of(torch.eye(4)).spectrum(torch.zeros(5)), "not \\(5,\\)"),
        (lambda: wave_rates(torch.zeros(2, 3, 2, 3), (1,)), "one output is needed"),
        (lambda: index_bands(10, 1), "ratio of at least 2"),
        (lambda: KernelBasis.of(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "not symmetric"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words: str):
    with pytest.raises(InputError, match=words):
        call()
