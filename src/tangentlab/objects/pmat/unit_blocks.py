"""Blocks that are independent from output unit to output unit: the weights of one row and its bias.

All of them store tensors (units, columns + 1) with the bias last, and cost O(dim) for products and damped solves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from tangentlab.engine.memory import require_memory
from tangentlab.errors import NumericsError
from tangentlab.objects.pmat.block import Block, Spectrum
from tangentlab.objects.pmat.kronecker import KronBlock, MatrixForm


class UnitBlock(KronBlock):
    """One dense matrix per unit, (units, columns + 1, columns + 1): what powers of the other blocks are."""

    @classmethod
    def of(cls, matrices: Tensor) -> UnitBlock:
        """From ready matrices."""
        units, size, _ = matrices.shape
        return cls(matrices.new_ones((units, 1, 1)), matrices, MatrixForm((units, 1, size - 1), bias=True))

    def power(self, exponent: float) -> UnitBlock:
        """Of every matrix."""
        return UnitBlock.of(super().power(exponent).right)  # type: ignore[attr-defined]

    def map(self, function: Callable[[Tensor], Tensor]) -> UnitBlock:
        """The same with other matrices."""
        return UnitBlock.of(function(self.right))

    def tensors(self) -> list[Tensor]:
        """The matrices."""
        return [self.right]


class _Units(Block):
    """What blocks of independent units share: vectors (B, dim) seen as (B, units, columns + 1)."""

    def __init__(self, units: int, size: int) -> None:
        self.dim, self._form = units * size, MatrixForm((1, units, size - 1), bias=True)

    def to_units(self, flat: Tensor) -> Tensor:
        """(B, dim) in flat order -> (B, units, columns + 1)."""
        return self._form.to_matrix(flat)[..., 0, :, :]

    def to_flat(self, units: Tensor) -> Tensor:
        """The inverse."""
        return self._form.to_flat(units[..., None, :, :])

    def units(self) -> UnitBlock:
        """Every unit's matrix written out."""
        _, count, columns = self._form.shape
        size, example = columns + 1, self.tensors()[0]
        require_memory(
            count * size**2 * example.element_size(),
            f"A dense matrix for each of {count:,} units of {size:,} parameters",
            "Products, damped solves, samples and determinants need none of them.",
        )
        unit = torch.eye(size, dtype=example.dtype, device=example.device)[:, None, :].expand(-1, count, -1)
        columns_of = self.to_units(self.product(self.to_flat(unit)))
        return UnitBlock.of(columns_of.permute(1, 0, 2).contiguous())

    def _spectrum(self) -> Spectrum:
        return self.units().spectrum

    def of_spectrum(self, function: Callable[[Tensor], Tensor]) -> Block:
        """A scaling of the eigenvectors of every unit."""
        return self.units().of_spectrum(function)

    def power(self, exponent: float) -> Block:
        """One dense matrix per unit."""
        return self.units().power(exponent)


