"""Spectra of sampled functions: single-sided magnitudes of a line, radial magnitudes of a plane.

A frequency is a number of periods per unit of length; n samples at z = 0, 1/n, ..., (n-1)/n make whole frequencies exact bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError

NORMALIZATIONS = ("amplitude", "plain")


def discrete_spectrum(values: Tensor, normalization: str = "amplitude") -> Tensor:
    """Single-sided magnitudes of the discrete Fourier transform, `(..., n)` to `(..., (n + 1) // 2)`.

    Args:
        values: samples of a function at z = 0, 1/n, ..., (n-1)/n.
        normalization: `"plain"` is `|sum_j y_j e^(-2 pi i k j / n)| / n`, so that a peak of height 1 in one sample has the flat
            spectrum 1/n. `"amplitude"` doubles all but k = 0, so that `A sin(2 pi k z + phi)` has the entry A at k.

    The bin n/2 of an even number of samples is left out: it does not tell a sine from its sampling.
    """
    if normalization not in NORMALIZATIONS:
        raise InputError(f"The argument normalization is 'amplitude' or 'plain', not {normalization!r}.")
    _require_real(values, 1)
    n = values.shape[-1]
    magnitudes = torch.fft.rfft(values.double(), dim=-1).abs()[..., : (n + 1) // 2] / n
    if normalization == "amplitude":
        magnitudes[..., 1:] *= 2
    return magnitudes


def amplitudes(values: Tensor, frequencies: Sequence[int]) -> Tensor:
    """The amplitudes of some whole frequencies in a sampled function, `(..., n)` to `(..., len(frequencies))`."""
    spectrum = discrete_spectrum(values)
    bins = spectrum.shape[-1]
    wrong = [k for k in frequencies if int(k) != k or not 0 <= k < bins]
    if wrong or not len(frequencies):
        raise InputError(
            f"{values.shape[-1]} samples have the whole frequencies 0 to {bins - 1}; the argument frequencies is "
            f"{list(frequencies)}. Take more samples, or frequencies among these."
        )
    return spectrum[..., [int(k) for k in frequencies]]


class RadialSpectrum(NamedTuple):
    """Magnitudes of a function on the plane by the length of their frequency.

    frequencies: `(r,)` centres of the annuli, in periods per unit of length.
    magnitudes: `(r,)`, zeta.
    """

    frequencies: Tensor
    magnitudes: Tensor


def radial_spectrum(values: Tensor, spacing: float) -> RadialSpectrum:
    """`zeta(k) = k int |f(k, phi)| dphi` of a function on a square grid (Rahaman et al. 2019, eq. 39 of the thesis).

    The magnitudes of the two-dimensional transform are averaged over annuli one bin wide and multiplied by the length of the
    circle; their sum divided by the width of the annulus is the same but for the number of grid points that a circle happens
    to meet. All annuli that lie inside of the square of frequencies are given, without the one around 0.

    Args:
        values: `(n, n)`, the function on a grid; what lies outside is taken for 0.
        spacing: distance of neighbouring points.

    Cost: one FFT of n^2 values.
    """
    _require_real(values, 2)
    n = values.shape[-1]
    if values.shape != (n, n) or n < 4:
        raise InputError(f"A square grid of at least 4 x 4 values is needed, not {tuple(values.shape)}.")
    if not spacing > 0:
        raise InputError(f"The argument spacing is positive, not {spacing}.")
    width = 1 / (n * spacing)
    transform = spacing**2 * torch.fft.fft2(values.double()).abs()
    line = torch.fft.fftfreq(n, d=1 / n, dtype=torch.float64)
    annulus = torch.hypot(line[:, None], line[None, :]).round().long().flatten()
    sums = torch.zeros(int(annulus.max()) + 1, dtype=torch.float64).index_add_(0, annulus, transform.flatten())
    means = sums[1 : n // 2] / torch.bincount(annulus)[1 : n // 2]
    k = torch.arange(1, n // 2, dtype=torch.float64) * width
    return RadialSpectrum(k, 2 * math.pi * k * means)


def _require_real(values: Tensor, axes: int) -> None:
    if values.ndim < axes or values.is_complex() or not values.shape[-1]:
        raise InputError(
            f"Samples of a real function are needed, not a tensor {tuple(values.shape)} of {values.dtype}."
        )
    if not bool(torch.isfinite(values).all()):
        raise NumericsError("The function has non-finite values, which have no spectrum.")
