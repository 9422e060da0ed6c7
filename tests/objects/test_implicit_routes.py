"""Implicit products by rows and by automatic differentiation are the same, and never those of an earlier model."""

import pytest
import torch
from torch import Tensor, nn

from tangentlab import (
    FIM,
    FIM_Empirical,
    FIM_MonteCarlo,
    Jacobian,
    PMatDense,
    PMatImplicit,
    PushForwardImplicit,
    PVector,
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
    torch.testing.assert_close(implicit._product_by_rows(flat, implicit._rows), truth)
    torch.testing.assert_close(implicit._product_by_autograd(flat), truth)
    torch.testing.assert_close(implicit.mv(unit(net)).flat, truth)


def test_kept_gradients_are_dropped_when_a_parameter_changes_in_place(net: nn.Module) -> None:
    net.eval()
    implicit, v = FIM(net, images(5), PMatImplicit), unit(net)
    for _ in range(8):
        before = implicit.mv(v).flat
    assert implicit._rows.kept is not None
    with torch.no_grad():
        net[0].weight.mul_(1.5)
    after = implicit.mv(v).flat
    torch.testing.assert_close(after, FIM(net, images(5), PMatDense).mv(v).flat)
    assert not torch.allclose(before, after)


def test_kept_gradients_are_dropped_when_a_buffer_or_the_data_change_in_place(net: nn.Module) -> None:
    net.eval()
    x = images(5)
    implicit, v = FIM(net, x, PMatImplicit), unit(net)
    for _ in range(8):
        implicit.mv(v)
    net[3].running_mean.add_(1.0)
    torch.testing.assert_close(implicit.mv(v).flat, FIM(net, x, PMatDense).mv(v).flat)
    x.mul_(2.0)
    torch.testing.assert_close(implicit.mv(v).flat, FIM(net, x, PMatDense).mv(v).flat)


def test_one_sample_products_take_rows_and_agree_with_the_dense_matrix_of_the_same_labels(net: nn.Module) -> None:
    net.eval()
    implicit = FIM_MonteCarlo(net, images(6), PMatImplicit, samples=1, generator=torch.Generator().manual_seed(4))
    dense = FIM_MonteCarlo(net, images(6), PMatDense, labels=implicit.labels)
    assert implicit._by_rows(1)
    torch.testing.assert_close(implicit.mv(unit(net)).flat, dense.mv(unit(net)).flat)
    torch.testing.assert_close(implicit.vTMv(unit(net)), dense.vTMv(unit(net)))


def test_many_products_that_cannot_keep_their_gradients_go_over_to_differentiation(net: nn.Module) -> None:
    net.eval()
    implicit = FIM(net, [(part,) for part in images(6).split(3)], PMatImplicit)
    implicit._cotangents = 9
    assert not implicit._may_keep and implicit._by_rows(1)  # cheaper than to verify forward mode for one product
    implicit._products = 1
    assert not implicit._by_rows(1)


def test_empirical_products_stream_over_batches(net: nn.Module) -> None:
    net.eval()
    x, y = images(7), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    data = list(zip(x.split(3), y.split(3), strict=True))
    implicit, dense = (FIM_Empirical(net, data, kind) for kind in (PMatImplicit, PMatDense))
    torch.testing.assert_close(implicit.mv(unit(net)).flat, dense.mv(unit(net)).flat)


def _swap(net: nn.Module, _: Tensor) -> None:
    net[1] = nn.Tanh()


def _hook(net: nn.Module, _: Tensor) -> None:
    net[1].register_forward_hook(lambda _, __, output: 3 * output)


CHANGES = {
    "layer": _swap,
    "hook": _hook,
    "buffer": lambda net, _: net[3].running_var.data.mul_(9),
    "array behind the data": lambda _, x: x.numpy().__imul__(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_kept_outlives_a_change_that_no_version_shows(net: nn.Module, change: str) -> None:
    net.eval()
    x, v = images(5), unit(net)
    implicit, jacobian = FIM(net, x, PMatImplicit), Jacobian(net, x, PushForwardImplicit)
    u = jacobian.mv(v)
    before = [implicit.mv(v).flat, jacobian.T.mv(u).flat, implicit.vTMv(v)]
    CHANGES[change](net, x)
    fresh, other = FIM(net, x, PMatImplicit), Jacobian(net, x, PushForwardImplicit)
    after = [implicit.mv(v).flat, jacobian.T.mv(u).flat, implicit.vTMv(v)]
    truth = [fresh.mv(v).flat, other.T.mv(u).flat, fresh.vTMv(v)]
    for old, found, expected in zip(before, after, truth, strict=True):
        torch.testing.assert_close(found, expected)
        assert not torch.allclose(old, found)
