"""A training that is saved, loaded into fresh objects and continued goes on bit for bit."""

import copy
import io

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError
from tangentlab.optim import EKFAC, KFAC, PRECONDITIONERS, SOAP, EKFACra, LevenbergMarquardt, NaturalSGD
from tests.optim.truth import backward, data, tiny_conv, tiny_mlp

SETTINGS: dict[str, dict] = {name: {"preconditioner": name} for name in PRECONDITIONERS}
SETTINGS |= {
    "ekfac-ra qr": {"preconditioner": "ekfac-ra", "period": 2, "refresh": "qr", "eigh_every": 3, "factor_decay": 0.5},
    "kfac eigh": {"preconditioner": "kfac", "period": 3, "inverse": "eigh", "factor_period": 2, "factor_decay": 0.5},
    "ekfac sua": {"preconditioner": "ekfac", "period": 3, "sua": True, "scale_decay": 0.9, "rebase": "transport"},
    "kfac sua": {"preconditioner": "kfac", "period": 3, "sua": True},
    "monte-carlo": {"preconditioner": "ekfac", "curvature": "monte-carlo", "likelihood": "classification"},
    "cg warm": {"preconditioner": "cg", "warm_start": 0.9, "iterations": 3},
    "late": {"preconditioner": "ekfac", "order": "precondition first", "period": 2},
}


def new(settings: dict) -> tuple[nn.Module, NaturalSGD, torch.optim.lr_scheduler.LRScheduler]:
    model = tiny_conv()
    optimizer = NaturalSGD(model, lr=0.05, damping=0.1, **settings)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler, steps: range) -> None:
    for step in steps:
        backward(model, *data(10, 2, 4, 4, seed=step))
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_resumed_training_continues_bit_for_bit(settings: dict) -> None:
    whole = new(settings)
    run(*whole, range(9))
    first = new(settings)
    run(*first, range(5))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    second = new(settings)
    for part, state in zip(second, torch.load(file, weights_only=True)):
        part.load_state_dict(state)
    run(*second, range(5, 9))
    for p, q in zip(whole[0].parameters(), second[0].parameters()):
        assert torch.equal(p, q)


def test_adaptive_damping_is_part_of_the_state() -> None:
    optimizer = NaturalSGD(tiny_mlp(), damping=LevenbergMarquardt(0.1))
    optimizer.preconditioner.damping.value = 0.7
    other = NaturalSGD(tiny_mlp(), damping=LevenbergMarquardt(0.1))
    other.load_state_dict(optimizer.state_dict())
    assert other.preconditioner.epsilon == 0.7


def test_what_was_found_out_about_the_model_is_part_of_the_state() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.fc(x).tanh() + nn.functional.linear(x, self.fc.weight))

    torch.manual_seed(0)
    model = Functional().double()
    precond = EKFACra(model)
    backward(model, *data(8, 4))
    with pytest.warns(RuntimeWarning, match="fc"):
        precond.step()
    state = copy.deepcopy(precond.state_dict())
    precond.remove()
    fresh = EKFACra(model)
    fresh.load_state_dict(state)
    assert [row.treated for row in fresh.report().rows] == [False, True]


def test_a_saved_state_is_not_changed_by_loading_and_going_on() -> None:
    model, optimizer, scheduler = new({"preconditioner": "ekfac-ra"})
    run(model, optimizer, scheduler, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    reference = copy.deepcopy(saved)
    other = new({"preconditioner": "ekfac-ra"})
    other[1].load_state_dict(saved)
    run(*other, range(3, 6))
    for name, block in reference["preconditioner"]["state"]["blocks"].items():
        assert torch.equal(block["scale"], saved["preconditioner"]["state"]["blocks"][name]["scale"])


def test_a_state_of_another_kind_or_model_is_refused() -> None:
    kfac, ekfac = KFAC(tiny_mlp()), EKFAC(tiny_mlp())
    with pytest.raises(InputError, match="belongs to 'kfac'"):
        ekfac.load_state_dict(kfac.state_dict())
    torch.manual_seed(0)
    other = EKFAC(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3)))
    with pytest.raises(InputError, match="other layers"):
        ekfac.load_state_dict(other.state_dict())
    plain = torch.optim.SGD(tiny_mlp().parameters(), lr=0.1)
    with pytest.raises(InputError, match="not saved by NaturalSGD"):
        NaturalSGD(tiny_mlp()).load_state_dict(plain.state_dict())


def test_soap_resumes_bit_for_bit() -> None:
    def soap() -> tuple[nn.Module, SOAP]:
        model = tiny_conv()
        return model, SOAP(model.parameters(), lr=0.01, period=2)

    def go(model: nn.Module, optimizer: SOAP, steps: range) -> None:
        for step in steps:
            backward(model, *data(10, 2, 4, 4, seed=step))
            optimizer.step()

    whole, first, second = soap(), soap(), soap()
    go(*whole, range(9))
    go(*first, range(5))
    for part, state in zip(second, copy.deepcopy([part.state_dict() for part in first])):
        part.load_state_dict(state)
    go(*second, range(5, 9))
    for p, q in zip(whole[0].parameters(), second[0].parameters()):
        assert torch.equal(p, q)
