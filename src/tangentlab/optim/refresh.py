"""New eigenbases for all sides at once: full eigendecompositions, thin ones, or one QR step from the bases that are there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tangentlab.errors import NumericsError
from tangentlab.linalg import low_rank_eigh, safe_eigh, safe_eigh_many
from tangentlab.objects.pmat.side import stacked
from tangentlab.optim.sides import RunningSide
from tangentlab.parallel.processes import Processes
from tangentlab.parallel.threads import side_by_side

STACK = 64
"""Matrices up to this size that come in groups (depthwise convolutions) are decomposed as one batch."""

Eigen = tuple[Tensor, Tensor]
"""Falling eigenvalues (groups, k) and eigenvectors (groups, n, k)."""


@dataclass
class Job:
    """A stack of matrices (groups, n, n) to decompose, with the full basis that it has, if any, and the rank to find."""

    matrices: Tensor
    basis: Tensor | None
    rank: int | None = None

    def placeholder(self) -> Eigen:
        """Room for values and basis that another process computes: r + 1 values and r vectors of a thin basis."""
        groups, size, _ = self.matrices.shape
        values, vectors = (size, size) if self.rank is None else (self.rank + 1, self.rank)
        return self.matrices.new_empty(groups, values), self.matrices.new_empty(groups, size, vectors)


def refresh_sides(sides: Sequence[RunningSide], method: str, processes: Processes) -> None:
    """Give every side the eigenvalues and eigenvectors of its second moment as it is now; sides of low rank all anew.

    Args:
        method: "eigh", or "qr": one orthogonal iteration, U <- qr(A U) with the columns taken by falling Rayleigh
            quotient (Wang et al. 2024, Vyas et al. 2024; the first time there is nothing to start from, so "eigh").
            Column i of the new basis continues column i of the old one. Cost per side of size n: 9 n^3 for "eigh",
            about 5 n^3 in large products for "qr".
        processes: each decomposes its share, and all end with the same bits.
    """
    jobs = {id(side): _jobs(side) for side in sides}
    every = [job for side in sides for job in jobs[id(side)]]
    found: dict[int, Eigen] = {}

    def share(some: Sequence[Job], work: Callable[[Sequence[Job]], list[Eigen]]) -> None:
        found.update(zip(map(id, some), processes.share(some, work, list), strict=True))

    share([job for job in every if job.rank is not None], _thin_decompositions)
    for job in every:
        if job.rank is not None and not bool(torch.isfinite(found[id(job)][0]).all()):
            job.rank = None  # not accurate, which all processes see in the values
    others = [job for job in every if job.rank is None]
    share([job for job in others if method == "qr" and job.basis is not None], _qr_steps)
    share([job for job in others if method != "qr" or job.basis is None], _eigendecompositions)
    for side in sides:
        side.refreshed([found[id(job)] for job in jobs[id(side)]])


def _jobs(side: RunningSide) -> list[Job]:
    """What has to be decomposed; a thin basis cannot start a full one."""
    assert side.statistic is not None
    stacks = side.statistic.stacks()
    bases = side.basis.stacks() if side.basis is not None else [None] * len(stacks)
    known = [basis if basis is not None and basis.shape[-1] == basis.shape[-2] else None for basis in bases]
    return [Job(stack, basis, side.rank) for stack, basis in zip(stacks, known, strict=True)]


def _thin_decompositions(jobs: Sequence[Job]) -> list[Eigen]:
    costs = [float(job.matrices.shape[-1]) ** 2 * (job.rank or 0) for job in jobs]
    return side_by_side(lambda job: stacked([_thin(matrix, job.rank or 0) for matrix in job.matrices]), jobs, costs)


def _thin(matrix: Tensor, rank: int) -> Eigen:
    """Eigenvalues with the 0 of the complement (r + 1), and eigenvectors (n, r); NaN eigenvalues for a failure."""
    try:
        values, basis = low_rank_eigh(matrix, rank)
    except NumericsError:
        return matrix.new_full((rank + 1,), torch.nan), matrix.new_zeros(len(matrix), rank)
    return F.pad(values.flip(-1), (0, 1)), basis.flip(-1)


def _qr_steps(jobs: Sequence[Job]) -> list[Eigen]:
    return [_qr_step(job) for job in jobs]


def _qr_step(job: Job) -> Eigen:
    """One orthogonal iteration; columns keep their places."""
    assert job.basis is not None
    image = job.matrices @ job.basis
    order = (job.basis * image).sum(-2).argsort(-1, descending=True)
    columns = order[:, None, :].expand_as(image)
    sorted_basis = torch.linalg.qr(image.gather(-1, columns))[0]
    basis = torch.empty_like(image).scatter_(-1, columns, sorted_basis)
    if not bool(torch.isfinite(basis).all()):
        return _eigendecompositions([job])[0]
    return (basis * (job.matrices @ basis)).sum(-2).clamp_min(0), basis


def _eigendecompositions(jobs: Sequence[Job]) -> list[Eigen]:
    """All of them, side by side; one that fails keeps its old basis (the identity if it has none)."""
    result: dict[int, Eigen] = {}
    alone: list[tuple[int, int, Tensor]] = []
    for place, job in enumerate(jobs):
        if len(job.matrices) > 1 and job.matrices.shape[-1] <= STACK:
            batch = _batch(job.matrices)
            if batch is not None:
                result[place] = batch
                continue
        alone += [(place, group, matrix) for group, matrix in enumerate(job.matrices)]
    pairs = _many([matrix for _, _, matrix in alone])
    found: dict[int, list[Eigen]] = {}
    for (place, group, matrix), pair in zip(alone, pairs, strict=True):
        old = jobs[place].basis
        found.setdefault(place, []).append(pair or _keep(matrix, None if old is None else old[group]))
    result |= {place: stacked(eigen) for place, eigen in found.items()}
    return [result[place] for place in range(len(jobs))]


def _batch(matrices: Tensor) -> Eigen | None:
    try:
        values, basis = torch.linalg.eigh(matrices)
    except torch.linalg.LinAlgError:
        return None
    if not bool(torch.isfinite(basis).all()):
        return None
    return values.flip(-1).clamp_min(0), basis.flip(-1)


def _many(matrices: list[Tensor]) -> list[Eigen | None]:
    """Falling eigenvalues and their vectors; None where every algorithm failed."""
    pairs: list[Eigen | None]
    try:
        pairs = list(safe_eigh_many(matrices))
    except NumericsError:
        pairs = [_or_none(matrix) for matrix in matrices]
    return [None if pair is None else (pair[0].flip(-1).clamp_min(0), pair[1].flip(-1)) for pair in pairs]


def _or_none(matrix: Tensor) -> Eigen | None:
    try:
        return safe_eigh(matrix)
    except NumericsError:
        return None


def _keep(matrix: Tensor, basis: Tensor | None) -> Eigen:
    """The old basis, or the identity, with the second moments along its vectors."""
    what = "its basis stays as it was" if basis is not None else "it keeps the identity as its basis for now"
    warnings.warn(f"An eigendecomposition of size {len(matrix)} failed: {what}.", RuntimeWarning, stacklevel=2)
    if basis is None:
        basis = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    values = (basis * (matrix @ basis)).sum(-2)
    return torch.nan_to_num(values).clamp_min(0), basis
