"""Orthonormal bases of the span of given rows."""

import torch
from torch import Tensor


def orthonormal_rows(rows: Tensor, *, rtol: float | None = None) -> Tensor:
    """Orthonormal basis of the numerical span of `rows`.

    Householder QR of the transpose, then the singular values of its triangle tell the rank. Cost: 4 m^2 d.

    Args:
        rows: `(m, d)`.
        rtol: singular values up to `rtol * largest` count as zero; by default 10 m machine epsilons.

    Returns:
        `(r, d)` with orthonormal rows, r the numerical rank (0 for zero rows).
    """
    basis, left, *_ = row_factors(rows, rtol=rtol)
    return left.T @ basis


def leave_one_out_rows(rows: Tensor, *, rtol: float | None = None) -> tuple[Tensor, Tensor]:
    """A basis of all rows, and for each row the direction that the span loses without it.

    With `Q` the basis and `s_i` the i-th direction, the projector onto the span of all rows but the i-th is
    `Q^T (I - s_i s_i^T) Q`. A row that depends on the others takes nothing away: its direction is zero. With
    `Y = V S U^T Q` the direction is that of `S^-1 V^T e_i`, provided that e_i lies in the span of V (Epperly, Tropp
    and Webber 2024, section 2.3, extended here to dependent rows).

    Args:
        rows: `(m, d)`.
        rtol: as in `orthonormal_rows`.

    Returns:
        The basis `(r, d)` and the directions `(m, r)`, each of norm one or zero. Cost: 4 m^2 d.
    """
    basis, left, singular, right, null = row_factors(rows, rtol=rtol)
    # e_i lies in the span of V exactly when the vectors that combine the rows to zero do not use row i.
    independent = null.norm(dim=1) <= 100 * len(rows) * torch.finfo(rows.dtype).eps
    directions = torch.where(independent[:, None], right / singular, torch.zeros_like(right))
    lengths = directions.norm(dim=1, keepdim=True)
    return left.T @ basis, directions / torch.where(lengths > 0, lengths, 1.0)


def row_factors(rows: Tensor, *, rtol: float | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`rows = V S U^T B` and the null space of the transpose.

    Returns:
        B orthonormal rows `(k, d)`, U `(k, r)`, S `(r,)`, V `(m, r)` and its complement N `(m, m - r)` with
        `N^T rows = 0`, where `k = min(m, d)` and r is the numerical rank.
    """
    columns, triangle = torch.linalg.qr(rows.T)
    left, singular, right = torch.linalg.svd(triangle)
    cut = 10 * len(rows) * torch.finfo(rows.dtype).eps if rtol is None else rtol
    rank = int((singular > cut * singular[:1]).sum())
    return columns.T, left[:, :rank], singular[:rank], right[:rank].T, right[rank:].T


def completed_rows(rows: Tensor) -> Tensor:
    """Rows `(d, d)` that are orthonormal or zero, with those that are zero replaced by an orthonormal rest; 4/3 d^3."""
    missing = ~rows.any(1)
    if not bool(missing.any()):
        return rows
    wide = torch.promote_types(rows.dtype, torch.float32)  # half precision has no QR
    whole = torch.linalg.qr(rows[~missing].to(wide).T, mode="complete")[0].T
    result = rows.clone()
    result[missing] = whole[int((~missing).sum()) :].to(rows.dtype)
    return result
