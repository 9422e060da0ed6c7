"""The first steps of networks whose bases cost too much at first: running diagonals, then what was asked for."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.optim import EKFAC, KFAC, EKFACra, NaturalSGD, make_preconditioner
from tangentlab.optim import start as start_module
from tangentlab.optim.start import DECAY, EARLY
from tests.optim.truth import backward, data, tiny_conv, tiny_mlp

KINDS = [KFAC, EKFAC, EKFACra]
X, Y = data(8, 4)


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases cost too much, whatever the network."""
    monkeypatch.setattr(start_module, "LEAST", 0.0)
    monkeypatch.setattr(start_module, "SHARE", 0.0)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def train(model: nn.Module, precond: Any, steps: int, lr: float = 0.05) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(float(backward(model, X, Y)))
        precond.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= lr * parameter.grad
    return losses


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["update first", "precondition first"])
def test_until_the_first_bases_gradients_are_divided_by_a_running_diagonal(kind: Any, order: str, costly: None) -> None:
    model = tiny_mlp()
    precond = kind(model, damping=0.03, order=order)
    scale: list[Tensor] | None = None
    for _ in range(EARLY):
        backward(model, X, Y)
        plain = gradients(model)
        squares = [len(X) * g.square() for g in plain]
        before = scale
        scale = squares if scale is None else [DECAY * s + (1 - DECAY) * q for s, q in zip(scale, squares, strict=True)]
        used = scale if order == "update first" or before is None else before
        precond.step()
        for found, g, s in zip(gradients(model), plain, used, strict=True):
            torch.testing.assert_close(found, g / (s + 0.03))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    assert "until the first bases" in str(precond.report())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["update first", "precondition first"])
def test_the_first_renewal_from_step_ten_on_is_that_of_a_new_preconditioner(
    kind: Any, order: str, costly: None
) -> None:
    model = tiny_mlp()
    precond = kind(model, damping=0.03, order=order)
    train(model, precond, 16)
    assert precond.starting
    twin = tiny_mlp()
    twin.load_state_dict(model.state_dict())
    fresh = kind(twin, damping=0.03, order=order, gentle_start=False)
    for one, own in ((model, precond), (twin, fresh)):
        backward(one, X, Y)
        own.step()
    assert not precond.starting
    for found, true in zip(gradients(model), gradients(twin), strict=True):
        torch.testing.assert_close(found, true)


@pytest.mark.parametrize("kind", KINDS)
def test_small_networks_and_other_schedules_have_their_bases_from_the_first_step_on(kind: Any) -> None:
    for options in ({}, {"warm_up": False}, {"period": EARLY}, {"gentle_start": False}):
        model = tiny_mlp()
        precond = kind(model, **options)
        train(model, precond, 1)
        assert not precond.starting


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"warm_up": False}, {"period": EARLY}, {"gentle_start": False}])
def test_nothing_is_put_off_where_that_is_not_asked_for(kind: Any, options: dict[str, Any], costly: None) -> None:
    precond = kind(model := tiny_mlp(), **options)
    train(model, precond, 1)
    assert not precond.starting


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [3, 12, 17])
def test_resuming_goes_on_bit_for_bit(kind: Any, stop: int, costly: None) -> None:
    model = tiny_mlp()
    precond = kind(model, damping=0.03)
    train(model, precond, stop)
    twin = tiny_mlp(seed=5)
    twin.load_state_dict(model.state_dict())
    again = kind(twin, damping=0.03)
    again.load_state_dict(precond.state_dict())
    assert train(model, precond, 20) == train(twin, again, 20)


@pytest.mark.parametrize("name", ["kfac", "ekfac", "ekfac-ra"])
def test_a_training_that_begins_gently_learns_as_one_that_does_not(name: str, costly: None) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    ends = []
    for gentle in (True, False):
        model = tiny_mlp(dtype=torch.float32)
        optimizer = NaturalSGD(model, lr=0.1, preconditioner=name, damping=0.1, period=20, gentle_start=gentle)
        for _ in range(60):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        ends.append(float(loss.detach()))
    assert ends[0] < ends[1] + 0.05


def test_what_the_first_bases_cost_is_counted_per_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 filters of 2 x 3 x 3 entries with a bias at 4 positions, 3 outputs of 12 entries with a bias: by hand."""
    x, y = data(8, 2, 4, 4)
    measured = 8 * 4 * (3**2 + 19**2) + 8 * (3**2 + 13**2)
    decomposed = 3**3 + 19**3 + 3**3 + 13**3
    for kind, per_cube in ((KFAC, 2), (EKFACra, 9)):
        for more, starting in ((-1, True), (0, False)):
            monkeypatch.setattr(start_module, "LEAST", measured + per_cube * decomposed + more)
            monkeypatch.setattr(start_module, "SHARE", 0.0)
            precond = kind(model := tiny_conv())
            backward(model, x, y)
            precond.step()
            assert precond.starting == starting


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_layer_that_is_not_called_when_bases_are_made_gets_its_own_at_its_next_call(
    kind: Any, resumed: bool, costly: None
) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.used = nn.Linear(4, 5), nn.Linear(4, 5), True

        def forward(self, x: Tensor) -> Tensor:
            return (self.one(x).tanh() + self.two(x).tanh() if self.used else self.one(x).tanh())[:, :3]

    torch.manual_seed(0)
    model = Branches()
    precond, x, y = kind(model, damping=0.03, period=64), torch.randn(8, 4), torch.arange(8) % 3
    for step in range(18):
        model.used = step != 16
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if step == 17 and resumed:
            state = precond.state_dict()
            precond.remove()
            precond = kind(model, damping=0.03, period=64)
            precond.load_state_dict(state)
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
        plain = None if model.two.weight.grad is None else model.two.weight.grad.clone()
        precond.step()
        assert precond.starting == (step < 16)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0 if parameter.grad is None else 0.01 * parameter.grad
    assert plain is not None and not torch.equal(model.two.weight.grad, plain)


class Growing(nn.Module):
    """A middle layer that joins later, as in training by layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.grown = False
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        return self.last(self.middle(h).tanh() if self.grown else h)


@pytest.mark.parametrize("variant", ["kfac", "ekfac", "diagonal", "block-diagonal"])
def test_the_first_step_of_a_layer_that_joins_late_is_that_of_a_layer_from_the_start(variant: str) -> None:
    steps = []
    for late in (True, False):
        model = Growing()
        precond = make_preconditioner(variant, model, damping=0.1, order="precondition first")
        for step in range(3 if late else 1):
            model.grown = not late or step == 2
            model.zero_grad()
            x, y = data(12, 4, seed=7 if model.grown else step)
            F.cross_entropy(model(x), y).backward()
            precond.step()
        steps.append(model.middle.weight.grad)
    torch.testing.assert_close(*steps, rtol=1e-10, atol=0)
