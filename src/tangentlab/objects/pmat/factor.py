"""Factors of a Kronecker product: second moments that stay thin as long as they were made from few rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tangentlab.layers import OuterSum
from tangentlab.linalg import psd_thin_eigh, safe_eigh
from tangentlab.linalg._threads import side_by_side


class ThinFactor:
    """R^T R for rows R (1, m, features), m < features: stored and decomposed in m dimensions."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def dense(self) -> Tensor:
        """(1, features, features)."""
        return self.rows.transpose(-1, -2) @ self.rows

    def right_product(self, matrix: Tensor) -> Tensor:
        """matrix R^T R for matrix (..., features)."""
        return (matrix @ self.rows.transpose(-1, -2)) @ self.rows

    def traces(self) -> Tensor:
        """(1,)."""
        return self.rows.square().sum((-1, -2))

    def squared_norms(self) -> Tensor:
        """|R^T R|^2 = |R R^T|^2, (1,)."""
        return (self.rows @ self.rows.transpose(-1, -2)).square().sum((-1, -2))

    def diagonals(self) -> Tensor:
        """(1, features)."""
        return self.rows.square().sum(-2)

    def map(self, function: Callable[[Tensor], Tensor]) -> ThinFactor:
        """Another dtype or device."""
        return ThinFactor(function(self.rows))

    def scaled(self, factor: float | Tensor) -> Tensor | ThinFactor:
        """factor R^T R; dense for a negative factor."""
        return ThinFactor(self.rows * factor**0.5) if float(factor) >= 0 else self.dense() * factor


class FactorSum:
    """Accumulates one side of a Kronecker product over batches: rows while they are few, then their second moment."""

    def __init__(self, side: str, sharing: str) -> None:
        self.side, self.sharing = side, sharing
        self._rows: list[Tensor] = []
        self._dense: Tensor | None = None

    def add(self, factor: OuterSum) -> None:
        """Add the factors of a chunk."""
        groups, rows, columns = factor.matrix_shape
        features = rows if self.side == "left" else columns + factor.bias
        kept = sum(part.shape[1] for part in self._rows) + factor.side_rows_count(self.side, self.sharing)
        if self._dense is None and groups == 1 and 2 * kept <= features:
            self._rows.append(factor.side_rows(self.side, self.sharing))
            return
        covariance = factor.side_covariance(self.side, self.sharing)
        if self._dense is None:
            self._dense = covariance
            for part in self._rows:
                self._dense += part.transpose(-1, -2) @ part
            self._rows = []
        else:
            self._dense += covariance

    def finish(self, count: int) -> Tensor | ThinFactor:
        """Divided by a count."""
        if self._dense is not None:
            return self._dense.div_(count)
        return ThinFactor(torch.cat(self._rows, 1) / count**0.5)


def decompose_factors(factors: Sequence[Tensor | ThinFactor]) -> list[tuple[Tensor, Tensor]]:
    """(values (groups, k), vectors (groups, features, k)) of every factor, side by side; k < features for thin ones."""
    jobs: list[tuple[int, Tensor, bool]] = []
    for number, factor in enumerate(factors):
        thin = isinstance(factor, ThinFactor)
        matrices = factor.rows if isinstance(factor, ThinFactor) else factor
        jobs += [(number, matrix, thin) for matrix in matrices]
    costs = [float(min(matrix.shape)) ** 3 for _, matrix, _ in jobs]
    pairs = side_by_side(lambda job: _thin_basis(job[1]) if job[2] else safe_eigh(job[1]), jobs, costs)
    result = []
    for number in range(len(factors)):
        own = [pair for pair, job in zip(pairs, jobs, strict=True) if job[0] == number]
        result.append((torch.stack([values for values, _ in own]), torch.stack([vectors for _, vectors in own])))
    return result


def _thin_basis(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of R^T R without the null modes, of which one is kept where there is nothing else."""
    values, vectors = psd_thin_eigh(rows)
    if len(values):
        return values, vectors
    return values.new_zeros(1), torch.eye(rows.shape[-1], 1, dtype=values.dtype, device=values.device)


def completed_basis(vectors: Tensor) -> Tensor:
    """Orthonormal columns (groups, features, k) extended to a full basis (groups, features, features)."""
    features, kept = vectors.shape[-2:]
    if kept == features:
        return vectors
    full = torch.linalg.qr(vectors, mode="complete")[0]
    return torch.cat([vectors, full[..., kept:]], -1)
