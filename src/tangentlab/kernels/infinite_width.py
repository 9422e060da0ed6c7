"""Kernels of infinitely wide networks in closed form: the Gaussian process at initialization, and the tangent kernel.

With weights `N(0, s_w^2 / fan_in)` and biases `N(0, s_b^2)`, layer by layer (Lee et al. 2018, Jacot et al. 2018):

    Sigma_1 = s_w^2 X X^T / d + s_b^2                       Theta_1 = Sigma_1
    Sigma_{l+1} = s_w^2 E[phi(u) phi(v)] + s_b^2            Theta_{l+1} = Sigma_{l+1} + s_w^2 E[phi'(u) phi'(v)] Theta_l

with (u, v) Gaussian of covariance Sigma_l. The expectations have closed forms for ReLU (Cho and Saul 2009) and erf
(Williams 1997). The tangent kernel is in the NTK parametrization: each parameter is standard normal and its factor
`s_w / sqrt(fan_in)` or s_b stands outside. Cost: O(n m) per layer, O(n m pixels) for convolutions.

Between inputs that nearly agree (or are nearly opposite) the cosine of their angle is 1 (or -1) to half of the digits. So
E[(u - v)^2] and E[(u + v)^2] are carried along, from the differences and sums of the inputs on, and give the angle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tangentlab.errors import InputError

_AT_ONCE = 2**22
"""Entries of differences of inputs that are in memory at once."""


@dataclass(frozen=True)
class WideKernels:
    """Both kernels of an infinitely wide network between two sets of inputs.

    Attributes:
        process: the covariance of the outputs at initialization (NNGP), `(n, m)`.
        tangent: the tangent kernel (NTK), `(n, m)`.
    """

    process: Tensor
    tangent: Tensor


@dataclass(frozen=True)
class Pairs:
    """Moments of pairs (u, v), all of one shape but for the variances: E[u v], E[u^2], E[v^2], E[(u - v)^2], E[(u + v)^2]."""

    cross: Tensor
    first: Tensor
    second: Tensor
    apart: Tensor
    together: Tensor

    def affine(self, change: Callable[[Tensor], Tensor], shift: float) -> Pairs:
        """The same of weighted sums of u and of v, with independent weights, plus one number of variance `shift` for both."""
        cross, first, second = (change(part) + shift for part in (self.cross, self.first, self.second))
        return Pairs(cross, first, second, change(self.apart), change(self.together) + 4 * shift)


Moments = Callable[[Pairs], tuple[Pairs, Tensor]]
"""From the moments of (u, v) to those of (phi(u), phi(v)), and E[phi' phi']."""


def relu_moments(pairs: Pairs) -> tuple[Pairs, Tensor]:
    """`sqrt(pq) (sin t + (pi - t) cos t) / 2 pi` and `(pi - t) / 2 pi`, with t the angle between u and v."""
    roots = pairs.first.sqrt(), pairs.second.sqrt()
    size, tiny = roots[0] * roots[1], torch.finfo(pairs.cross.dtype).tiny
    lengths = ((pairs.first - pairs.second) / (roots[0] + roots[1]).clamp_min(tiny)).square()
    angle = torch.arccos((pairs.cross / size.clamp_min(tiny)).clamp(-1, 1))
    halves = ((part - lengths).clamp_min(0).sqrt() for part in (pairs.apart, pairs.together))
    angle = torch.where(lengths < size, 2 * torch.atan2(*halves), angle)
    bend = (angle.sin() - angle * angle.cos()) / math.pi
    cross = size * (bend + angle.cos()) / 2
    first, second = pairs.first / 2, pairs.second / 2
    apart = lengths / 2 + size * (2 * (angle / 2).sin().square() - bend)
    return Pairs(cross, first, second, apart, first + second + 2 * cross), (math.pi - angle) / (2 * math.pi)


def erf_moments(pairs: Pairs) -> tuple[Pairs, Tensor]:
    """`2/pi arcsin(2 c / sqrt((1 + 2 p)(1 + 2 q)))` and `4/pi / sqrt((1 + 2 p)(1 + 2 q) - 4 c^2)`."""
    p, q = pairs.first, pairs.second
    scale = (1 + 2 * p).sqrt() * (1 + 2 * q).sqrt()
    cross, first, second = (
        2 / math.pi * torch.arcsin((2 * part / whole).clamp(-1, 1))
        for part, whole in ((pairs.cross, scale), (p, 1 + 2 * p), (q, 1 + 2 * q))
    )
    size = p.sqrt() * q.sqrt()
    apart = ((size - pairs.cross) * (size + pairs.cross)).clamp_min(0)  # p q - c^2, which rounding may make negative
    slopes = 4 / math.pi / (1 + 2 * p + 2 * q + 4 * apart).sqrt()
    return Pairs(cross, first, second, first + second - 2 * cross, first + second + 2 * cross), slopes


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
    moments = _moments(activation)

    def layer(pairs: Pairs) -> Pairs:
        return pairs.affine(lambda part: weight_std**2 * part, bias_std**2)

    covariance = layer(_products(one, two))
    tangent = covariance.cross
    for _ in range(_layers(depth) - 1):
        pairs, slopes = moments(covariance)
        covariance = layer(pairs)
        tangent = covariance.cross + weight_std**2 * slopes * tangent
    return WideKernels(covariance.cross, tangent)


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
    moments = _moments(activation)

    def layer(pairs: Pairs) -> Pairs:
        return pairs.affine(lambda part: weight_std**2 * _patch_mean(part, kernel_size), bias_std**2)

    covariance = layer(_products(one, two))
    tangent = covariance.cross
    for _ in range(_layers(depth) - 2):
        pairs, slopes = moments(covariance)
        below = weight_std**2 * _patch_mean(slopes * tangent, kernel_size)
        covariance = layer(pairs)
        tangent = covariance.cross + below
    pairs, slopes = moments(covariance)
    process = weight_std**2 * pairs.cross.mean((-2, -1)) + bias_std**2
    return WideKernels(process, process + weight_std**2 * (slopes * tangent).mean((-2, -1)))


def _products(one: Tensor, two: Tensor) -> Pairs:
    """Moments over the features (axis 1) of all pairs of inputs `(n, k, ...)` and `(m, k, ...)`, at each place of their own."""
    features = one.shape[1]
    cross = torch.einsum("nk...,mk...->nm...", one, two) / features
    first, second = (one.square().mean(1)[:, None], two.square().mean(1)[None, :])
    apart = _of_close(first + second - 2 * cross, one, two, 0.01 * (first + second))
    together = _of_close(first + second + 2 * cross, one, -two, 0.01 * (first + second))
    return Pairs(cross, first, second, apart, together)


def _of_close(squares: Tensor, one: Tensor, two: Tensor, limit: Tensor) -> Tensor:
    """Mean squared differences, from the differences themselves where they are below a limit and so mostly rounding."""
    one, two = one.movedim(1, -1), two.movedim(1, -1)
    for places in (squares < limit).nonzero().split(max(_AT_ONCE // one.shape[-1], 1)):
        n, m, *rest = places.unbind(1)
        squares[(n, m, *rest)] = (one[(n, *rest)] - two[(m, *rest)]).square().mean(-1)
    return squares


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
