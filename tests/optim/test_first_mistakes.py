"""What a newcomer gets wrong first: each mistake is told, once, and no proper loop is told anything."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tangentlab.errors import InputError, ModelError
from tangentlab.optim import (
    EKFAC,
    KFAC,
    PRECONDITIONERS,
    SOAP,
    BlockDiagonal,
    ConjugateGradient,
    Diagonal,
    EKFACra,
    LevenbergMarquardt,
    NaturalSGD,
    make_preconditioner,
)
from tests.optim.truth import backward, data, flat_gradient, tiny_mlp

NET = nn.Linear(3, 2)
OWN = [KFAC, EKFAC, EKFACra, Diagonal, BlockDiagonal, ConjugateGradient]


# ---------------------------------------------------------------- construction


@pytest.mark.parametrize("make", [NaturalSGD, *OWN])
@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (lambda: NET.parameters(), r"\(model\), not \w+\(model.parameters\(\)\); got generator"),
        (lambda: list(NET.parameters()), r"\(model\), not \w+\(model.parameters\(\)\); got list"),
        (lambda: [{"params": list(NET.parameters())}], r"\(model\), not \w+\(model.parameters\(\)\); got list"),
        (lambda: NET.weight, r"\(model\), not \w+\(model.parameters\(\)\); got Parameter"),
        (lambda: torch.optim.SGD(NET.parameters(), lr=0.1), r"\(model\) first, then attach\(optimizer\); got SGD"),
        (lambda: "model", r"\(model\); got str"),
        (lambda: None, r"\(model\); got NoneType"),
    ],
)
def test_what_is_no_model_is_refused_with_the_right_call(make, wrong, advice: str) -> None:
    with pytest.raises(InputError, match=f"{make.__name__}{advice}"):
        make(wrong())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: KFAC(NET, dampening=0.1), "KFAC has no option 'dampening' (did you mean 'damping'?)"),
        (lambda: EKFAC(NET, periode=3), "EKFAC has no option 'periode' (did you mean 'period'?)"),
        (lambda: EKFACra(NET, scale_dacay=0.5), "EKFACra has no option 'scale_dacay' (did you mean 'scale_decay'?)"),
        (lambda: Diagonal(NET, runing=True), "Diagonal has no option 'runing' (did you mean 'running'?)"),
        (lambda: BlockDiagonal(NET, blocklimit=9), "(did you mean 'block_limit'?)"),
        (lambda: ConjugateGradient(NET, iteration=9), "(did you mean 'iterations'?)"),
        (lambda: KFAC(NET, eps=0.1), "KFAC has no option 'eps' (did you mean 'damping'?)"),
        (lambda: KFAC(NET, regul=0.1), "(did you mean 'damping'?)"),
        (lambda: KFAC(NET, zebra=1), "KFAC has no option 'zebra'. Its options are: period, damping_form"),
        (lambda: KFAC(NET, dampening=1, zebra=2), "'dampening' (did you mean 'damping'?) and 'zebra'. Its"),
        (lambda: KFAC(NET, block=1), "KFAC has no option 'block'"),
        (lambda: KFAC(NET, rebase="keep"), "rebase has no meaning for 'kfac'"),
        (lambda: NaturalSGD(NET, learning_rate=0.1), "NaturalSGD has no option 'learning_rate' (did you mean 'lr'?)"),
        (lambda: NaturalSGD(NET, momentun=0.1), "(did you mean 'momentum'?)"),
        (lambda: NaturalSGD(NET, preconditioner="cg", dampign=0.1), "(did you mean 'damping'?)"),
        (lambda: NaturalSGD(NET, preconditioner="diagonal-ra", dampign=0.1), "(did you mean 'damping'?)"),
        (lambda: make_preconditioner("ekfac", NET, dampign=0.1), "EKFAC has no option 'dampign'"),
        (lambda: make_preconditioner("ekfack", NET), "Unknown preconditioner 'ekfack' (did you mean 'ekfac'?)"),
        (lambda: LevenbergMarquardt(0.1, perod=3), "LevenbergMarquardt has no option 'perod' (did you mean 'period'?)"),
        (lambda: SOAP(NET.parameters(), learning_rate=0.1), "SOAP has no option 'learning_rate' (did you mean 'lr'?)"),
        (lambda: SOAP(NET), "SOAP(model.parameters())"),
        (lambda: KFAC(NET, 0.1), "Options of KFAC have names: KFAC(model, damping=0.1)"),
        (lambda: NaturalSGD(NET, 0.1), "The second argument is for parameters or their groups, got 0.1; is it lr=0.1?"),
        (lambda: NaturalSGD(NET, lr="0.1"), "lr must be a number that is not negative, got '0.1'"),
        (lambda: NaturalSGD(NET, momentum=None), "momentum must be a number that is not negative, got None"),
        (lambda: NaturalSGD(NET, weight_decay=float("nan")), "weight_decay must be a number that is not negative"),
        (lambda: NaturalSGD(nn.Flatten()), "no trainable parameter"),
        (lambda: NaturalSGD(NET, []), "no trainable parameter"),
    ],
)
def test_options_that_do_not_exist_are_refused_with_the_nearest_that_do(make, told: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert told in str(caught.value)
    assert not NET._forward_hooks and not NET._forward_pre_hooks


def test_an_idle_option_is_not_suggested() -> None:
    with pytest.raises(InputError) as caught:
        KFAC(NET, scale_deca=0.5)
    assert "did you mean 'scale_decay'" not in str(caught.value)


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_preconditioners_can_be_copied_and_have_every_option_that_they_announce(name: str) -> None:
    model = tiny_mlp()
    precond = make_preconditioner(name, model, damping=0.5)
    assert copy.copy(precond).damping == 0.5
    precond.remove()


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, torch.tensor(3), lambda: None])
def test_a_batch_size_that_is_none_is_refused(wrong) -> None:
    model = tiny_mlp()
    precond = KFAC(model)
    backward(model, *data(12, 4))
    with pytest.raises(InputError, match="batch_size must be a positive whole number"):
        precond.step(wrong)
    assert precond.step()


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, other = tiny_mlp(), copy.deepcopy(tiny_mlp())
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)
    told = "None of the parameters of this SGD is preconditioned"
    with pytest.raises(InputError, match=told):
        KFAC(model).attach(stranger)
    with pytest.raises(InputError, match=told):
        KFAC(model, kl_clip=1e-3, lr=stranger)
    with pytest.raises(InputError, match="None of the parameters of this NaturalSGD is preconditioned"):
        NaturalSGD(model, other.parameters())
    with pytest.raises(InputError, match="belongs to another model"):
        NaturalSGD(model, preconditioner=KFAC(other))


def test_an_optimizer_of_some_of_the_parameters_and_of_others_besides_is_welcome() -> None:
    model, temperature = tiny_mlp(), nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = NaturalSGD(model, [*model[2].parameters(), temperature], lr=0.1)
    x, y = data(12, 4)
    F.cross_entropy(model(x) * temperature, y).backward()
    before = temperature.item(), model[0].weight.clone()
    optimizer.step()
    assert temperature.item() != before[0] and torch.equal(model[0].weight, before[1])


# ---------------------------------------------------------------- the loop


@contextmanager
def told(*parts: str) -> Iterator[None]:
    """Exactly one warning for every part, and no other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    messages = [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
    assert len(messages) == len(parts), messages
    for message, part in zip(messages, parts, strict=True):
        assert part in message
    assert all(one.filename == __file__ for one in caught if issubclass(one.category, RuntimeWarning))


def loop(steps: int, once: Callable[[int], None]) -> None:
    for step in range(steps):
        once(step)


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_weights_that_never_move_are_told_once(name: str) -> None:
    model = tiny_mlp()
    precond = make_preconditioner(name, model)

    def once(step: int) -> None:
        backward(model, *data(12, 4, seed=step))
        precond.step()

    with told():
        loop(10, once)
    with told("In 10 steps no weight has changed: a preconditioner changes gradients only"):
        loop(30, once)


@pytest.mark.parametrize("update", ["optimizer", "data"])
def test_an_optimizer_that_steps_too_early_is_told_once(update: str) -> None:
    model = tiny_mlp()
    precond, optimizer = KFAC(model), torch.optim.SGD(model.parameters(), lr=0.1)

    def once(step: int) -> None:
        backward(model, *data(12, 4, seed=step))
        if update == "optimizer":
            optimizer.step()
        else:
            for p in model.parameters():
                p.data = p.data - 0.1 * p.grad
        precond.step()

    with told("the weights changed between loss.backward() and the preconditioner's step"):
        loop(40, once)


def by_optimizer(lr: float, attach: str = "", late: int = -1) -> Callable[[nn.Module], Callable[[int], None]]:
    """A proper loop with an optimizer of torch behind the preconditioner."""

    def make(model: nn.Module) -> Callable[[int], None]:
        precond, optimizer = KFAC(model), torch.optim.SGD(model.parameters(), lr=lr)
        if attach == "first":
            precond.attach(optimizer)

        def once(step: int) -> None:
            if attach == "later" and step == late:
                precond.attach(optimizer)
            optimizer.zero_grad()
            F.cross_entropy(model(data(12, 4, seed=step)[0]), data(12, 4, seed=step)[1]).backward()
            if attach == "" or (attach == "later" and step < late):
                precond.step()
            optimizer.step()

        return once

    return make


def accumulating(model: nn.Module) -> Callable[[int], None]:
    precond, optimizer = EKFAC(model), torch.optim.Adam(model.parameters())

    def once(step: int) -> None:
        x, y = data(12, 4, seed=step)
        for part in range(0, 12, 3):
            (F.cross_entropy(model(x[part : part + 3]), y[part : part + 3]) / 4).backward()
        precond.step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)

    return once


