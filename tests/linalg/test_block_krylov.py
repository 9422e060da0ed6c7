"""Block Krylov from passes over the rows, against dense singular value decompositions."""

import pytest
import torch
from torch import Tensor

from tangentlab.errors import InputError, NumericsError
from tangentlab.linalg import BlockKrylov


def decaying(rows: int, columns: int, power: float = 0.7) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix with singular values j^-power, these, and its left vectors as columns."""
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(rows, rows, dtype=torch.float64, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(columns, rows, dtype=torch.float64, generator=generator)).Q
    values = torch.arange(1, rows + 1, dtype=torch.float64) ** -power
    return left * values @ right.T, values, left


def passes(matrix: Tensor):
    return lambda block: (block @ matrix.T, block @ matrix.T @ matrix)


def start(count: int, columns: int) -> Tensor:
    return torch.randn(count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def searched(matrix: Tensor, block: int, steps: int) -> BlockKrylov:
    search = BlockKrylov(start(block, matrix.shape[1]))
    for _ in range(steps):
        search.advance(passes(matrix))
    return search


def test_leading_pairs_are_those_of_the_dense_decomposition():
    matrix, values, left = decaying(80, 200)
    found = searched(matrix, 12, 6).pairs(6)
    torch.testing.assert_close(found.values, values[:6].square(), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        (found.vectors @ left[:, :6]).abs(), torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_reported_residuals_are_true_ones_however_far_the_search_has_come(steps: int):
    matrix, *_ = decaying(60, 90)
    found = searched(matrix, 8, steps).pairs(5)
    kernel = matrix @ matrix.T
    truth = (found.vectors @ kernel - found.values[:, None] * found.vectors).norm(dim=1)
    torch.testing.assert_close(found.residual_norms, truth, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(5, dtype=torch.float64))


def test_a_search_that_has_reached_the_whole_range_is_exhausted_and_exact():
    left, values, _ = decaying(9, 40)
    search = BlockKrylov(start(6, 40))
    while not search.exhausted:
        search.advance(passes(left))
    assert search.steps <= 3
    torch.testing.assert_close(search.pairs(9).values, values.square(), rtol=1e-9, atol=0)
    with pytest.raises(InputError, match="exhausted"):
        search.advance(passes(left))


def test_a_matrix_of_small_rank_has_as_many_pairs_as_its_rank():
    matrix, values, left = decaying(30, 50)
    small = left[:, :4] * values[:4] @ left[:, :4].T @ matrix
    search = searched(small, 10, 1)
    while not search.exhausted:
        search.advance(passes(small))
    assert len(search.pairs(10).values) == 4


def test_a_search_goes_on_from_its_states():
    matrix, *_ = decaying(50, 70)
    whole, part = searched(matrix, 8, 4), searched(matrix, 8, 2)
    resumed = BlockKrylov.from_states([part.state(0), part.state(1)])
    for _ in range(2):
        resumed.advance(passes(matrix))
    torch.testing.assert_close(resumed.pairs(5).vectors, whole.pairs(5).vectors)


def test_nothing_is_known_before_the_second_pass():
    matrix, *_ = decaying(20, 30)
    assert searched(matrix, 4, 1).pairs(2) is None


def test_zero_starts_and_passes_that_are_not_numbers_are_refused():
    with pytest.raises(InputError, match="zero"):
        BlockKrylov(torch.zeros(3, 10))
    with pytest.raises(NumericsError, match="finite"):
        BlockKrylov(start(3, 10)).advance(
            lambda block: (block @ torch.full((10, 4), torch.nan, dtype=torch.float64), block)
        )
