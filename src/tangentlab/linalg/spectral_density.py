"""The density of eigenvalues, smoothed, without computing eigenvalues."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tangentlab.errors import InputError
from tangentlab.linalg._matvec import Matvec, at_least_one
from tangentlab.linalg.slq import Quadrature, lanczos_quadrature


@dataclass(frozen=True)
class SpectralDensity:
    """A smoothed spectral density.

    Attributes:
        grid: `(points,)` eigenvalues.
        density: `(points,)`, integrating to one over the grid (when the grid covers the spectrum).
        standard_error: `(points,)`, over the probes.
        width: standard deviation of the Gaussian that smooths.
        quadrature: nodes and weights per probe, before smoothing.
    """

    grid: Tensor
    density: Tensor
    standard_error: Tensor
    width: float
    quadrature: Quadrature


def spectral_density(
    matvec: Matvec,
    dim: int,
    *,
    probes: int = 16,
    steps: int = 64,
    points: int = 512,
    width: float | None = None,
    grid: Tensor | None = None,
    batch_size: int = 8,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> SpectralDensity:
    """`(1 / dim) sum_i N(t; s_i, width^2)` over the eigenvalues s_i (Lin, Saad and Yang 2016; Ghorbani et al. 2019).

    The mean over probes of `sum_j w_j N(t; s_j, width^2)` with the nodes and weights of `lanczos_quadrature`.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        probes: number of random starting vectors.
        steps: Lanczos steps.
        points: size of the grid when none is given; it covers the spectrum and six widths on either side.
        width: of the smoothing Gaussian; by default 1 % of the range of the spectrum (or of its magnitude, when the
            range is zero).
        grid: eigenvalues to evaluate at, `(points,)`; the density is not renormalized on it.
        batch_size: probes advanced together.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of randomness.

    Returns:
        A `SpectralDensity` with tensors in the dtype and device of the vectors. Cost: `probes * steps` products, then
        `probes * steps * points`.
    """
    at_least_one(points=points)
    quadrature = lanczos_quadrature(
        matvec, dim, probes, steps, batch_size=batch_size, dtype=dtype, device=device, generator=generator
    )
    nodes, weights = quadrature.nodes, quadrature.weights
    low, high = float(nodes.min()), float(nodes.max())
    # A range below rounding is a single point; a Gaussian narrower than that could not be put on a grid.
    spread = high - low if high - low > 1e-6 * max(abs(low), abs(high)) else max(abs(low), abs(high)) or 1.0
    sigma = 0.01 * spread if width is None else width
    if sigma <= 0:
        raise InputError(f"The argument width must be positive, got {sigma}.")
    at: Tensor
    if grid is None:
        # Half a width between points makes the trapezoid rule exact to rounding.
        points = max(points, int((high - low) / sigma * 2) + 24)
        at = torch.linspace(low - 6 * sigma, high + 6 * sigma, points, dtype=torch.float64)
    else:
        at = grid.to("cpu", torch.float64)
    per_probe = torch.stack([_smoothed(at, n, w, sigma) for n, w in zip(nodes, weights, strict=True)])
    error = per_probe.std(0) / probes**0.5 if probes > 1 else torch.full_like(at, torch.inf)
    at, mean, error = (
        tensor.to(device, dtype or torch.get_default_dtype()) for tensor in (at, per_probe.mean(0), error)
    )
    return SpectralDensity(at, mean, error, sigma, quadrature)


def _smoothed(at: Tensor, nodes: Tensor, weights: Tensor, width: float) -> Tensor:
    gaussians: Tensor = torch.exp(-0.5 * ((at[:, None] - nodes) / width).square()) / (width * (2 * torch.pi) ** 0.5)
    return torch.mv(gaussians, weights)
