"""Extreme eigenpairs of a matrix given by its products: thick-restart block Lanczos."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg._matvec import Matvec, at_least_one, dense, in_batches, product, random_rows
from tangentlab.linalg.symmetric import safe_eigh

Which = Literal["top", "bottom", "magnitude"]

DENSE_LIMIT = 4096
"""Largest matrix that is formed when the iteration has cost as much as forming it (128 MB in float64)."""


@dataclass(frozen=True)
class LanczosResult:
    """Eigenpairs and how far they may be off.

    Attributes:
        eigenvalues: `(k,)`, the most wanted first: descending for `top`, ascending for `bottom`, by decreasing
            absolute value for `magnitude`.
        eigenvectors: `(k, dim)`, orthonormal rows.
        residual_norms: `(k,)` true `|A v - s v|`; an eigenvalue of A lies within this distance of s.
        converged: every residual is below the tolerance.
        matvecs: products with the matrix that were spent.
        message: what happened, in words.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor
    residual_norms: Tensor
    converged: bool
    matvecs: int
    message: str


def lanczos(
    matvec: Matvec,
    dim: int,
    k: int,
    *,
    which: Which = "top",
    block_size: int | None = None,
    basis_size: int | None = None,
    tol: float | None = None,
    max_restarts: int = 300,
    on_failure: Literal["raise", "report"] = "report",
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> LanczosResult:
    """The k largest (or smallest) eigenpairs of a symmetric matrix, repeated eigenvalues included.

    Block Lanczos with every new block orthogonalized twice against the whole basis, restarted with the best Ritz
    vectors (Wu and Simon 2000; Stewart 2001). A Krylov space holds at most `block_size` directions of a repeated
    eigenvalue; so after convergence the search is continued from random vectors orthogonal to what was found, until
    such a search finds nothing better. When the basis would hold the whole space, or a hard spectrum has taken as many
    products as a matrix of moderate size (4096) has columns, the matrix is formed and decomposed.

    Args:
        matvec: symmetric A, `(vectors, dim) -> (vectors, dim)`.
        dim: its size.
        k: number of pairs; when `k > dim`, all `dim` pairs are returned.
        which: `"top"`, `"bottom"`, or `"magnitude"` (largest absolute value).
        block_size: vectors per product; by default `min(k, 2)`.
        basis_size: vectors kept at most; by default `max(2 k + 8, 32)` and room for two blocks, rounded up.
        tol: a pair has converged when its residual is below `tol * max|s|`; by default eps^(2/3), which is 3.7e-11 in
            float64 and 2.4e-5 in float32.
        max_restarts: limit on restarts.
        on_failure: `"report"` (see `converged`) or `"raise"` a NumericsError.
        dtype: of the vectors.
        device: of the vectors.
        generator: source of the starting vectors; the result is a deterministic function of it.

    Returns:
        A `LanczosResult`. Cost: the products, and 8 basis_size dim operations per product; memory at most twice
        `basis_size` vectors.
    """
    at_least_one(dim=dim, k=k, max_restarts=max_restarts)
    if which not in ("top", "bottom", "magnitude"):
        raise InputError(f"The argument which must be 'top', 'bottom' or 'magnitude', got {which!r}.")
    k = min(k, dim)
    block, size = _sizes(k, block_size, basis_size)
    dtype = dtype or torch.get_default_dtype()
    if size + block > dim:
        result = _by_dense(matvec, dim, k, which, torch.empty(0, dtype=dtype, device=device), 0)
    else:
        precision = torch.finfo(dtype).eps ** (2 / 3) if tol is None else tol
        random = _Random(dim, dtype, device, generator)
        result = _Search(matvec, dim, k, which, block, size, precision, random).run(max_restarts)
    if on_failure == "raise" and not result.converged:
        raise NumericsError(result.message)
    return result


def _sizes(k: int, block_size: int | None, basis_size: int | None) -> tuple[int, int]:
    """Vectors per block, and vectors in the basis as a whole number of blocks."""
    block = min(k, 2) if block_size is None else block_size
    at_least_one(block_size=block)
    wanted = max(2 * k + 8, 32, k + 2 * block) if basis_size is None else basis_size
    if wanted < k + 2 * block:
        raise InputError(f"The argument basis_size must be at least k + 2 block_size = {k + 2 * block}, got {wanted}.")
    return block, -(-wanted // block) * block


def _by_dense(matvec: Matvec, dim: int, k: int, which: Which, like: Tensor, spent: int) -> LanczosResult:
    matrix = dense(in_batches(matvec, 256), dim, dtype=like.dtype, device=like.device)
    values, vectors = safe_eigh(matrix)
    best = _order(values, which)[:k]
    values, rows = values[best], vectors[:, best].T.contiguous()
    residuals = (rows @ matrix - values[:, None] * rows).norm(dim=1)
    return LanczosResult(values, rows, residuals, True, spent + dim, f"decomposed the whole {dim} x {dim} matrix")


def _order(values: Tensor, which: Which) -> Tensor:
    return {"top": -values, "bottom": values, "magnitude": -values.abs()}[which].argsort(stable=True)


class _Random:
    """Random vectors orthogonal to a basis."""

    def __init__(
        self, dim: int, dtype: torch.dtype, device: torch.device | str, generator: torch.Generator | None
    ) -> None:
        self.dim, self.dtype, self.device, self.generator = dim, dtype, device, generator

    def orthonormal_to(self, basis: Tensor, count: int) -> Tensor:
        rows = random_rows(count, self.dim, dtype=self.dtype, device=self.device, generator=self.generator)
        for _ in range(2):
            rows = rows - (rows @ basis.T) @ basis
            rows = torch.linalg.qr(rows.T).Q.T
        return rows


class _Search:
    """The state of one search: basis Q `(j, dim)`, `T = Q A Q^T`, and the next block with its coupling to Q.

    `A Q^T = Q^T T + next^T C` holds to rounding, C `(block, j)`; so `|C y|` is the residual of the Ritz pair
    `(s, Q^T y)` of `T y = s y`.
    """

    def __init__(
        self, matvec: Matvec, dim: int, k: int, which: Which, block: int, size: int, tol: float, random: _Random
    ) -> None:
        self.matvec, self.dim, self.k, self.which = matvec, dim, k, which
        self.block, self.size, self.tol, self.random = block, size, tol, random
        self.store = torch.zeros(size, dim, dtype=random.dtype, device=random.device)
        self.projection = torch.zeros(0, 0, dtype=torch.float64)
        self.next = random.orthonormal_to(self.basis, block)
        self.coupling = torch.zeros(block, 0, dtype=torch.float64)
        self.matvecs = 0

    @property
    def basis(self) -> Tensor:
        return self.store[: len(self.projection)]

    def run(self, max_restarts: int) -> LanczosResult:
        found: Tensor | None = None
        message = f"the limit of {max_restarts} restarts was reached: raise it, raise basis_size, or loosen tol"
        for _ in range(max_restarts):
            if self.matvecs >= self.dim <= DENSE_LIMIT:
                return _by_dense(self.matvec, self.dim, self.k, self.which, self.store, self.matvecs)
            while len(self.basis) + self.block <= self.size:
                self._expand()
            values, vectors = self._ritz()
            residuals = (self.coupling @ vectors).norm(dim=0)
            slack = self.tol * float(values.abs().max())
            if not self._settled(values, residuals, slack, verifying=found is not None):
                # Half of the room for the best pairs, half for new directions, is the usual choice.
                self._compress(values, vectors, self.k + (self.size - self.k - self.block) // 2)
            elif found is not None and not bool((self._key(values[: self.k]) > self._key(found) + 2 * slack).any()):
                self._compress(values, vectors, self.k)
                return self._result("converged, and a search orthogonal to the result found nothing better", slack)
            else:
                found = values[: self.k].clone()
                self._compress(values, vectors, self.k)
                self.next = self.random.orthonormal_to(self.basis, self.block)
                self.coupling = torch.zeros(self.block, self.k, dtype=torch.float64)
        values, vectors = self._ritz()
        self._compress(values, vectors, self.k)
        return self._result(message, slack)

    def _settled(self, values: Tensor, residuals: Tensor, slack: float, verifying: bool) -> bool:
        """Whether the wanted pairs have converged and, when verifying, the best other pair is surely less wanted."""
        if bool((residuals[: self.k] > slack).any()):
            return False
        key = self._key(values)
        return not verifying or bool(residuals[self.k] <= torch.clamp(key[self.k - 1] - key[self.k], min=slack))

    def _key(self, values: Tensor) -> Tensor:
        """Larger is more wanted."""
        return {"top": values, "bottom": -values, "magnitude": values.abs()}[self.which]

    def _expand(self) -> None:
        """Adds the next block to the basis and finds its successor by one batched product."""
        old = len(self.projection)
        grown = torch.zeros(old + self.block, old + self.block, dtype=torch.float64)
        grown[:old, :old] = self.projection
        self.store[old : old + self.block] = self.next
        self.projection = grown
        self.matvecs += self.block
        image = product(self.matvec, self.next)
        overlap = torch.zeros(self.block, len(self.basis), dtype=self.basis.dtype, device=self.basis.device)
        for _ in range(2):
            part = image @ self.basis.T
            image = image - part @ self.basis
            overlap += part
        columns = overlap.T.to("cpu", torch.float64)
        corner = columns[old:]
        grown[:old, old:], grown[old:, :old], grown[old:, old:] = (
            columns[:old],
            columns[:old].T,
            (corner + corner.T) / 2,
        )
        self._set_next(image)

    def _set_next(self, remainder: Tensor) -> None:
        """Orthonormalizes the remainder; directions that vanished are replaced by random ones with no coupling."""
        columns, triangle = torch.linalg.qr(remainder.T)
        left, singular, _ = torch.linalg.svd(triangle)
        scale = max(float(self.projection.abs().max()), float(singular[0]))
        following = (columns @ left[:, singular > 10 * torch.finfo(remainder.dtype).eps * scale]).T
        for _ in range(2 if len(following) else 0):
            following = following - (following @ self.basis.T) @ self.basis
            following = torch.linalg.qr(following.T).Q.T
        alive = len(following)
        self.coupling = torch.zeros(self.block, len(self.basis), dtype=torch.float64)
        self.coupling[:alive, -self.block :] = (following @ remainder.T).to("cpu", torch.float64)
        if alive < self.block:
            fresh = self.random.orthonormal_to(torch.cat([self.basis, following]), self.block - alive)
            following = torch.cat([following, fresh])
        self.next = following

    def _ritz(self) -> tuple[Tensor, Tensor]:
        values, vectors = safe_eigh(self.projection)
        order = _order(values, self.which)
        return values[order], vectors[:, order]

    def _compress(self, values: Tensor, vectors: Tensor, keep: int) -> None:
        """Restarts with the first `keep` Ritz vectors; the next block and the relation above stay valid."""
        kept = vectors[:, :keep]
        self.store[:keep] = kept.T.to(self.basis) @ self.basis
        self.projection = torch.diag(values[:keep])
        self.coupling = self.coupling @ kept

    def _result(self, message: str, slack: float) -> LanczosResult:
        columns, triangle = torch.linalg.qr(self.basis.T)
        vectors = (columns * torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(columns)).T
        images = product(self.matvec, vectors)
        values = (vectors * images).sum(1)
        order = _order(values, self.which)
        values, vectors, images = values[order], vectors[order], images[order]
        residuals = (images - values[:, None] * vectors).norm(dim=1)
        converged = message.startswith("converged")
        if converged and bool((residuals > 10 * slack).any()):
            converged = False
            message = "the recomputed residuals are larger than the recursion says: is the matrix symmetric, and fixed?"
        return LanczosResult(values, vectors, residuals, converged, self.matvecs + len(vectors), message)
