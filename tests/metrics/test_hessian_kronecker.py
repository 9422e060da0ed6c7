"""Kronecker blocks of a Hessian exist where a linear layer meets every example once; anything else is refused by name."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.errors import StructureError

KINDS = [tl.PMatKFAC, tl.PMatKronSum]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).pow(4).flatten(1).sum(1)


def written_out(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The Hessian of the mean loss by torch.func, nothing of ours in it."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}

    def total(flat: Tensor) -> Tensor:
        parts = zip(model.named_parameters(), flat.split(list(sizes.values())))
        values = {name: part.reshape(p.shape) for (name, p), part in parts}
        losses = [loss(torch.func.functional_call(model, values, (x,)), y).sum() for x, y in data]
        return torch.stack(losses).sum() / sum(len(x) for x, _ in data)

    return torch.func.hessian(total)(torch.cat([p.detach().flatten() for p in model.parameters()]))


class Net(nn.Module):
    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, module in modules.items():
            self.add_module(name, module)
        self.double()


class UsedTwice(Net):
    def __init__(self) -> None:
        super().__init__(first=nn.Linear(3, 3), last=nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(torch.tanh(self.first(x)))))


class UsedTwiceForSomeData(UsedTwice):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.first(hidden)) if float(x.sum()) > 0 else hidden)


class Tied(Net):
    def __init__(self) -> None:
        super().__init__(first=nn.Linear(3, 3), second=nn.Linear(3, 3), last=nn.Linear(3, 2))
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class UsedOutsideToo(UsedTwice):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) + F.linear(x, self.first.weight))


class OnPositions(UsedTwice):
    """Examples (N, T, 3)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)).sum(1))


class OnPositionsOfOneExample(UsedTwice):
    """A batch of one whose positions look like examples to the layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x[0])).sum(0, keepdim=True))


class Convolution(Net):
    def __init__(self) -> None:
        super().__init__(first=nn.Conv1d(1, 2, 2), last=nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x[:, None])).flatten(1))


REFUSED: dict[str, tuple[type[Net], Any, str]] = {
    "used twice": (UsedTwice, (5, 3), "first.weight, first.bias"),
    "tied": (Tied, (5, 3), "first.weight"),
    "used outside of its module": (UsedOutsideToo, (5, 3), "first.weight, first.bias"),
    "on positions": (OnPositions, (5, 4, 3), "first.weight, first.bias"),
    "on positions of one example": (OnPositionsOfOneExample, (1, 4, 3), "first.weight, first.bias"),
    "convolution": (Convolution, (5, 3), "first.weight, first.bias"),
}


def batch(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    return x, torch.randn(shape[0], 2, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_meet_an_example_more_than_once_are_refused_by_name(name: str, kind: Any) -> None:
    make, shape, names = REFUSED[name]
    with pytest.raises(
        StructureError, match=f"The Hessian of {names} is not a sum of one Kronecker product per example"
    ):
        tl.Hessian(make(), batch(*shape), kind, loss=loss)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_is_used_twice_on_a_later_batch_is_refused(kind: Any) -> None:
    x, y = batch(6, 3)
    x[:3], x[3:] = -x[:3].abs(), x[3:].abs()
    with pytest.raises(StructureError, match="first.weight"):
        tl.Hessian(UsedTwiceForSomeData(), [(x[:3], y[:3]), (x[3:], y[3:])], kind, loss=loss)


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_of_the_network_keeps_its_exact_blocks(name: str) -> None:
    """The way out that the message names."""
    make, shape, _ = REFUSED[name]
    model, data = make(), batch(*shape)
    size = sum(p.numel() for p in model.last.parameters())  # type: ignore[union-attr]
    truth = written_out(model, [data])
    kept = tl.Hessian(model, data, tl.PMatKronSum, loss=loss, layers="last")
    torch.testing.assert_close(kept.to_dense(), truth[-size:, -size:])
    blocks = tl.Hessian(model, data, tl.PMatBlockDiag, loss=loss).to_dense()
    torch.testing.assert_close(blocks[-size:, -size:], truth[-size:, -size:])
    first = sum(p.numel() for p in model.first.parameters())  # type: ignore[union-attr]
    if name != "tied":  # whose weight belongs to two modules
        torch.testing.assert_close(blocks[:first, :first], truth[:first, :first])


@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_layers_that_are_used_once_have_their_exact_blocks(bias: bool, examples: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias)).double()
    data = batch(examples, 3)
    truth, found = written_out(model, [data]), tl.Hessian(model, data, tl.PMatKronSum, loss=loss).to_dense()
    size = 12 + 4 * bias
    torch.testing.assert_close(found[:size, :size], truth[:size, :size])
    torch.testing.assert_close(found[size:, size:], truth[size:, size:])
    assert not found[:size, size:].any()


class OnPairs(Net):
    def __init__(self) -> None:
        super().__init__(first=nn.Bilinear(3, 3, 2), last=nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x, x.square())))


class OnePosition(Net):
    def __init__(self) -> None:
        super().__init__(first=nn.Conv1d(1, 2, 3), last=nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x[:, None])).flatten(1))


@pytest.mark.parametrize("make", [OnPairs, OnePosition])
def test_any_layer_whose_rule_says_so_has_its_exact_block(make: type[Net]) -> None:
    model, data = make(), batch(4, 3)
    truth, found = written_out(model, [data]), tl.Hessian(model, data, tl.PMatKronSum, loss=loss).to_dense()
    size = sum(p.numel() for p in model.first.parameters())  # type: ignore[union-attr]
    torch.testing.assert_close(found[:size, :size], truth[:size, :size])
    torch.testing.assert_close(found[size:, size:], truth[size:, size:])
