"""Symmetric matrices with a prescribed spectrum, as dense truth and as products."""

import torch
from torch import Tensor

DTYPES = [torch.float32, torch.float64]

SPECTRA = {
    "geometric": lambda dim: 0.8 ** torch.arange(dim, dtype=torch.float64),
    "power_law": lambda dim: (1 + torch.arange(dim, dtype=torch.float64)) ** -1.5,
    "flat": lambda dim: torch.linspace(1.5, 0.5, dim, dtype=torch.float64),
    "repeated": lambda dim: torch.where(torch.arange(dim) < 6, 3.0, torch.linspace(2.0, 0.1, dim)).double(),
    "identity": lambda dim: torch.ones(dim, dtype=torch.float64),
    "rank_deficient": lambda dim: torch.where(torch.arange(dim) < 5, 5.0 - torch.arange(dim), 0.0).double(),
    "zero": lambda dim: torch.zeros(dim, dtype=torch.float64),
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rotation(dim: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=seeded(seed))).Q


def symmetric(eigenvalues: Tensor, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """``Q diag(eigenvalues) Q^T`` with a random rotation Q, exactly symmetric."""
    basis = rotation(len(eigenvalues), seed)
    matrix = (basis * eigenvalues.double()) @ basis.T
    return ((matrix + matrix.T) / 2).to(dtype)


class Counted:
    """A dense matrix as a matvec that counts the vectors it was given."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.vectors, self.calls = matrix, 0, 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.calls += 1
        self.vectors += len(rows)
        return rows @ self.matrix
