"""New eigenbases for all sides at once: full eigendecompositions, or one QR step from the bases that are there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from tangentlab.errors import NumericsError
from tangentlab.linalg import safe_eigh, safe_eigh_many
from tangentlab.optim.distributed import Processes
from tangentlab.optim.sides import DenseSide, Side
from tangentlab.optim.thin import refresh_thin

STACK = 64
"""Matrices up to this size that come in groups (depthwise convolutions) are decomposed as one batch."""

Eigen = tuple[Tensor, Tensor]


def refresh_sides(sides: Sequence[Side], method: str, processes: Processes) -> None:
    """Give every side the eigenvalues and eigenvectors of its second moment as it is now; sides of low rank all anew.

    Args:
        method: "eigh", or "qr": one orthogonal iteration, U <- qr(A U) with the columns taken by falling Rayleigh
            quotient (Wang et al. 2024, Vyas et al. 2024; the first time there is nothing to start from, so "eigh").
            Column i of the new basis continues column i of the old one. Cost per side of size n: 9 n^3 for "eigh",
            about 5 n^3 in large products for "qr".
        processes: each decomposes its share, and all end with the same bits.
    """
    matrices = [matrix for side in sides for matrix in side.matrices()]
    refresh_thin([matrix for matrix in matrices if matrix.rank is not None], processes)
    others = [matrix for matrix in matrices if matrix.rank is None]
    steps = [matrix for matrix in others if method == "qr" and _full_basis(matrix) is not None]
    full = [matrix for matrix in others if method != "qr" or _full_basis(matrix) is None]
    for jobs, work in ((steps, _qr_steps), (full, _eigendecompositions)):
        for matrix, (values, basis) in zip(jobs, processes.share(jobs, work, list), strict=True):
            matrix.values, matrix.basis = values, basis
    for side in sides:
        side.refreshed()


def _full_basis(side: DenseSide) -> Tensor | None:
    """The basis that a side has, unless it is a thin one."""
    return side.basis if side.basis is not None and side.basis.shape[-1] == side.size else None


def _qr_steps(sides: Sequence[DenseSide]) -> list[Eigen]:
    return [_qr_step(side) for side in sides]


def _qr_step(side: DenseSide) -> Eigen:
    """One orthogonal iteration; columns keep their places."""
    assert side.statistic is not None and side.basis is not None
    image = side.statistic @ side.basis
    order = (side.basis * image).sum(-2).argsort(-1, descending=True)
    columns = order[:, None, :].expand_as(image)
    sorted_basis = torch.linalg.qr(image.gather(-1, columns))[0]
    basis = torch.empty_like(image).scatter_(-1, columns, sorted_basis)
    if not bool(torch.isfinite(basis).all()):
        return _eigendecompositions([side])[0]
    return (basis * (side.statistic @ basis)).sum(-2).clamp_min(0), basis


def _eigendecompositions(sides: Sequence[DenseSide]) -> list[Eigen]:
    """All of them, side by side; one that fails keeps its old basis (the identity if it has none)."""
    result: dict[int, Eigen] = {}
    alone: list[tuple[int, int, Tensor]] = []
    for place, side in enumerate(sides):
        assert side.statistic is not None
        if len(side.statistic) > 1 and side.size <= STACK:
            batch = _stacked(side.statistic)
            if batch is not None:
                result[place] = batch
                continue
        alone += [(place, group, matrix) for group, matrix in enumerate(side.statistic)]
    pairs = _many([matrix for _, _, matrix in alone])
    found: dict[int, list[Eigen]] = {}
    for (place, group, matrix), pair in zip(alone, pairs, strict=True):
        old = _full_basis(sides[place])
        found.setdefault(place, []).append(pair or _keep(matrix, None if old is None else old[group]))
    for place, eigen in found.items():
        result[place] = torch.stack([values for values, _ in eigen]), torch.stack([basis for _, basis in eigen])
    return [result[place] for place in range(len(sides))]


def _stacked(matrices: Tensor) -> Eigen | None:
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
