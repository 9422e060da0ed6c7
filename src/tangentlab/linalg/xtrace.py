"""XTrace and XDiag: every probe serves both the range and the remainder, each left out in turn."""

import torch

from tangentlab.errors import InputError
from tangentlab.linalg._estimate import Estimate, mean_with_error
from tangentlab.linalg._matvec import Matvec, dense, product, random_rows
from tangentlab.linalg.orthonormalize import leave_one_out_rows


def xtrace(
    matvec: Matvec,
    dim: int,
    probes: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`tr A` by the exchangeable estimator XTrace (Epperly, Tropp and Webber 2024).

    For each Gaussian probe z_i, with P_i the projector onto the range sketched by all other probes and
    `v_i = (I - P_i) z_i`: `t_i = tr P_i A P_i + (dim - rank P_i) v_i^T A v_i / |v_i|^2`; the estimate is the mean
    of the t_i. Unbiased. Exact when the rank of A is below `probes`, or `2 probes >= dim`.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        probes: number of probes, at least 2; twice as many products are spent.
        dtype: of the probes.
        device: of the probes.
        generator: source of randomness.

    Returns:
        The estimate; its standard error is the leave-one-out estimate `std(t_i) / sqrt(probes)` of that paper
        (section 2.2; the t_i are dependent, so this is an indication and not a confidence bound). Cost: O(probes^2 dim)
        besides the products; memory about `5 probes` vectors.
    """
    if probes < 2:
        raise InputError(f"XTrace leaves one probe out in turn and needs at least 2, got {probes}.")
    if 2 * probes >= dim:
        exact = dense(matvec, dim, dtype=dtype, device=device).trace()
        return Estimate(exact, torch.zeros_like(exact), dim)
    z = random_rows(probes, dim, "gaussian", dtype=dtype, device=device, generator=generator)
    images = product(matvec, z)
    basis, lost = leave_one_out_rows(images)
    basis_images = product(matvec, basis)
    inside = z @ basis.T
    # Coordinates of P_i z_i in the basis: all of them but the part along the direction that is lost without probe i.
    inside = inside - (lost * inside).sum(1, keepdim=True) * lost
    v = z - inside @ basis
    v_images = images - inside @ basis_images
    core = basis @ basis_images.T
    low_rank_part = core.trace() - ((lost @ core) * lost).sum(1)
    ranks = len(basis) - (lost != 0).any(1).to(z.dtype)
    remainder = (dim - ranks) * (v * v_images).sum(1) / v.square().sum(1)
    return mean_with_error(low_rank_part + remainder, probes + len(basis))


def xdiag(
    matvec: Matvec,
    dim: int,
    probes: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Estimate:
    """`diag A` by the exchangeable estimator XDiag (Epperly, Tropp and Webber 2024, section 2.4).

    For each vector of signs z_i, with P_i the projector onto the range sketched by all other probes:
    `t_i = diag(P_i A) + z_i * ((I - P_i) A z_i)`; the estimate is the mean of the t_i. Unbiased. Exact when the rank
    of A is below `probes`, or `2 probes >= dim`. Arguments, cost and memory as in `xtrace`.

    Returns:
        Estimate `(dim,)` with the leave-one-out standard error of each entry.
    """
    if probes < 2:
        raise InputError(f"XDiag leaves one probe out in turn and needs at least 2, got {probes}.")
    if 2 * probes >= dim:
        exact = dense(matvec, dim, dtype=dtype, device=device).diagonal()
        return Estimate(exact, torch.zeros_like(exact), dim)
    z = random_rows(probes, dim, "rademacher", dtype=dtype, device=device, generator=generator)
    images = product(matvec, z)
    basis, lost = leave_one_out_rows(images)
    basis_images = product(matvec, basis)
    lost_rows = lost @ basis
    along_lost = (lost_rows * images).sum(1, keepdim=True)
    samples = (basis * basis_images).sum(0) + lost_rows * (z * along_lost - lost @ basis_images)
    return mean_with_error(samples, probes + len(basis))
