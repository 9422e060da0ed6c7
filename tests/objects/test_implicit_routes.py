"""Implicit products by rows and by automatic differentiation are the same."""

import pytest
import torch
from torch import Tensor, nn

from tangentlab import (
    FIM,
    FIM_Empirical,
    FIM_MonteCarlo,
    PMatDense,
    PMatImplicit,
    PVector,
    memory_limit,
)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, groups=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.BatchNorm2d(5),
        nn.PReLU(),
        nn.Flatten(),
        nn.Linear(20, 5),
    ).double()


def images(count: int) -> Tensor:
    return torch.randn(count, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def unit(net: nn.Module) -> PVector:
    return PVector.random_unit(net, batch=2, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("batches", [1, 2])
def test_both_routes_give_the_dense_product(net: nn.Module, batches: int) -> None:
    net.eval()
    data = [(part,) for part in images(6).split(6 // batches)]
    truth = FIM(net, data, PMatDense).mv(unit(net)).flat
    implicit = FIM(net, data, PMatImplicit)
    flat = unit(net).flat
    torch.testing.assert_close(implicit._product_by_rows(flat), truth)
    torch.testing.assert_close(implicit._product_by_autograd(flat), truth)
    torch.testing.assert_close(implicit.mv(unit(net)).flat, truth)


def test_one_sample_products_take_rows_and_agree_with_the_dense_matrix_of_the_same_labels(net: nn.Module) -> None:
    net.eval()
    implicit = FIM_MonteCarlo(net, images(6), PMatImplicit, samples=1, generator=torch.Generator().manual_seed(4))
    dense = FIM_MonteCarlo(net, images(6), PMatDense, labels=implicit.labels)
    assert implicit._by_rows(0, 1)
    torch.testing.assert_close(implicit.mv(unit(net)).flat, dense.mv(unit(net)).flat)
    torch.testing.assert_close(implicit.vTMv(unit(net)), dense.vTMv(unit(net)))


def test_many_products_that_cannot_keep_their_gradients_go_over_to_differentiation(net: nn.Module) -> None:
    net.eval()
    implicit = FIM(net, [(part,) for part in images(6).split(3)], PMatImplicit)
    assert implicit._may_keep
    with memory_limit(1000):
        implicit = FIM(net, [(part,) for part in images(6).split(3)], PMatImplicit)
    implicit._cotangents = 9
    assert not implicit._may_keep and implicit._by_rows(0, 1)  # cheaper than to verify forward mode for one product
    assert not implicit._by_rows(1, 1)


def test_empirical_products_stream_over_batches(net: nn.Module) -> None:
    net.eval()
    x, y = images(7), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    data = list(zip(x.split(3), y.split(3), strict=True))
    implicit, dense = (FIM_Empirical(net, data, kind) for kind in (PMatImplicit, PMatDense))
    torch.testing.assert_close(implicit.mv(unit(net)).flat, dense.mv(unit(net)).flat)
