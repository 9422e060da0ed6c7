"""Implicit products by rows and by automatic differentiation are the same, and never those of an earlier model."""

import pytest
import torch
from torch import Tensor, nn

from tangentlab import FIM, FIM_Empirical, FIM_MonteCarlo, PMatDense, PMatImplicit, PVector


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
    data = list(images(6).split(6 // batches))
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
    implicit = FIM(net, list(images(6).split(3)), PMatImplicit)
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


@pytest.mark.parametrize("change", ["weight", "data", "nothing"])
def test_the_graph_of_a_single_batch_is_kept_until_something_changes(change: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 60)).double()  # too many outputs for rows at first
    x = torch.randn(6, 4, dtype=torch.float64)
    v, calls = PVector.random_unit(net), []
    implicit = FIM(net, x, PMatImplicit)
    handle = net[0].register_forward_hook(lambda *_: calls.append(1))
    implicit.mv(v)
    before = len(calls)
    if change == "weight":
        net[0].weight.data.mul_(1.5)
    elif change == "data":
        x.mul_(1.5)
    found = implicit.mv(v).flat
    again = len(calls) - before
    handle.remove()
    torch.testing.assert_close(found, FIM(net, x, PMatDense).mv(v).flat)
    assert again == (1 if change == "nothing" else 2), "one forward for the jvp, and one for a new graph"
