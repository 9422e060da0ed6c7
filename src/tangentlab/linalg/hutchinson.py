"""Hutchinson's estimators of the trace and of the diagonal."""

import torch
from torch import Tensor

from tangentlab.linalg._estimate import Estimate, mean_with_error
from tangentlab.linalg._matvec import Distribution, Matvec, at_least_one, product, random_rows


def hutchinson_trace(
    matvec: Matvec,
    dim: int,
    probes: int,
    *,
    distribution: Distribution = "rademacher",
    batch_size: int = 32,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`tr A` as the mean of `z^T A z` over random z (Hutchinson 1990).

    Unbiased; variance `2 (|A|_F^2 - |diag A|^2) / probes` with signs, `2 |A|_F^2 / probes` with Gaussian vectors. A
    diagonal matrix is exact with one vector of signs.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        probes: number of products.
        distribution: `"rademacher"` or `"gaussian"`.
        batch_size: vectors per call of `matvec`; bounds the memory to two such batches.
        dtype: of the probes.
        device: of the probes.
        generator: source of randomness.

    Returns:
        The estimate with its standard error over the probes.
    """
    at_least_one(probes=probes, batch_size=batch_size)
    samples: list[Tensor] = []
    for begin in range(0, probes, batch_size):
        count = min(batch_size, probes - begin)
        z = random_rows(count, dim, distribution, dtype=dtype, device=device, generator=generator)
        samples.append((z * product(matvec, z)).sum(1))
    return mean_with_error(torch.cat(samples), probes)


def hutchinson_diag(
    matvec: Matvec,
    dim: int,
    probes: int,
    *,
    batch_size: int = 32,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`diag A` as the mean of `z * (A z)` over random signs z (Bekas, Kokiopoulou and Saad 2007).

    Unbiased; the variance of entry i is `sum_{j != i} A_ij^2 / probes`. Arguments as in `hutchinson_trace`; the mean
    and variance are accumulated, so memory does not grow with the number of probes.

    Returns:
        Estimate `(dim,)` with one standard error per entry.
    """
    at_least_one(probes=probes, batch_size=batch_size)
    mean = torch.zeros(dim, dtype=dtype, device=device)
    spread = torch.zeros_like(mean)
    for begin in range(0, probes, batch_size):
        count = min(batch_size, probes - begin)
        z = random_rows(count, dim, "rademacher", dtype=dtype, device=device, generator=generator)
        samples = z * product(matvec, z)
        shift = samples.mean(0) - mean
        spread += (samples - samples.mean(0)).square().sum(0) + shift.square() * (begin * count / (begin + count))
        mean = mean + shift * (count / (begin + count))
    if probes == 1:
        return Estimate(mean, torch.full_like(mean, torch.inf), probes)
    return Estimate(mean, (spread / (probes - 1) / probes).sqrt(), probes)
