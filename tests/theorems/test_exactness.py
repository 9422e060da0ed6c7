"""Situations in which approximations are exact: one datum, linear networks, no weight sharing."""

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.testing import truth
from tangentlab.testing.dense_truth import assert_close
from tangentlab.testing.small_models import grouped_convolution, mlp
from tests.theorems.setting import blocks_of

KRONECKER = {
    "KFAC": tl.PMatKFAC,
    "KFAC reduce": tl.PMatKFAC.with_options(sharing="reduce"),
    "EKFAC": tl.PMatEKFAC,
    "EKFAC reduce": tl.PMatEKFAC.with_options(sharing="reduce"),
}
each = pytest.mark.parametrize("kind", list(KRONECKER))
EXPANDED = ["KFAC", "EKFAC"]
REDUCED = ["KFAC reduce", "EKFAC reduce"]


class Averaged(nn.Module):
    """Linear layers at every position, the outputs averaged over positions."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4, bias=bias), nn.Linear(4, 2, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)).mean(1)


def gauss_newton(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """1/n J^T J, the regression Fisher."""
    rows = truth.jacobian(model, x).flatten(0, 1)
    return rows.t() @ rows / len(x)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def assert_exact_in_blocks(model: nn.Module, x: torch.Tensor, kind: str, likelihood: str, exact: torch.Tensor) -> None:
    F = tl.FIM(model, x, KRONECKER[kind], likelihood)
    assert_close(F.to_dense(), blocks_of(exact, F))


# ------------------------------------------------------------- one datum


@each
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_t5_one_datum_without_positions_makes_kronecker_products_exact(kind, likelihood, seed):
    model, x = mlp().double(), normal(1, 3)
    exact = truth.fisher(model, x) if likelihood == "classification" else gauss_newton(model, x)
    assert_exact_in_blocks(model, x, kind, likelihood, exact)


@each
def test_t5_equal_data_are_one_datum(kind, seed):
    model, x = mlp().double(), normal(1, 3).expand(5, 3)
    assert_exact_in_blocks(model, x, kind, "classification", truth.fisher(model, x))


def test_one_datum_with_one_output_makes_the_matrix_rank_one(seed):
    model, x = mlp().double(), normal(1, 3)
    F = tl.FIM(model, x, likelihood="regression", function=lambda out, batch: out[:, :1])
    row = truth.jacobian(model, x)[0, 0]
    assert_close(F.to_dense(), torch.outer(row, row))


# ------------------------------------------------------------- independence


@each
def test_t5_gradients_independent_of_inputs_make_kronecker_products_exact(kind, seed):
    """All pairs of (input of the first layer, gate of the second): E[aa^T x gg^T] is a product of expectations."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.first(x[:, :3]) * x[:, 3:]).sum(1, keepdim=True)

    inputs, gates = normal(5, 3), normal(6, 4) ** 2
    pairs = torch.cat([inputs.repeat_interleave(6, 0), gates.repeat(5, 1)], 1)
    model = Gated().double()
    assert_exact_in_blocks(model, pairs, kind, "regression", gauss_newton(model, pairs))
    dependent = pairs[:7]
    F = tl.FIM(model, dependent, tl.PMatKFAC, "regression")
    assert (F.to_dense() - gauss_newton(model, dependent)).norm() > 1e-2 * F.norm()


# ------------------------------------------------------------- linear networks


@each
@pytest.mark.parametrize("bias", [True, False])
def test_linear_networks_have_exact_kronecker_products_for_regression(kind, bias, seed):
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Linear(4, 3, bias=bias), nn.Linear(3, 2, bias=bias)).double()
    x = normal(6, 3)
    assert_exact_in_blocks(model, x, kind, "regression", gauss_newton(model, x))


@pytest.mark.parametrize("kind", EXPANDED)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_networks_with_a_loss_at_every_position_are_exact_with_expand(kind, bias, seed):
    model, x = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Linear(4, 2, bias=bias)).double(), normal(6, 5, 3)
    exact = gauss_newton(nn.Sequential(model, nn.Flatten()), x)
    assert_exact_in_blocks(model, x, kind, "regression", exact)


@pytest.mark.parametrize("kind", REDUCED)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_networks_with_averaged_positions_are_exact_with_reduce(kind, bias, seed):
    model, x = Averaged(bias).double(), normal(6, 5, 3)
    assert_exact_in_blocks(model, x, kind, "regression", gauss_newton(model, x))


def test_expand_is_not_exact_where_positions_are_averaged_and_reduce_is(seed):
    model, x = Averaged(bias=True).double(), normal(6, 5, 3)
    exact = gauss_newton(model, x)
    expand, reduce = (tl.FIM(model, x, KRONECKER[kind], "regression") for kind in ("KFAC", "KFAC reduce"))
    assert (expand.to_dense() - blocks_of(exact, expand)).norm() > 0.1 * exact.norm()
    assert (reduce.to_dense() - blocks_of(exact, reduce)).norm() < 1e-12 * exact.norm()


@each
def test_linear_convolutions_onto_one_pixel_are_exact(kind, seed):
    """One output position: a convolution is a linear layer on its only patch."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 2)).double()
    x = normal(6, 2, 3, 3)
    assert_exact_in_blocks(model, x, kind, "regression", gauss_newton(model, x))


@pytest.mark.parametrize("kind", EXPANDED)
def test_a_linear_convolution_with_a_loss_at_every_pixel_is_exact_with_expand(kind, seed):
    model = nn.Conv2d(2, 4, 2, groups=2, padding=1, stride=2).double()
    x = normal(5, 2, 3, 4)
    exact = gauss_newton(nn.Sequential(model, nn.Flatten()), x)
    assert_exact_in_blocks(model, x, kind, "regression", exact)


# ------------------------------------------------------------- no weight sharing


def test_without_weight_sharing_expand_and_reduce_are_the_same(seed):
    model, x = mlp().double(), normal(6, 3)
    for one, two in zip(EXPANDED, REDUCED):
        assert_close(tl.FIM(model, x, KRONECKER[one]).to_dense(), tl.FIM(model, x, KRONECKER[two]).to_dense())


def test_with_weight_sharing_expand_and_reduce_differ(seed):
    model, x = grouped_convolution().double(), normal(6, 2, 3, 4)
    one, two = (tl.FIM(model, x, KRONECKER[kind]).to_dense() for kind in ("KFAC", "KFAC reduce"))
    assert (one - two).norm() > 1e-2 * one.norm()


def test_one_layer_makes_the_block_diagonal_exact(seed):
    model, x = nn.Linear(3, 3).double(), normal(6, 3)
    assert_close(tl.FIM(model, x, tl.PMatBlockDiag).to_dense(), truth.fisher(model, x))


@each
def test_kronecker_products_of_biases_alone_are_exact(kind, seed):
    model, x = mlp().double(), normal(6, 3)
    F = tl.FIM(model, x, KRONECKER[kind], layers="*.bias")
    exact = truth.fisher(model, x)
    keep = [*range(12, 16), *range(28, 31)]
    assert_close(F.to_dense(), blocks_of(exact[keep][:, keep], F))
