"""Closed forms: Gaussians by their moments, canonical correlations, and tables of counts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tangentlab.errors import InputError, SolveError
from tangentlab.information.tasks.elliptical import gaussian_information


def canonical_correlations(x: Tensor, z: Tensor) -> Tensor:
    """Canonical correlations in decreasing order: singular values of `Q_x^T Q_z`, orthonormal bases of the centred sides.

    Directions in which a side does not vary are left out.
    """
    bases = []
    for part in (x, z):
        flat = part.flatten(1).double()
        left, values, _ = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
        bases.append(left[:, values > 1e-10 * values.max().clamp(min=1e-300)])
    return torch.linalg.svdvals(bases[0].T @ bases[1]).clamp(max=1.0)


def gaussian_terms(x: Tensor, z: Tensor) -> Tensor:
    """Log-density ratios of a Gaussian with the moments of the sample, (n,).

    Their mean is `-1/2 sum log(1 - r^2)` over canonical correlations r, less `d_x d_z / 2n`, the bias under independence.
    """
    flat = [part.flatten(1).double() for part in (x, z)]
    n, dims = len(x), [part.shape[1] for part in flat]
    if n <= sum(dims) + 1:
        raise InputError(f"A covariance of {sum(dims)} coordinates needs more than {n} examples.")
    joint = torch.cat(flat, 1)
    joint = joint - joint.mean(0)
    covariance = joint.T @ joint / n
    if torch.linalg.cholesky_ex(covariance).info or torch.linalg.cond(covariance) > 1e12:
        raise SolveError("The covariance is singular: a coordinate is a combination of others. Remove it.")
    value = gaussian_information(covariance, dims[0])
    halves = []
    for rows, block in (
        (joint, covariance),
        (joint[:, : dims[0]], covariance[: dims[0], : dims[0]]),
        (joint[:, dims[0] :], covariance[dims[0] :, dims[0] :]),
    ):
        halves.append((rows * torch.linalg.solve(block, rows.T).T).sum(1) / 2)
    return value - halves[0] + halves[1] + halves[2] - dims[0] * dims[1] / (2 * n)


def discrete_terms(x: Tensor, z: Tensor) -> Tensor:
    """Log-ratios of relative frequencies, (n,), less the bias `(a b - a - b + 1) / 2n` of Miller and Madow over cells seen.

    Values are compared as they are, a vector as a whole.
    """
    codes = [part.flatten(1).unique(dim=0, return_inverse=True)[1] for part in (x, z)]
    sizes = [int(code.max()) + 1 for code in codes]
    cell = codes[0] * sizes[1] + codes[1]
    n = len(cell)
    seen, place, counts = cell.unique(return_inverse=True, return_counts=True)
    margins = [torch.bincount(code).double() for code in codes]
    ratio = counts[place].double().log() + math.log(n) - margins[0][codes[0]].log() - margins[1][codes[1]].log()
    return ratio - (len(seen) - sizes[0] - sizes[1] + 1) / (2 * n)
