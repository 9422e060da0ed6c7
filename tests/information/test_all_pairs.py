"""One pass over all pairs against written-out matrices, and influence functions against weights."""

import math

import pytest
import torch
from torch import Tensor

from tangentlab.information import (
    SMILE,
    Bilinear,
    Concatenated,
    DonskerVaradhan,
    InfoNCE,
    Objective,
    Separable,
    pair_table,
    score_matrix,
)
from tangentlab.information.checks import pareto_k
from tangentlab.information.scores import off_diagonal

CRITICS = [Separable(2, 3, (8,), 4), Bilinear(2, 3), Concatenated(2, 3, (8,))]


def examples(n: int = 40) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(n)
    return torch.randn(n, 2, generator=source), torch.randn(n, 3, generator=source)


def value_with_weights(matrix: Tensor, weights: Tensor, reads: str) -> Tensor:
    """The value when example i has the weight w_i and a pair of strangers w_i w_j."""
    n = len(matrix)
    apart = 1 - torch.eye(n, dtype=torch.float64)
    joint = (weights * matrix.diagonal()).sum() / weights.sum()
    if reads == "joint":
        return joint
    if reads == "infonce":
        rows = (matrix.exp() * weights).sum(1) / weights.sum()
        return joint - (weights * rows.log()).sum() / weights.sum()
    both = weights[:, None] * weights * apart
    partition = (both * matrix.exp()).sum() / (n * (n - 1)) * (n / weights.sum()) ** 2
    return joint - (partition.log() if reads == "dv" else partition - 1)


@pytest.mark.parametrize("critic", CRITICS, ids=lambda critic: type(critic).__name__)
@pytest.mark.parametrize("reads", ["dv", "nwj", "infonce", "joint"])
@torch.no_grad()
def test_the_value_is_that_of_the_whole_matrix(critic: torch.nn.Module, reads: str) -> None:
    x, z = examples()
    table = pair_table(critic, x, z, DonskerVaradhan())
    matrix = score_matrix(critic, x, z).double()
    expected = value_with_weights(matrix, torch.ones(40, dtype=torch.float64), reads)
    assert math.isclose(table.value(reads), expected.item(), abs_tol=1e-5)
    assert math.isclose(table.pointwise(reads).mean().item(), table.value(reads), abs_tol=1e-9)
    if reads == "infonce":
        assert math.isclose(table.value(reads), InfoNCE()(off_diagonal(matrix)).item(), abs_tol=1e-5)


@pytest.mark.parametrize("reads", ["dv", "nwj", "infonce", "joint"])
def test_the_influence_is_the_derivative_by_the_weight_of_an_example(reads: str) -> None:
    x, z = examples()
    critic = CRITICS[0]
    with torch.no_grad():
        matrix = score_matrix(critic, x, z).double()
        found = pair_table(critic, x, z, DonskerVaradhan()).influence(reads)
    weights = torch.ones(40, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value_with_weights(matrix, weights, reads), weights)
    torch.testing.assert_close(found, 40 * slope - (40 * slope).mean(), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_facts_of_the_tail_are_those_of_the_matrix() -> None:
    x, z = examples()
    table = pair_table(CRITICS[0], x, z, DonskerVaradhan())
    others = off_diagonal(score_matrix(CRITICS[0], x, z).double()).marginal.flatten()
    powers = others.exp()
    assert math.isclose(table.effective_size, (powers.sum() ** 2 / powers.square().sum()).item(), rel_tol=1e-5)
    torch.testing.assert_close(table.largest, others.sort(descending=True).values, atol=1e-5, rtol=1e-5)
    assert math.isclose(table.log_partition, powers.mean().log().item(), abs_tol=1e-5)


@torch.no_grad()
def test_a_part_of_the_pairs_meets_every_example_equally_often() -> None:
    x, z = examples(30)
    critic = CRITICS[2]
    table = pair_table(critic, x, z, DonskerVaradhan(), most=30 * 4)
    matrix = score_matrix(critic, x, z).double()
    chosen = torch.stack([matrix[i, [(i + shift) % 30 for shift in (1, 2, 3, 4)]] for i in range(30)])
    assert table.strangers == 4
    assert math.isclose(table.log_partition, chosen.exp().mean().log().item(), abs_tol=1e-5)
    torch.testing.assert_close(table.rows, chosen.exp().mean(1).log(), atol=1e-5, rtol=1e-5)
    columns = torch.stack(
        [matrix[[(j - shift) % 30 for shift in (1, 2, 3, 4)], j].exp().mean().log() for j in range(30)]
    )
    torch.testing.assert_close(table.columns, columns, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_smile_clips_strangers_only() -> None:
    x, z = examples()
    critic = lambda a, b: 20 * a[:, 0] * b[:, 0]  # noqa: E731
    table = pair_table(critic, x, z, SMILE(5.0))
    matrix = score_matrix(critic, x, z).double()
    clipped = off_diagonal(matrix).marginal.clamp(-5, 5)
    assert math.isclose(table.value("dv"), (matrix.diagonal().mean() - clipped.exp().mean().log()).item(), abs_tol=1e-4)


@torch.no_grad()
def test_scores_of_a_thousand_do_not_overflow() -> None:
    x, z = examples()
    table = pair_table(lambda a, b: 1000 * a[:, 0] * b[:, 0], x, z, DonskerVaradhan())
    assert math.isfinite(table.value("dv")) and table.influence("dv").isfinite().all()
    assert 0.999 <= table.effective_size < 3


def test_the_tail_index_of_pareto_numbers_is_found() -> None:
    source = torch.Generator().manual_seed(0)
    for k in (0.3, 0.9):
        values = torch.rand(200_000, generator=source, dtype=torch.float64).log() * -k  # e^T = u^-k
        largest = values.sort(descending=True).values[:2000]
        assert abs(pareto_k(largest, 200_000) - k) < 0.1
    assert pareto_k(torch.zeros(2000), 100_000) == 0.0


def test_an_objective_of_ones_own_has_to_say_what_it_maximizes() -> None:
    with pytest.raises(NotImplementedError):
        Objective()(off_diagonal(torch.zeros(3, 3)))
