"""Functions of a matrix times vectors, against the eigendecomposition."""

import pytest
import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg.krylov_function import krylov_function


def matrix(dim: int, rank: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    rows = torch.randn(rank or dim, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (rows.t() @ rows / dim).to(dtype)


def applied(A: Tensor, rows: Tensor, function: object) -> Tensor:
    values, vectors = torch.linalg.eigh(A.double())
    return ((rows.double() @ vectors) * function(values)) @ vectors.t()


FUNCTIONS = {
    "inverse root": lambda s: (s.clamp_min(0) + 0.1).rsqrt(),
    "exponential": lambda s: torch.exp(-s),
    "inverse": lambda s: 1 / (s.clamp_min(0) + 0.1),
    "constant": lambda s: torch.full_like(s, 2.0),
    "identity": lambda s: s,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("rank", [None, 5])
def test_function_of_a_matrix_times_vectors(function, rank):
    A = matrix(60, rank)
    rows = torch.randn(3, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = applied(A, rows, function)
    found = krylov_function(lambda x: x @ A, rows, function)
    assert float((found - expected).norm() / expected.norm()) < 1e-8


def test_float32_is_accurate_to_float32():
    A = matrix(60, dtype=torch.float32)
    rows = torch.randn(2, 60, generator=torch.Generator().manual_seed(1))
    found = krylov_function(lambda x: x @ A, rows, FUNCTIONS["inverse root"])
    expected = applied(A, rows, FUNCTIONS["inverse root"])
    assert found.dtype == torch.float32
    assert float((found - expected).norm() / expected.norm()) < 1e-3


def test_exhausted_krylov_spaces_and_zero_vectors_are_exact():
    A = torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.float64))
    rows = torch.eye(4, dtype=torch.float64)
    rows[3] = 0
    calls = []

    def product(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x @ A

    found = krylov_function(product, rows, lambda s: s**3)
    assert torch.allclose(found, rows @ A @ A @ A, atol=1e-12)
    assert len(calls) == 1


def test_few_products_suffice_for_few_distinct_eigenvalues():
    A = torch.diag(torch.tensor([1.0, 3.0, 7.0], dtype=torch.float64).repeat(20))
    rows = torch.randn(1, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls = []

    def product(x: Tensor) -> Tensor:
        calls.append(1)
        return x @ A

    krylov_function(product, rows, lambda s: s.sqrt())
    assert len(calls) <= 4


def test_a_function_that_does_not_converge_is_an_error_that_says_what_to_do():
    A = torch.diag(torch.logspace(-12, 0, 400, dtype=torch.float64))
    rows = torch.ones(1, 400, dtype=torch.float64)
    with pytest.raises(NumericsError, match="damping"):
        krylov_function(lambda x: x @ A, rows, lambda s: (s.clamp_min(0) + 1e-12).rsqrt(), max_steps=20)
    with pytest.raises(InputError, match="vectors, dim"):
        krylov_function(lambda x: x @ A, rows[0], lambda s: s)
