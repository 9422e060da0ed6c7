"""Multi-scale structural similarity of images (Wang, Simoncelli and Bovik 2003), for images of any size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from tangentlab.errors import InputError

SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
WINDOW, WIDTH = 11, 1.5


def scales_of(pixels: int) -> int:
    """How many of the five scales an image of this size has: those at which the window of 11 pixels fits.

    5 from 176 pixels on; 2 at 28, 3 at 64.
    """
    return sum(pixels // 2**scale >= WINDOW for scale in range(len(SCALE_WEIGHTS)))


def ms_ssim(first: Tensor, second: Tensor, data_range: float = 2.0) -> Tensor:
    """MS-SSIM of pairs of images, `(n,)`: 1 for equal ones.

    The published form has five scales and needs 176 pixels. On smaller images the first `scales_of(pixels)` scales are used,
    with their published weights divided by their sum: two scales with weights .136 and .864 at 28 pixels, three with .071,
    .453 and .476 at 64. Contrast and structure of every scale enter to the power of its weight, luminance of the last one;
    negative means are cut at 0. Gaussian windows of 11 pixels (sigma 1.5, no padding), K = (.01, .03), scales halved by
    averaging.

    Args:
        first, second: `(n, channels, height, width)`.
        data_range: largest minus smallest possible value; 2 for images in [-1, 1].
    """
    if first.shape != second.shape or first.ndim != 4 or min(first.shape[2:]) < WINDOW:
        raise InputError(
            f"Two equal shapes (n, channels, height, width) of at least {WINDOW} pixels are needed, not {tuple(first.shape)} "
            f"and {tuple(second.shape)}."
        )
    weights = SCALE_WEIGHTS[: scales_of(min(first.shape[2:]))]
    value = torch.ones(len(first), dtype=first.dtype, device=first.device)
    for number, weight in enumerate(weights):
        luminance, structure = _similarities(first, second, data_range)
        last = number == len(weights) - 1
        value = value * (luminance * structure if last else structure).clamp(min=0) ** (weight / sum(weights))
        first, second = (avg_pool2d(images, 2) for images in (first, second)) if not last else (first, second)
    return value


def _similarities(first: Tensor, second: Tensor, data_range: float) -> tuple[Tensor, Tensor]:
    """Means over positions and channels of luminance, and of contrast times structure, each `(n,)`."""
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    mean_1, mean_2 = _blurred(first), _blurred(second)
    variance_1, variance_2 = _blurred(first**2) - mean_1**2, _blurred(second**2) - mean_2**2
    covariance = _blurred(first * second) - mean_1 * mean_2
    luminance = (2 * mean_1 * mean_2 + c1) / (mean_1**2 + mean_2**2 + c1)
    structure = (2 * covariance + c2) / (variance_1 + variance_2 + c2)
    return luminance.mean((1, 2, 3)), structure.mean((1, 2, 3))


def _blurred(images: Tensor) -> Tensor:
    """Every channel under the Gaussian window, where it fits."""
    line = torch.arange(WINDOW, dtype=images.dtype, device=images.device) - WINDOW // 2
    window = torch.exp(-(line**2) / (2 * WIDTH**2))
    window = window / window.sum()
    channels = images.shape[1]
    rows = conv2d(images, window.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
    return conv2d(rows, window.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