class RankOneBlock(_Units):
    """diag(base) + coefficient g g^T for every unit: base, vector g (units, columns + 1), coefficient (units)."""

    stored = ("base", "vector", "coefficient")
    linear = ("base", "coefficient")

    def __init__(self, base: Tensor, vector: Tensor, coefficient: Tensor) -> None:
        super().__init__(*base.shape)
        self.base, self.vector, self.coefficient = base, vector, coefficient

    def product(self, rows: Tensor) -> Tensor:
        """base x + c g <g, x>."""
        x = self.to_units(rows)
        along = (x * self.vector).sum(-1) * self.coefficient
        return self.to_flat(self.base * x + along[..., None] * self.vector)

    def diag(self) -> Tensor:
        """base + c g^2."""
        return self.to_flat(self.base + self.coefficient[:, None] * self.vector.square())

    def squared_norm(self) -> Tensor:
        """|base|^2 + 2 c <base, g^2> + c^2 |g|^4."""
        squares, c = self.vector.square(), self.coefficient
        return self.base.square().sum() + (2 * c * (self.base * squares).sum(1) + (c * squares.sum(1)).square()).sum()

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """Sherman and Morrison's formula; the pseudo-inverse for 0."""
        if damping == 0:
            return self._pseudo_inverse(rows)
        return self.inverse(damping).product(rows)

    def inverse(self, damping: float) -> Block:
        """Again a diagonal plus a product, E^-1 - c E^-1 g g^T E^-1 / (1 + c <g, E^-1 g>), E = base + damping."""
        if damping == 0:
            return self.power(-1)
        damped = self.base + damping
        image = self.vector / damped
        return RankOneBlock(
            1 / damped, image, -self.coefficient / (1 + self.coefficient * (self.vector * image).sum(1))
        )

    def _pseudo_inverse(self, rows: Tensor) -> Tensor:
        """For base >= 0 and c >= 0: on the null space of the base only the direction of g is left, and takes g's place."""
        if bool((self.base < 0).any()) or bool((self.coefficient < 0).any()):
            return super().solve(rows, 0.0)
        x, g, null = self.to_units(rows), self.vector * self.coefficient.sqrt()[:, None], self.base == 0
        g_null, g_rest = torch.where(null, g, 0.0), torch.where(null, 0.0, g)
        length = g_null.square().sum(-1)
        if bool(((length == 0) & g_rest.any(-1)).any()):
            return super().solve(rows, 0.0)
        safe = torch.where(length > 0, length, 1.0)
        along = (x * g_null).sum(-1) / safe
        rest = torch.where(null, 0.0, (x - along[..., None] * g_rest) / torch.where(null, 1.0, self.base))
        inside = (along - (rest * g_rest).sum(-1)) / safe
        return self.to_flat(rest + inside[..., None] * g_null)

    def _damped(self, damping: float) -> tuple[Tensor, Tensor]:
        """base + damping and 1 + c <g, g / (base + damping)>, which are positive when the matrix is."""
        damped = self.base + damping
        ratio = 1 + self.coefficient * (self.vector.square() / damped).sum(1)
        if bool((damped <= 0).any()) or bool((ratio <= 0).any()):
            raise NumericsError("This matrix is not positive definite at this damping: give a larger one.")
        return damped, ratio

    def inverse_root(self, rows: Tensor, damping: float) -> Tensor:
        """E^-1/2 (I - k h h^T) x with h the unit vector along E^-1/2 g, k = 1 - 1 / sqrt(1 + c <g, E^-1 g>)."""
        damped, ratio = self._damped(damping)
        direction = torch.nn.functional.normalize(self.vector / damped.sqrt(), dim=1, eps=1e-300)
        x = self.to_units(rows)
        along = (x * direction).sum(-1) * (1 - ratio.rsqrt())
        return self.to_flat((x - along[..., None] * direction) / damped.sqrt())

    def logdet(self, damping: float) -> Tensor:
        """sum log(base + damping) + log(1 + c <g, E^-1 g>)."""
        if damping == 0:
            return super().logdet(0.0)
        damped, ratio = self._damped(damping)
        return damped.log().sum() + ratio.log().sum()


class _Entries(_Units):
    """The stored numbers of a quasi-diagonal matrix: diagonal (units, columns + 1), cross (units, columns)."""

    stored = ("diagonal", "cross")

    def __init__(self, diagonal: Tensor, cross: Tensor) -> None:
        super().__init__(*diagonal.shape)
        self.diagonal, self.cross = diagonal, cross

    def diag(self) -> Tensor:
        """The stored diagonal."""
        return self.to_flat(self.diagonal)

    def trace(self) -> Tensor:
        """Its sum."""
        return self.diagonal.sum()

    def less_outer(self, vector: Tensor) -> Self:
        """The stored entries of F - v v^T."""
        units = self.to_units(vector)
        diagonal = (self.diagonal - units.square()).clamp_min(0)
        return type(self)(diagonal, self.cross - units[:, :-1] * units[:, -1:])


class OllivierBlock(_Entries):
    """[[diag(m - c^2 / m_0) + c c^T / m_0, c], [c^T, m_0]]: positive semi-definite, with the right diagonal and cross terms.

    Its inverse is Ollivier's quasi-diagonal inverse (2015, section 2.3). It is a diagonal plus a product, (c; m_0) / m_0.
    """

    @property
    def structure(self) -> RankOneBlock:
        """The same matrix as diagonal plus product, computed once."""
        if "_cached_structure" not in vars(self):
            bias = self.diagonal[:, -1:]
            share = torch.where(bias != 0, self.cross / torch.where(bias != 0, bias, 1.0), 0.0)
            base = self.diagonal[:, :-1] - share * self.cross
            rounding = 8 * torch.finfo(base.dtype).eps * self.diagonal[:, :-1].abs()
            base = torch.where(base.abs() <= rounding, 0.0, base)
            coefficient = torch.where(bias != 0, 1 / torch.where(bias != 0, bias, 1.0), 0.0)[:, 0]
            zero = torch.zeros_like(bias)
            self._cached_structure = RankOneBlock(
                torch.cat([base, zero], 1), torch.cat([self.cross, bias], 1), coefficient
            )
        return self._cached_structure

    def product(self, rows: Tensor) -> Tensor:
        """O(dim)."""
        return self.structure.product(rows)

    def _spectrum(self) -> Spectrum:
        return self.structure.spectrum

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """O(dim)."""
        return self.structure.solve(rows, damping)

    def solve_reduced(self, rows: Tensor, damping: float) -> Tensor:
        """Ollivier's inverse of the damped entries: damping is added to the diagonal before the form is taken."""
        return OllivierBlock(self.diagonal + damping, self.cross).solve(rows, 0.0)

    def inverse_root(self, rows: Tensor, damping: float) -> Tensor:
        """O(dim)."""
        return self.structure.inverse_root(rows, damping)

    def logdet(self, damping: float) -> Tensor:
        """O(dim) with damping."""
        return self.structure.logdet(damping)

    def squared_norm(self) -> Tensor:
        """O(dim)."""
        return self.structure.squared_norm()

    def inverse(self, damping: float) -> Block:
        """A diagonal plus a product; without damping one matrix per unit."""
        return self.structure.inverse(damping)


