"""Gaussian and Student variables with any correlations: closed forms."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.information.tasks.task import Pair, Task


def gaussian_information(covariance: Tensor, x_features: int) -> float:
    """`I = (log det S_x + log det S_z - log det S) / 2` of jointly Gaussian variables, x the first `x_features` entries."""
    x, z = covariance[:x_features, :x_features], covariance[x_features:, x_features:]
    return 0.5 * float(torch.logdet(x) + torch.logdet(z) - torch.logdet(covariance))


def canonical_covariance(correlations: Tensor, x_features: int, z_features: int) -> Tensor:
    """Unit variances with `corr(x_i, z_i) = correlations[i]` for the first entries and nothing else, `(d, d)`."""
    if len(correlations) > min(x_features, z_features):
        raise InputError(f"{len(correlations)} correlations need as many entries; x has {x_features}, z {z_features}.")
    covariance = torch.eye(x_features + z_features, dtype=torch.float64)
    place = torch.arange(len(correlations))
    covariance[place, x_features + place] = covariance[x_features + place, place] = correlations.double()
    return covariance


class _Elliptical(Task):
    """A task given by a scatter matrix; x are its first entries."""

    def __init__(self, covariance: Tensor, x_features: int, name: str) -> None:
        covariance = covariance.double()
        size = len(covariance)
        if covariance.shape != (size, size) or not 0 < x_features < size:
            raise InputError(
                f"{name}: a square covariance of x and z together and 0 < x_features < its size are needed, "
                f"not {tuple(covariance.shape)} and {x_features}."
            )
        self._factor, info = torch.linalg.cholesky_ex(covariance)
        if info or not torch.equal(covariance, covariance.T):
            raise InputError(f"{name}: the covariance is not symmetric and positive definite.")
        self.covariance, self.name = covariance, name
        self.x_features, self.z_features = x_features, size - x_features
        self.gaussian_value = gaussian_information(covariance, x_features)

    @classmethod
    def dense(cls, x_features: int, z_features: int, correlation: float = 0.5, **options: int) -> Self:
        """All entries of x and z have the same correlation with each other."""
        size = x_features + z_features
        covariance = (1 - correlation) * torch.eye(size, dtype=torch.float64) + correlation
        return cls(covariance, x_features, name=f"dense {cls.kind} {x_features} x {z_features}", **options)

    @classmethod
    def sparse(cls, x_features: int, z_features: int, pairs: int = 2, strength: float = 2.0, **options: int) -> Self:
        """`pairs` entries of x share a cause of this strength with one entry of z each: `correlation = s^2 / (1 + s^2)`."""
        correlations = torch.full((pairs,), strength**2 / (1 + strength**2))
        covariance = canonical_covariance(correlations.double(), x_features, z_features)
        return cls(covariance, x_features, name=f"{pairs}-pair {cls.kind} {x_features} x {z_features}", **options)

    kind = "variable"

    def _normal(self, count: int, generator: Generator) -> Tensor:
        return torch.randn(count, len(self.covariance), generator=generator, dtype=torch.float64) @ self._factor.T

    def _split(self, points: Tensor) -> Pair:
        return points[:, : self.x_features], points[:, self.x_features :]

    def _squares(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mahalanobis distances squared of x, of z and of both together, each `(n,)`."""
        x, z, d = x.double(), z.double(), self.x_features
        blocks = ((x, self.covariance[:d, :d]), (z, self.covariance[d:, d:]), (torch.cat([x, z], 1), self.covariance))
        return tuple(_square(points, block) for points, block in blocks)  # type: ignore[return-value]


def _square(points: Tensor, covariance: Tensor) -> Tensor:
    """`v^T S^-1 v` of every row."""
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), points.T, upper=False).square().sum(0)


