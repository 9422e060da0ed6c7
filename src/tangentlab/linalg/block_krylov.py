"""Leading left singular vectors of a matrix that is gone through row by row: block Krylov with one pass per step.

With A `(rows, columns)`, one pass over the rows gives `A V` and `A^T A V` for a whole block V: half of what products with
`K = A A^T` cost, which need `A^T B` complete before they can begin with A. So the Krylov space is that of `A^T A`, and the
wanted vectors of K are images of it (Musco and Musco 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg.orthonormalize import orthonormal_rows, row_factors
from tangentlab.linalg.symmetric import safe_eigh

Pass = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A block V `(block, columns)` to the images A V `(block, rows)` and the products A^T A V `(block, columns)`."""


@dataclass(frozen=True)
class LeftPairs:
    """Eigenpairs `K u = s^2 u` of `K = A A^T`.

    Attributes:
        values: `(k,)` squared singular values of A, descending.
        vectors: `(k, rows)` orthonormal rows.
        residual_norms: `(k,)` true `|K u - s^2 u|`.
    """

    values: Tensor
    vectors: Tensor
    residual_norms: Tensor

    @property
    def relative_residuals(self) -> Tensor:
        """`|K u - s^2 u| / s^2`, `(k,)`."""
        return self.residual_norms / self.values


class BlockKrylov:
    """The state of a search: orthonormal blocks Q_1, Q_2, ... of A^T A, their images, and what couples them.

    `A^T A Q_j = sum_{i <= j + 1} H_ij Q_i` holds to rounding, so that for `u = A w` with w in the first blocks `K u` is known
    from the images of one block more: the residuals are true ones, and the last pass of a search is spent on them.
    Memory: `steps * block * (rows + columns)` numbers.

    Args:
        start: `(block, columns)` rows that span the first block; the closer to the leading right singular vectors, the better.
    """

    def __init__(self, start: Tensor) -> None:
        first = orthonormal_rows(start)
        if not len(first):
            raise InputError("The block to start from is zero.")
        self.blocks, self.images, self.couplings = [first], list[Tensor](), list[Tensor]()

    @property
    def steps(self) -> int:
        """Passes done."""
        return len(self.images)

    @property
    def exhausted(self) -> bool:
        """Whether the blocks span all that A^T A can reach from the start: a further pass gives nothing."""
        return len(self.blocks) == self.steps

    def advance(self, one_pass: Pass) -> None:
        """One pass over the matrix. Cost: that pass, and 8 steps block^2 columns."""
        if self.exhausted:
            raise InputError("The search is exhausted: another pass would give nothing new.")
        block = self.blocks[-1]
        image, product = one_pass(block)
        if not bool(torch.isfinite(image).all() and torch.isfinite(product).all()):
            raise NumericsError("A pass over the matrix gave non-finite numbers; check the matrix and its scale.")
        scale = float(product.norm())
        basis = torch.cat(self.blocks)
        coupling = product.new_zeros((len(block), len(basis)))
        for _ in range(2):
            found = product @ basis.T
            coupling, product = coupling + found, product - found @ basis
        self.images.append(image)
        self.couplings.append(coupling)
        if float(product.norm()) <= 10 * len(basis) * torch.finfo(product.dtype).eps * scale:
            return
        rows, left, singular, right, _ = row_factors(product)
        rest = left.T @ rows
        self.blocks.append(rest)
        self.couplings[-1] = torch.cat([coupling, right * singular], 1)

    def pairs(self, k: int) -> LeftPairs | None:
        """The best k pairs (fewer, where the rank is smaller) with true residuals; None before the second pass.

        Rayleigh-Ritz twice, in float64: of A^T A on the blocks, whose leading Ritz vectors have images that are orthogonal and
        well conditioned, and then of K on these images.
        """
        usable = self.steps if self.exhausted else self.steps - 1
        if usable < 1:
            return None
        images = torch.cat(self.images).double()
        count = sum(len(image) for image in self.images[:usable])
        coupling = images.new_zeros((count, len(images)))
        place = 0
        for part in self.couplings[:usable]:
            coupling[place : place + len(part), : part.shape[1]] = part
            place += len(part)
        first = images[:count]
        squares, turned = safe_eigh(first @ first.T)
        floor = _ROUNDING * torch.finfo(self.blocks[0].dtype).eps * float(squares[-1])
        keep = (squares > floor).nonzero().flatten()[-2 * k :]
        if not len(keep):
            return LeftPairs(squares[:0], images[:0], squares[:0])
        combined = (turned[:, keep] / squares[keep].sqrt()).T
        vectors, products = combined @ first, combined @ (coupling @ images)
        small = vectors @ products.T
        values, inner = safe_eigh((small + small.T) / 2)
        values, inner = values[-k:].flip(0), inner[:, -k:].flip(1)
        vectors, products = inner.T @ vectors, inner.T @ products
        return LeftPairs(values, vectors, (products - values[:, None] * vectors).norm(dim=1))

    def state(self, step: int) -> dict[str, Tensor]:
        """What pass `step` (0, 1, ...) added, for a file."""
        added = {"block": self.blocks[step], "image": self.images[step], "coupling": self.couplings[step]}
        return added if step + 1 == len(self.blocks) else {**added, "next": self.blocks[step + 1]}

    @classmethod
    def from_states(cls, states: list[dict[str, Any]]) -> BlockKrylov:
        """A search that goes on after the passes of these states, of which there is at least one."""
        made = object.__new__(cls)
        made.blocks = [state["block"] for state in states] + ([states[-1]["next"]] if "next" in states[-1] else [])
        made.images = [state["image"] for state in states]
        made.couplings = [state["coupling"] for state in states]
        return made


_ROUNDING = 100.0
"""Squared singular values below this many machine epsilons of the largest are rounding."""