def written_by_hand(model: nn.Module) -> Callable[[int], None]:
    precond = EKFACra(model)

    def once(step: int) -> None:
        x, y = data(12, 4, seed=step)
        loss = F.cross_entropy(model(x), y)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        precond.step()
        for p in model.parameters():
            p.data -= 0.01 * p.grad

    return once


def sharpness_aware(model: nn.Module) -> Callable[[int], None]:
    """Weights are moved and put back between the passes, and moved by the optimizer after the step."""
    precond, optimizer = KFAC(model), torch.optim.SGD(model.parameters(), lr=0.1)

    def once(step: int) -> None:
        x, y = data(12, 4, seed=step)
        with precond.paused():
            backward(model, x, y)
        moves = [0.01 * p.grad for p in model.parameters()]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p.add_(move)
        backward(model, x, y)
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p.sub_(move)
        precond.step()
        optimizer.step()

    return once


def penalized(model: nn.Module) -> Callable[[int], None]:
    """A penalty that has a backward pass of its own, before that of the loss."""
    precond, optimizer = KFAC(model), torch.optim.SGD(model.parameters(), lr=0.1)

    def once(step: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        (1e-3 * sum(p.square().sum() for p in model.parameters())).backward()
        x, y = data(12, 4, seed=step)
        F.cross_entropy(model(x), y).backward()
        precond.step()
        optimizer.step()

    return once


def evaluated_in_between(model: nn.Module) -> Callable[[int], None]:
    optimizer = NaturalSGD(model, lr=0.0)

    def once(step: int) -> None:
        model.eval()
        model(data(12, 4)[0]).sum()  # no backward
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data(12, 4, seed=step)[0]), data(12, 4, seed=step)[1]).backward()
        optimizer.step()

    return once


