"""Kernels of infinitely wide networks in closed form: the Gaussian process at initialization, and the tangent kernel.

With weights `N(0, s_w^2 / fan_in)` and biases `N(0, s_b^2)`, layer by layer (Lee et al. 2018, Jacot et al. 2018):

    Sigma_1 = s_w^2 X X^T / d + s_b^2                       Theta_1 = Sigma_1
    Sigma_{l+1} = s_w^2 E[phi(u) phi(v)] + s_b^2            Theta_{l+1} = Sigma_{l+1} + s_w^2 E[phi'(u) phi'(v)] Theta_l

with (u, v) Gaussian of covariance Sigma_l. The expectations have closed forms for ReLU (Cho and Saul 2009) and erf
(Williams 1997). The tangent kernel is in the NTK parametrization: each parameter is standard normal and its factor
`s_w / sqrt(fan_in)` or s_b stands outside. Cost: O(n m) per layer, O(n m pixels) for convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tangentlab.errors import InputError

Moments = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the covariance and both variances: E[phi phi] and E[phi' phi']."""


@dataclass(frozen=True)
class WideKernels:
    """Both kernels of an infinitely wide network between two sets of inputs.

    Attributes:
        process: the covariance of the outputs at initialization (NNGP), `(n, m)`.
        tangent: the tangent kernel (NTK), `(n, m)`.
    """

    process: Tensor
    tangent: Tensor