class ArrowBlock(_Entries):
    """[[diag(m), c], [c^T, m_0]]: exactly the stored entries of F, zero elsewhere. It need not be positive semi-definite."""

    def product(self, rows: Tensor) -> Tensor:
        """O(dim)."""
        x = self.to_units(rows)
        last = (x[..., :-1] * self.cross).sum(-1, keepdim=True)
        return self.to_flat(self.diagonal * x + torch.cat([self.cross * x[..., -1:], last], -1))

    def squared_norm(self) -> Tensor:
        """|diagonal|^2 + 2 |cross|^2."""
        return self.diagonal.square().sum() + 2 * self.cross.square().sum()

    def _schur(self, damping: float) -> tuple[Tensor, Tensor]:
        """m + damping, and the Schur complement of the bias, m_0 + damping - sum c^2 / (m + damping)."""
        damped = self.diagonal[:, :-1] + damping
        return damped, self.diagonal[:, -1] + damping - (self.cross.square() / damped).sum(1)

    def indefinite_units(self, damping: float) -> int:
        """How many units have no positive definite matrix at this damping."""
        damped, schur = self._schur(damping)
        return int(((damped <= 0).any(1) | ~(schur > 0)).sum())

    def solve(self, rows: Tensor, damping: float) -> Tensor:
        """By the Schur complement of the bias; warns where the matrix is not positive definite."""
        if damping == 0:
            return super().solve(rows, damping)
        if bad := self.indefinite_units(damping):
            warnings.warn(
                f"The arrow matrix is not positive definite for {bad} of {len(self.diagonal)} units at damping {damping:g}: "
                "-solve(gradient) may go uphill. PMatQuasiDiag's default form is positive.",
                stacklevel=2,
            )
        return self.inverse(damping).product(rows)

    def inverse(self, damping: float) -> Block:
        """diag(1 / m, 0) + h h^T / S with h = (c / m, -1)."""
        if damping == 0:
            return self.power(-1)
        damped, schur = self._schur(damping)
        zero = torch.zeros_like(schur)[:, None]
        direction = torch.cat([self.cross / damped, zero - 1], 1)
        return RankOneBlock(torch.cat([1 / damped, zero], 1), direction, 1 / schur)

    def _positive(self, damping: float) -> tuple[Tensor, Tensor]:
        if self.indefinite_units(damping):
            raise NumericsError(
                "The arrow matrix is not positive definite at this damping: give a larger one, or use the default form "
                "of PMatQuasiDiag, which is."
            )
        return self._schur(damping)

    def inverse_root(self, rows: Tensor, damping: float) -> Tensor:
        """(x / sqrt m + (c / m) y, -y), y = x_0 / sqrt S."""
        damped, schur = self._positive(damping)
        x = self.to_units(rows)
        y = x[..., -1:] * schur.rsqrt()[:, None]
        return self.to_flat(torch.cat([x[..., :-1] * damped.rsqrt() + self.cross / damped * y, -y], -1))

    def logdet(self, damping: float) -> Tensor:
        """sum log m + log S."""
        if damping == 0:
            return super().logdet(0.0)
        damped, schur = self._positive(damping)
        return damped.log().sum() + schur.log().sum()

    def plus(self, other: Block) -> Block | None:
        """Arrows add up."""
        if not isinstance(other, ArrowBlock):
            return None
        return ArrowBlock(self.diagonal + other.diagonal, self.cross + other.cross)