PROPER = {
    "an optimizer": by_optimizer(0.1),
    "a learning rate of zero": by_optimizer(0.0),
    "attached": by_optimizer(0.0, "first"),
    "attached later": by_optimizer(0.1, "later", 8),
    "accumulation": accumulating,
    "by hand": written_by_hand,
    "sharpness-aware": sharpness_aware,
    "a penalty": penalized,
    "evaluation": evaluated_in_between,
}


@pytest.mark.parametrize("name", PROPER)
def test_proper_loops_are_told_nothing(name: str) -> None:
    model = nn.Sequential(*tiny_mlp(), nn.Dropout(0.1)).double()
    once = PROPER[name](model)
    with told():
        loop(25, once)


def test_the_comparison_of_weights_ends_with_the_first_step_of_an_optimizer() -> None:
    model = tiny_mlp()
    precond, optimizer = KFAC(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        assert precond.watch.comparing
        backward(model, *data(12, 4, seed=step))
        precond.step()
        optimizer.step()
    assert not precond.watch.comparing and precond.watch._left is None


@pytest.mark.parametrize("make", [lambda m: NaturalSGD(m, lr=0.01), lambda m: NaturalSGD(m, preconditioner="kfac")])
def test_gradients_that_are_not_cleared_are_told_once(make) -> None:
    model = tiny_mlp()
    optimizer = make(model)

    def once(step: int) -> None:
        x, y = data(12, 4, seed=step)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    with told("zero_grad() was not called since the last step"):
        loop(6, once)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step_are_an_error(to_none: bool) -> None:
    model = tiny_mlp()
    optimizer = NaturalSGD(model)
    x, y = data(12, 4)
    F.cross_entropy(model(x), y).backward()
    optimizer.zero_grad(set_to_none=to_none)
    with pytest.raises(ModelError, match=r"zero_grad\(\) was called between backward and this step"):
        optimizer.step()
    backward(model, x, y)
    optimizer.step()
    assert optimizer.preconditioner.steps == 1


@pytest.mark.parametrize("when", ["before the forward", "before the backward"])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", ["kfac", "ekfac", "diagonal", "cg"])
def test_passes_whose_gradients_are_cleared_do_not_count(name: str, to_none: bool, when: str) -> None:
    found = []
    for disturbed in (False, True):
        model, (x, y) = tiny_mlp(), data(12, 4)
        precond = make_preconditioner(name, model)
        if disturbed:
            F.cross_entropy(model(3 * x), y, reduction="sum").backward()  # somebody else's loss
            if when == "before the forward":
                model.zero_grad(set_to_none=to_none)
        loss = F.cross_entropy(model(x), y)
        if when == "before the backward":
            model.zero_grad(set_to_none=to_none)
        loss.backward()
        precond.step()
        assert precond.report().share == 1.0
        found.append(flat_gradient(model))
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(
    ("layer", "depends"),
    [
        (nn.Dropout(0.5), True),
        (nn.BatchNorm1d(3), True),
        (nn.Dropout(0.0), False),
        (nn.BatchNorm1d(3, track_running_stats=False), False),
        (nn.Identity(), False),
    ],
)
def test_a_model_in_eval_mode_is_told_once_if_it_matters(layer: nn.Module, depends: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 3), layer, nn.Linear(3, 3)).double().eval()
    optimizer = NaturalSGD(model, lr=0.01)

    def once(step: int) -> None:
        backward(model, *data(12, 4, seed=step))
        optimizer.step()

    with told(*(["The model is in eval mode"] if depends else [])):
        loop(5, once)


