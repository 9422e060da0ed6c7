"""Comparisons, vectors, and the dense matrix whose every operation is written out."""

import torch
from torch import Tensor

from tangentlab.engine.layout import LayerCollection
from tangentlab.objects.pvector import PVector
from tangentlab.testing.small_models import Case

DAMPING = 0.1


def tolerance(dtype: torch.dtype) -> float:
    """Relative to the largest entry of what is compared."""
    return 1e-9 if dtype == torch.float64 else 3e-4


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype = torch.float64, factor: float = 1.0) -> None:
    """Equal up to rounding in `dtype`, relative to the largest entry."""
    assert actual.shape == expected.shape
    scale = max(float(expected.abs().max()), 1e-12)
    assert (
        float((actual.detach().double() - expected.detach().double()).abs().max()) <= factor * tolerance(dtype) * scale
    )


def dimension(case: Case) -> int:
    """d."""
    return sum(p.numel() for p in case.model.parameters() if p.requires_grad)


def vectors(case: Case, *batch: int, seed: int = 11) -> PVector:
    """A random vector, or a batch of them."""
    layout = LayerCollection.from_model(case.model)
    noise = torch.randn(*batch, layout.numel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return PVector(layout, noise.to(case.dtype))


def of_another_model() -> PVector:
    """A vector that fits no model of the suite."""
    return PVector.ones(torch.nn.Linear(2, 2, dtype=torch.float64))


class Dense:
    """Truth of the operations: the dense matrix in float64 and functions of its spectrum."""

    def __init__(self, matrix: Tensor, rounding: torch.dtype = torch.float64) -> None:
        self.matrix = (matrix + matrix.t()) / 2
        self.values, self.basis = torch.linalg.eigh(self.matrix)
        self.null = self.values.abs() <= 4 * len(matrix) * torch.finfo(rounding).eps * self.values.abs().max()

    def power(self, exponent: float) -> Tensor:
        """Null modes stay null."""
        values = torch.where(self.null, 0.0, torch.where(self.null, 1.0, self.values.abs()) ** exponent)
        return (self.basis * values) @ self.basis.t()

    def damped(self, damping: float = DAMPING) -> Tensor:
        """F + damping I."""
        return self.matrix + damping * torch.eye(len(self.matrix), dtype=self.matrix.dtype)

    def damped_inverse(self, damping: float = DAMPING) -> Tensor:
        """(F + damping I)^-1."""
        return torch.linalg.inv(self.damped(damping))