def relu_moments(cross: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """`sqrt(pq) (sin t + (pi - t) cos t) / 2 pi` and `(pi - t) / 2 pi`, with t the angle between u and v."""
    size = first.sqrt() * second.sqrt()
    cosine = torch.where(size > 0, cross / size.clamp_min(torch.finfo(size.dtype).tiny), torch.zeros_like(size))
    cosine = cosine.clamp(-1, 1)
    angle = torch.arccos(cosine)
    products = size * ((1 - cosine.square()).clamp_min(0).sqrt() + (math.pi - angle) * cosine) / (2 * math.pi)
    return products, (math.pi - angle) / (2 * math.pi)


def erf_moments(cross: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """`2/pi arcsin(2 c / sqrt((1 + 2 p)(1 + 2 q)))` and `4/pi / sqrt((1 + 2 p)(1 + 2 q) - 4 c^2)`."""
    scale = (1 + 2 * first).sqrt() * (1 + 2 * second).sqrt()
    products = 2 / math.pi * torch.arcsin((2 * cross / scale).clamp(-1, 1))
    size = first.sqrt() * second.sqrt()
    apart = ((size - cross) * (size + cross)).clamp_min(0)  # p q - c^2, which rounding may make negative
    return products, 4 / math.pi / (1 + 2 * first + 2 * second + 4 * apart).sqrt()


MOMENTS: dict[str, Moments] = {"relu": relu_moments, "erf": erf_moments}


def wide_mlp_kernels(
    first: Tensor,
    second: Tensor | None = None,
    *,
    depth: int,
    activation: str = "relu",
    weight_std: float = math.sqrt(2),
    bias_std: float = 0.0,
) -> WideKernels:
    """Kernels of a fully connected network with `depth` layers of weights, the linear readout among them.

    Args:
        first: inputs `(n, d)`.
        second: other inputs `(m, d)`; the same by default.
        depth: at least 1; 1 is a linear model.
        activation: "relu" or "erf".
        weight_std: s_w.
        bias_std: s_b.
    """
    one, two = _inputs(first, second, axes=2)
    width = one.shape[1]

    def affine(products: Tensor) -> Tensor:
        return weight_std**2 * products + bias_std**2

    parts = (one @ two.t() / width, _squares(one)[:, None] / width, _squares(two)[None, :] / width)
    covariance = [affine(part) for part in parts]
    tangent = covariance[0]
    for _ in range(_layers(depth) - 1):
        covariance, tangent = _next(covariance, tangent, affine, weight_std, _moments(activation))
    return WideKernels(covariance[0], tangent)


def wide_convolution_kernels(
    first: Tensor,
    second: Tensor | None = None,
    *,
    depth: int,
    kernel_size: int = 3,
    activation: str = "relu",
    weight_std: float = math.sqrt(2),
    bias_std: float = 0.0,
) -> WideKernels:
    """Kernels of a convolutional network without pooling: `depth - 1` convolutions with zero padding, then a linear readout
    of all pixels.

    Without pooling, pixels of two inputs meet only at the same place, so the covariances are `(n, m, height, width)` and
    not quadratic in the pixels.

    Args:
        first: images `(n, channels, height, width)`.
        second: other images; the same by default.
        depth: layers of weights, the readout among them, at least 2.
        kernel_size: odd.
        activation: "relu" or "erf".
        weight_std: s_w.
        bias_std: s_b.
    """
    one, two = _inputs(first, second, axes=4)
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise InputError(
            f"The kernel size must be positive and odd, not {kernel_size}: padding is the same on all sides."
        )
    if _layers(depth) < 2:
        raise InputError("A convolutional network has at least one convolution and a readout: depth=2 or more.")
    channels = one.shape[1]

    def affine(products: Tensor) -> Tensor:
        return weight_std**2 * _patch_mean(products, kernel_size) + bias_std**2

    cross = torch.einsum("nchw,mchw->nmhw", one, two) / channels
    parts = (cross, _squares(one)[:, None] / channels, _squares(two)[None, :] / channels)
    covariance = [affine(part) for part in parts]
    tangent, moments = covariance[0], _moments(activation)
    for _ in range(_layers(depth) - 2):
        products, slopes = moments(*covariance)
        below = weight_std**2 * _patch_mean(slopes * tangent, kernel_size)
        covariance = [affine(products), *(affine(_variance(moments, part)) for part in covariance[1:])]
        tangent = covariance[0] + below
    products, slopes = moments(*covariance)
    process = weight_std**2 * products.mean((-2, -1)) + bias_std**2
    return WideKernels(process, process + weight_std**2 * (slopes * tangent).mean((-2, -1)))


def _next(
    covariance: list[Tensor], tangent: Tensor, affine: Callable[[Tensor], Tensor], weight_std: float, moments: Moments
) -> tuple[list[Tensor], Tensor]:
    """Covariances and tangent kernel behind one more activation and layer."""
    products, slopes = moments(*covariance)
    following = [affine(products), *(affine(_variance(moments, part)) for part in covariance[1:])]
    return following, following[0] + weight_std**2 * slopes * tangent


def _variance(moments: Moments, variance: Tensor) -> Tensor:
    return moments(variance, variance, variance)[0]


def _squares(inputs: Tensor) -> Tensor:
    return inputs.square().sum(1)


def _patch_mean(values: Tensor, size: int) -> Tensor:
    """The mean over a patch around each pixel, with zeros outside of the image."""
    border = size // 2
    shape = values.shape
    padded = pad(values.reshape(-1, 1, *shape[-2:]), (border,) * 4)
    return torch.nn.functional.avg_pool2d(padded, size, stride=1).reshape(shape)


def _moments(activation: str) -> Moments:
    if activation not in MOMENTS:
        raise InputError(f"Closed forms exist for {' and '.join(MOMENTS)}, not for {activation!r}.")
    return MOMENTS[activation]


def _layers(depth: int) -> int:
    if depth < 1 or depth != int(depth):
        raise InputError(f"A network has a whole number of layers of weights, at least one, not {depth}.")
    return int(depth)


def _inputs(first: Tensor, second: Tensor | None, axes: int) -> tuple[Tensor, Tensor]:
    """Both sets of inputs in double precision."""
    other = first if second is None else second
    if first.ndim != axes or other.ndim != axes or first.shape[1:] != other.shape[1:]:
        expected = "(n, features)" if axes == 2 else "(n, channels, height, width)"
        raise InputError(
            f"Inputs of one shape {expected} are needed, not {tuple(first.shape)} and {tuple(other.shape)}."
        )
    if not first[:1].numel() or not bool(first.isfinite().all() and other.isfinite().all()):
        raise InputError("The inputs must be finite, with at least one example and one feature.")
    return first.double(), other.double()