def test_hooks_that_are_off_are_named() -> None:
    model = tiny_mlp()
    optimizer = NaturalSGD(model)
    optimizer.preconditioner.remove()
    backward(model, *data(12, 4))
    with pytest.raises(ModelError, match=r"taken off by remove\(\) or paused\(\)"):
        optimizer.step()


def test_a_second_step_on_one_backward_is_an_error() -> None:
    model = tiny_mlp()
    precond = KFAC(model)
    backward(model, *data(12, 4))
    precond.step()
    with pytest.raises(ModelError, match="No forward and backward pass"):
        precond.step()


# ---------------------------------------------------------------- little to precondition


class Mostly(nn.Module):
    """A large part without a closed form, and a small linear layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body: nn.Module = {"rnn": nn.GRU, "bare": nn.Linear, "batch norm": nn.Linear}[kind](8, 8)
        if kind == "bare":
            self.body = nn.Identity()
            self.table = nn.Parameter(torch.randn(8, 8))
        if kind == "batch norm":
            self.body = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1 if kind == "batch norm" else 2)

    def forward(self, x):
        if self.kind == "bare":
            x = x @ self.table
        out = self.body(x)
        return self.head(out[0] if self.kind == "rnn" else out)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (
            "rnn",
            [
                "kfac preconditions 4.0% of the parameters",
                "body.weight_ih_l0 (192): no closed form is registered for GRU",
            ],
        ),
        ("bare", ["kfac preconditions 22.0%", "table (64): "]),
        ("batch norm", ["kfac preconditions 36.0%", "body.weight (8): batch statistics couple the examples"]),
    ],
)
def test_less_than_half_of_the_parameters_is_told_once_with_reasons(kind: str, parts: list[str]) -> None:
    torch.manual_seed(0)
    model = Mostly(kind)
    with pytest.warns(RuntimeWarning) as caught:
        optimizer = NaturalSGD(model, preconditioner="kfac", lr=0.01)
    (message,) = [str(one.message) for one in caught]
    assert all(part in message for part in parts), message
    assert caught[0].filename == __file__
    with told():
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 8) if kind != "rnn" else torch.randn(6, 3, 8)).square().mean().backward()
            optimizer.step()


def test_the_largest_come_first_and_the_rest_is_counted() -> None:
    model = nn.ModuleDict({f"r{width}": nn.GRU(width, width) for width in (2, 3, 4)} | {"head": nn.Linear(2, 2)})
    with pytest.warns(RuntimeWarning, match=r"r4.weight_ih_l0 \(48\).*r3.weight_hh_l0 \(27\).*and 7 more"):
        KFAC(model)


def test_half_and_more_are_told_nothing() -> None:
    with told():
        KFAC(nn.Sequential(nn.Linear(8, 8), nn.GRU(2, 2)))
        KFAC(nn.Sequential(nn.Linear(8, 8), nn.GRU(20, 20)), layers="0")


def test_what_turns_out_to_be_little_is_told_after_the_first_step() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Linear(4, 30), nn.Linear(30, 3)

        def forward(self, x):
            return self.small(F.linear(x, self.large.weight, self.large.bias))

    model = Functional().double()
    optimizer = NaturalSGD(model)
    backward(model, *data(12, 4))
    with told("Not preconditioned: large: its module was never called", "ekfac-ra preconditions 38.3%"):
        optimizer.step()