class Gaussian(_Elliptical):
    """Jointly Gaussian x and z with mean 0 and this covariance, of which x are the first entries."""

    kind = "Gaussian"

    def __init__(self, covariance: Tensor, x_features: int, name: str = "Gaussian") -> None:
        super().__init__(covariance, x_features, name)
        self.value = self.gaussian_value

    @classmethod
    def correlated(cls, features: int, correlation: float) -> Self:
        """`corr(x_i, z_j) = rho delta_ij` with standard margins: `I = -(d / 2) log(1 - rho^2)`."""
        covariance = canonical_covariance(torch.full((features,), correlation, dtype=torch.float64), features, features)
        return cls(covariance, features, name=f"Gaussian {features} x {features}, rho {correlation:.4g}")

    @classmethod
    def of_value(cls, features: int, value: float) -> Self:
        """`correlated` with the rho >= 0 that gives this information: `rho^2 = 1 - exp(-2 I / d)`."""
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"A Gaussian with information {value} does not exist: choose a finite value of 0 or more.")
        return cls.correlated(features, math.sqrt(-math.expm1(-2 * value / features)))

    def draw(self, count: int, generator: Generator) -> Pair:
        return self._split(self._normal(count, generator))

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        of_x, of_z, of_both = self._squares(x, z)
        return self.value + 0.5 * (of_x + of_z - of_both)


class Student(_Elliptical):
    """Multivariate Student: a Gaussian divided by `sqrt(chi^2_nu / nu)`, which x and z share.

    `I = I_Gaussian + f(nu) + f(nu + d_x + d_z) - f(nu + d_x) - f(nu + d_z)` with
    `f(a) = log Gamma(a / 2) - (a / 2) psi(a / 2)`: even without correlations the common scale is information.

    Args:
        covariance: the dispersion matrix, of which x are the first entries.
        x_features: entries of x.
        degrees: nu, whole.
        name: for tables.
    """

    kind = "Student"

    def __init__(self, covariance: Tensor, x_features: int, degrees: int, name: str = "Student") -> None:
        super().__init__(covariance, x_features, f"{name}, {degrees} degrees")
        if degrees < 1 or degrees != int(degrees):
            raise InputError(f"{name}: {degrees} degrees of freedom; a whole number of at least 1 is needed.")
        self.degrees = int(degrees)
        nu, d, e = torch.tensor(float(degrees), dtype=torch.float64), self.x_features, self.z_features
        scale = _entropy_term(nu) + _entropy_term(nu + d + e) - _entropy_term(nu + d) - _entropy_term(nu + e)
        self.value = self.gaussian_value + float(scale)

    @classmethod
    def identity(cls, x_features: int, z_features: int, degrees: int) -> Self:
        """No correlations: only the scale is shared."""
        covariance = torch.eye(x_features + z_features, dtype=torch.float64)
        return cls(covariance, x_features, degrees, name=f"Student {x_features} x {z_features}")

    def draw(self, count: int, generator: Generator) -> Pair:
        points = self._normal(count, generator)
        chi = torch.randn(count, self.degrees, generator=generator, dtype=torch.float64).square().sum(1, keepdim=True)
        return self._split(points * (self.degrees / chi).sqrt())

    def log_ratio(self, x: Tensor, z: Tensor) -> Tensor:
        nu, d, e = self.degrees, self.x_features, self.z_features
        of_x, of_z, of_both = (
            0.5 * (nu + size) * torch.log1p(square / nu)
            for size, square in zip((d, e, d + e), self._squares(x, z), strict=True)
        )
        gammas = (
            math.lgamma(nu / 2) + math.lgamma((nu + d + e) / 2) - math.lgamma((nu + d) / 2) - math.lgamma((nu + e) / 2)
        )
        return self.gaussian_value + gammas + of_x + of_z - of_both


def _entropy_term(count: Tensor) -> Tensor:
    """`log Gamma(a / 2) - (a / 2) psi(a / 2)`."""
    half = count / 2
    return torch.lgamma(half) - half * torch.digamma(half)
