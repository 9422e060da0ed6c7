"""plan(..., what="kfac" | "ekfac" | "diag" | "jacobian"): the route that is announced is the one taken, and the operations are
those of its products, counted by hand."""

from typing import Any

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.engine.planner import calibrate
from tangentlab.layers import conv
from tangentlab.objects.pmat.side import ThinSide
from tests.engine.state import model_state

CASES: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "few examples": (nn.Linear(12, 2), (6,), "thin"),
    "one example too many": (nn.Linear(12, 2), (7,), "direct"),
    "the bias counts as an input": (nn.Linear(11, 2), (6,), "thin"),
    "and is missing where there is none": (nn.Linear(11, 2, bias=False), (6,), "direct"),
    "positions count like examples": (nn.Linear(12, 2), (3, 4), "direct"),
    "few positions": (nn.Linear(12, 2), (2, 3), "thin"),
    "a convolution": (nn.Conv2d(3, 2, 3, padding=1), (4, 3, 9, 9), "lags"),
    "a convolution with a stride": (nn.Conv2d(3, 2, 3, stride=2), (4, 3, 9, 9), "direct"),
    "a convolution in groups": (nn.Conv2d(4, 2, 3, groups=2), (4, 4, 9, 9), "direct"),
    "a convolution of single pixels": (nn.Conv2d(3, 2, 1), (4, 3, 9, 9), "direct"),
    "a wide convolution on a small image": (nn.Conv2d(3, 2, 3), (1, 3, 4, 4), "thin"),
    "a large kernel on a small image": (nn.Conv2d(1, 2, 2), (40, 1, 2, 2), "direct"),
}


def setting(name: str) -> tuple[nn.Module, torch.Tensor, str]:
    layer, shape, route = CASES[name]
    if isinstance(layer, nn.Linear):
        shape = (*shape, layer.in_features)
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten()).double(), torch.randn(shape, dtype=torch.float64), route


@pytest.mark.parametrize("what", ["kfac", "ekfac"])
@pytest.mark.parametrize("name", CASES)
def test_the_route_that_is_announced_is_the_one_taken(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, route = setting(name)
    lagged: list[Any] = []
    real = conv.lagged_covariance
    monkeypatch.setattr(conv, "lagged_covariance", lambda *args: lagged.append(args) or real(*args))
    assert tl.plan(model, x, what=what).rows[1].route == route
    (block,) = tl.FIM(model, x, tl.PMatKFAC, "regression").blocks.values()
    taken = "thin" if isinstance(block.sides[1], ThinSide) else "lags" if lagged else "direct"
    assert taken == route


def test_more_examples_than_those_shown_decide_the_route() -> None:
    model, x, _ = setting("few examples")
    assert [tl.plan(model, x, n=n, what="kfac").rows[1].route for n in (6, 7)] == ["thin", "direct"]


def operations(model: nn.Module, x: torch.Tensor, what: str, **options: Any) -> float:
    return tl.plan(model, x, what=what, **options).rows[1].operations


def test_operations_of_kronecker_factors_are_those_of_two_symmetric_products() -> None:
    """Half of 2 rows^2 per pair of a factor's rows: n c for the gradients, n for the inputs."""
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    assert operations(linear, x, "kfac", n=100) == 100 * 5**2 + 100 * 3 * 3**2
    assert operations(linear, x, "kfac", n=100, outputs=2) == 100 * 5**2 + 100 * 2 * 3**2
    assert operations(linear, x, "kfac", n=3) == 3 * 3 * 3**2  # thin: the inputs themselves are kept
    tokens, sentences = nn.Sequential(nn.Linear(5, 3), nn.Flatten()), torch.randn(2, 7, 5)
    assert operations(tokens, sentences, "kfac", n=10) == 70 * 5**2 + 70 * 21 * 3**2


def test_operations_of_grouped_and_lagged_convolutions() -> None:
    grouped = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(6 * 16, 1))
    assert operations(grouped, torch.randn(2, 4, 6, 6), "kfac", n=50) == 2 * 50 * 16 * (18**2 + 3**2)
    lagged = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 81, 1))
    lags, border = 13, 1 + 2 * 2 / 9 + 2 * 2 / 9
    assert operations(lagged, torch.randn(2, 3, 9, 9), "kfac", n=50) == pytest.approx(
        2 * lags * border * 50 * 81 * 3**2 + 50 * 81 * 2**2
    )


def test_operations_of_ekfac_add_two_eigendecompositions_and_the_second_moments() -> None:
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    kfac = operations(linear, x, "kfac", n=100)
    moments = 2 * 100 * (5 * 5 + 3 * 3**2 + 3 * 5)
    assert operations(linear, x, "ekfac", n=100) == kfac + 9 * (3**3 + 5**3) + moments
    thin = 2 * 2 * (5 * 2 + 3 * 3**2 + 3 * 2)
    assert operations(linear, x, "ekfac", n=2) == operations(linear, x, "kfac", n=2) + 9 * (3**3 + 2**3) + thin
    tokens, sentences = nn.Sequential(nn.Linear(5, 3), nn.Flatten()), torch.randn(2, 7, 5)
    rotated = 7 * (5 * 5 + 21 * 3 * (3 + 5))  # both sides into the basis, then the sum over positions
    written = 21 * 3 * (7 * 5 + 5 * 5 + 3 * 5)  # the sum over positions, then into the basis
    expected = operations(tokens, sentences, "kfac", n=10) + 9 * (3**3 + 5**3) + 2 * 10 * min(rotated, written)
    assert operations(tokens, sentences, "ekfac", n=10) == expected


def test_memory_of_kronecker_factors_is_that_of_two_squares() -> None:
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    for what in ("kfac", "ekfac"):
        table = tl.plan(linear, x, n=100, what=what)
        assert table.result_bytes == table.rows[1].memory == 4 * (3**2 + 6**2)
    assert tl.FIM(linear, torch.randn(100, 5), tl.PMatKFAC, "regression").nbytes() == 4 * (3**2 + 6**2)


def test_operations_of_rows_and_of_squares() -> None:
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    assert operations(linear, x, "jacobian", n=100) == 2 * 3 * 100 * 3 * 5
    assert operations(linear, x, "diag", n=100) == 2 * 100 * 3 * (5 + 3)
    assert tl.plan(linear, x, n=100, what="jacobian").result_bytes == 4 * 3 * 100 * 18
    assert tl.plan(linear, x, n=100, what="diag").result_bytes == 4 * 18
    norm = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3))
    assert [row.route for row in tl.plan(norm, x, what="kfac").rows[1:]] == ["rows", "rows", "thin"]


def test_passes_through_the_network_are_counted_for_the_forward_and_every_output() -> None:
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    table = tl.plan(linear, x, n=100, what="kfac", outputs=2)
    assert table.rows[0].operations == 2 * 3 * 5 * 100 * (1 + 2)
    assert table.operations == sum(row.operations for row in table.rows)
    assert table.memory == table.result_bytes + max(row.memory for row in table.rows)


@pytest.mark.parametrize("what", ["ntk", "kfac", "diag"])
def test_a_plan_leaves_the_random_state_and_the_model_alone(what: str) -> None:
    model, x, _ = setting("few examples")
    calibrate.cache_clear()
    before = model_state(model)
    tl.plan(model, x, what=what)
    assert model_state(model) == before
