"""A layer is preconditioned only while its observed calls explain what autograd brings to its parameters."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tangentlab.optim import EKFAC, KFAC, PRECONDITIONERS, Diagonal, EKFACra, NaturalSGD, make_preconditioner
from tangentlab.optim import verification as module_under_test
from tangentlab.optim.verification import Verification
from tangentlab.parallel.processes import Processes
from tests.optim.truth import backward, data, flat_gradient, tiny_conv, tiny_mlp

linear, original_forward = F.linear, nn.Linear.forward
MEASURING = [name for name in PRECONDITIONERS if name != "diagonal-ra"]  # which reads nothing but gradients
REASON = "the calls of its module do not explain its gradient"


def treated_after(
    model: nn.Module, make: Callable[..., object], loss: Callable[[], Tensor], steps: int = 1
) -> set[str]:
    """Names of the layers that are preconditioned after some steps of a constant loss; the rest must be warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        precond = make(model)
        for _ in range(steps):
            model.zero_grad()
            loss().backward()
            before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            precond.step()
    told = " ".join(str(one.message) for one in caught)
    rows = {row.names: row for row in precond.report().rows}
    for names, row in rows.items():
        if not row.treated:
            assert names[0].rpartition(".")[0] in told and row.reason in told
            assert all(torch.equal(before[name], model.get_parameter(name).grad) for name in names if name in before)
    precond.remove()
    return {names[0].rpartition(".")[0] for names, row in rows.items() if row.treated}


# ---------------------------------------------------------------- functions that are not what they seem


def doubled(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return linear(x, 2 * w, b)


def halved(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return 0.5 * linear(x, w, b)


def rolled(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return linear(x.roll(1, 0), w, b)


def rounded(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return linear(x + ((x * 8).round() / 8 - x).detach(), w, b)


def masked(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return linear(x, w * (torch.arange(w.shape[1]) > 0), b)


PATCHES = [doubled, halved, rolled, rounded, masked]


class Mode(TorchFunctionMode):
    """Replaces F.linear by another function."""

    def __init__(self, patch: Callable[..., Tensor]) -> None:
        super().__init__()
        self.patch = patch

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is linear:
            with torch._C.DisableTorchFunctionSubclass():
                return self.patch(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


class InMode(nn.Module):
    def __init__(self, inner: nn.Module, patch: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner, self.patch = inner, patch

    def forward(self, x: Tensor) -> Tensor:
        with Mode(self.patch):
            return self.inner(x)


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("name", MEASURING)
def test_a_globally_patched_linear_is_seen(name: str, patch, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    monkeypatch.setattr(F, "linear", patch)
    monkeypatch.setattr(nn.functional, "linear", patch)
    assert treated_after(model, PRECONDITIONERS[name], lambda: F.cross_entropy(model(x), y)) == set()


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_forward_is_seen(patch, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: patch(x, self.weight, self.bias))
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == set()


@pytest.mark.parametrize("patch", PATCHES)
def test_a_function_mode_in_the_forward_is_seen(patch) -> None:
    model, (x, y) = InMode(tiny_mlp(), patch), data(12, 4)
    assert treated_after(model, EKFAC, lambda: F.cross_entropy(model(x), y)) == set()


def test_a_patch_of_one_layer_leaves_the_others() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    model[0].forward = lambda x: halved(x, model[0].weight, model[0].bias)
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"2"}


def test_a_patched_convolution_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = tiny_conv(), data(6, 2, 4, 4)
    original = nn.Conv2d._conv_forward
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda self, x, w, b: original(self, x.flip(-1), w, b))
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"3"}


def test_what_is_patched_without_changing_the_gradient_keeps_its_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    monkeypatch.setattr(F, "linear", lambda x, w, b=None: linear(x, w) if b is None else torch.addmm(b, x, w.T))
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"0", "2"}


@pytest.mark.parametrize("name", ["kfac", "ekfac", "ekfac-ra", "diagonal", "cg"])
def test_what_changes_during_the_training_is_seen_at_a_later_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_mlp()
    optimizer = NaturalSGD(model, lr=0.0, preconditioner=name)
    shares = []
    for step in range(60):
        if step == 33:
            monkeypatch.setattr(F, "linear", halved)
        backward(model, *data(12, 4, seed=step))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        shares.append(optimizer.preconditioner.report().share)
    assert shares[32] == 1.0 and shares[-1] == 0.0


def test_gradients_are_verified_at_powers_of_two_and_then_once_in_every_fifty_steps() -> None:
    model, seen = tiny_mlp(), []
    precond = Diagonal(model)
    verdicts = precond.verification.verdicts
    precond.verification.verdicts = lambda step, *rest: seen.append(step) or verdicts(step, *rest)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(200):
        backward(model, *data(12, 4, seed=step))
        precond.step()
        optimizer.step()
    assert seen == [0, 1, 2, 4, 8, 16, 32, 50, 64, 100, 128, 150]


# ---------------------------------------------------------------- derivatives inside the forward


class Energy(nn.Module):
    """Outputs of a network, their derivatives in the input, or both."""

    def __init__(self, activation: nn.Module, outputs: str, weight: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 6), activation, nn.Linear(6, 3)).double()
        self.outputs, self.weight = outputs, weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.net(x)
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy + self.weight * force[:, :3] if self.outputs == "both" else force[:, :3]


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.SiLU(), nn.Softplus()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("outputs", ["force", "both"])
@pytest.mark.parametrize("name", MEASURING)
def test_layers_of_a_network_that_is_differentiated_in_its_forward_are_left_alone(
    name: str, outputs: str, activation: nn.Module
) -> None:
    model, (x, y) = Energy(activation, outputs), data(12, 4)
    assert treated_after(model, PRECONDITIONERS[name], lambda: F.cross_entropy(model(x), y), steps=3) == set()


def test_a_small_part_of_the_loss_suffices() -> None:
    model, (x, y) = Energy(nn.Tanh(), "both", weight=0.05), data(12, 4)
    assert "net.0" not in treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y))


@pytest.mark.parametrize("share", [1e-3, 1e-7])
def test_a_use_of_any_size_is_seen_in_double_precision(share: float) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    loss = lambda: F.cross_entropy(model(x) + share * model[0].weight.sin().sum(1), y)  # noqa: E731
    assert treated_after(model, KFAC, loss) == {"2"}


def test_a_head_behind_the_derivatives_is_preconditioned() -> None:
    model = nn.Sequential(Energy(nn.Tanh(), "force"), nn.Linear(3, 3).double())
    x, y = data(12, 4)
    assert treated_after(model, EKFAC, lambda: F.cross_entropy(model(x), y)) == {"1"}


class InnerStep(nn.Module):
    """A descent step of the input inside the forward, so that a layer is used in a derivative of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(width, width).double()

    def forward(self, x: Tensor) -> Tensor:
        shift = x.detach().clone().requires_grad_()
        energy = (self.fc(shift) - x).square().sum()
        return self.fc(shift - 0.1 * torch.autograd.grad(energy, shift, create_graph=True)[0])


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("name", MEASURING)
def test_a_layer_in_a_derivative_of_its_own_is_left_alone(name: str, width: int) -> None:
    model, x = nn.Sequential(InnerStep(width), nn.Linear(width, 3).double()), data(12, width)[0]
    assert treated_after(model, PRECONDITIONERS[name], lambda: model(x).square().mean(), steps=2) == {"1"}


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda z: f(z).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(x))[0],
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda f, x: torch.func.vmap(f)(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", MEASURING)
def test_a_layer_inside_a_transform_of_torch_func_is_left_alone(name: str, transform: str) -> None:
    class Transformed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.head = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(TRANSFORMS[transform](lambda z: self.fc(z).tanh(), x))

    model, (x, y) = Transformed(), data(12, 4)
    assert treated_after(model, PRECONDITIONERS[name], lambda: F.cross_entropy(model(x), y), steps=2) == {"head"}


class Functional(nn.Module):
    """Every weight is used as a number, no module is called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.fc.weight, self.fc.bias)


@pytest.mark.parametrize("name", MEASURING)
def test_a_model_none_of_whose_modules_is_called_keeps_its_gradients(name: str) -> None:
    model, (x, y) = Functional(), data(12, 4)
    assert treated_after(model, PRECONDITIONERS[name], lambda: F.cross_entropy(model(x), y), steps=3) == set()


def test_running_squares_need_no_call_of_a_module() -> None:
    model, (x, y) = Functional(), data(12, 4)
    precond = make_preconditioner("diagonal-ra", model, damping=1e10)
    F.cross_entropy(model(x), y).backward()
    before = flat_gradient(model)
    precond.step()
    assert flat_gradient(model) * 1e10 == pytest.approx(before)


# ---------------------------------------------------------------- what may be done to gradients


def l2(model: nn.Module) -> Tensor:
    return 0.3 * sum(p.square().sum() for p in model.parameters())


def l1(model: nn.Module) -> Tensor:
    return 0.3 * sum(p.abs().sum() for p in model.parameters())


def weights_only(model: nn.Module) -> Tensor:
    return l2(model[0]) + 0.1 * l1(model[0]) + 2 * model[2].weight.square().sum()


def orthogonality(model: nn.Module) -> Tensor:
    return (model[0].weight @ model[0].weight.T - torch.eye(3)).square().sum()


@pytest.mark.parametrize("penalty", [l2, l1, weights_only])
def test_penalties_on_weights_are_no_use_of_a_layer(penalty) -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y) + penalty(model)) == {"0", "2"}


def test_other_functions_of_a_weight_are() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y) + orthogonality(model)) == {"2"}


class Inside(nn.Module):
    """Functions of a weight that are part of every example's output."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.head, self.how = nn.Linear(4, 3).double(), nn.Linear(3, 3).double(), how

    def forward(self, x: Tensor) -> Tensor:
        weight = self.fc.weight
        if self.how == "added":
            return self.head(self.fc(x)) + weight.square().sum() * torch.arange(3)
        if self.how == "scaled":
            return self.head(self.fc(x) * weight.square().sum().tanh())
        if self.how == "signs":
            return self.head(self.fc(x)) * weight.abs().sum()
        return self.head(checkpoint(lambda y: self.fc(y) * weight.norm(), x.requires_grad_(), use_reentrant=True))


@pytest.mark.parametrize("how", ["added", "scaled", "signs", "checkpointed"])
def test_a_penalty_inside_the_forward_is_a_use_of_the_weight(how: str) -> None:
    model, (x, y) = Inside(how), data(12, 4)
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"head"}


@pytest.mark.parametrize("penalty", [l2, l1])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_penalties_on_weights_of_one_or_two_numbers_hide_nothing(width: int, penalty) -> None:
    """Two coefficients explain any gradient of two entries: what comes through the outputs is told apart exactly."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(width, width, dtype=torch.float64) for _ in range(3)), nn.Linear(width, 3).double()
    )
    for module, factor in ((model[0], 0.5), (model[2], 1.01)):
        module.register_forward_hook(
            lambda *call, factor=factor: call[2].register_hook(lambda grad: factor * grad) and None
        )
    x, y = data(12, width)
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y) + penalty(model)) == {"1", "3"}


def test_a_weight_used_outside_of_the_model_is_another_use() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    loss = lambda: F.cross_entropy(model(x), y) + F.linear(x, model[0].weight).square().mean()  # noqa: E731
    assert treated_after(model, KFAC, loss) == {"2"}


def test_a_parameter_with_a_hook_is_not_told_apart_from_a_penalty() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    model[0].bias.register_hook(lambda grad: grad + 0.1 * model[0].bias.detach())
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"2"}


def test_a_penalty_is_told_apart_only_where_the_model_itself_is_called() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)

    def loss() -> Tensor:
        return F.cross_entropy(model[2](model[1](model[0](x))), y) + l2(model)

    assert treated_after(model, KFAC, loss) == set()


@pytest.mark.parametrize("returned", [tuple, lambda pair: {"logits": pair[0], "more": [pair[1]]}])
def test_penalties_are_told_apart_for_outputs_of_any_form(returned) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> object:
            return returned((self.a(x), self.b(x)))

    model, (x, y) = Several(), data(12, 4)

    def loss() -> Tensor:
        out = model(x)
        one, two = out if isinstance(out, tuple) else (out["logits"], out["more"][0])
        return F.cross_entropy(one + two, y) + l2(model)

    assert treated_after(model, KFAC, loss) == {"a", "b"}


def clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clamped(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1e-2)


def noisy(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad += torch.randn_like(p.grad)


def decayed(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad.add_(p.detach(), alpha=0.5)


@pytest.mark.parametrize("change", [clipped, clamped, noisy, decayed])
def test_gradients_may_be_changed_after_backward(change) -> None:
    model = tiny_mlp()
    precond = KFAC(model)
    for step in range(3):
        backward(model, *data(12, 4, seed=step))
        change(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            precond.step()
    assert precond.report().share == 1.0


# ---------------------------------------------------------------- hooks


def observing(model: nn.Module) -> list[object]:
    """Every kind of hook that looks and changes nothing."""
    handles = []
    for module in model.modules():
        handles += [
            module.register_forward_hook(lambda *_: None),
            module.register_forward_pre_hook(lambda *_: None),
            module.register_full_backward_hook(lambda *_: None),
            module.register_full_backward_pre_hook(lambda *_: None),
        ]
    handles += [p.register_hook(lambda _: None) for p in model.parameters()]
    handles += [p.register_post_accumulate_grad_hook(lambda _: None) for p in model.parameters()]
    handles.append(nn.modules.module.register_module_forward_hook(lambda *_: None))
    handles.append(nn.modules.module.register_module_forward_pre_hook(lambda *_: None))
    return handles


@pytest.mark.parametrize("name", PRECONDITIONERS)
@pytest.mark.parametrize("first", [True, False])
def test_hooks_that_only_look_change_nothing(name: str, first: bool) -> None:
    steps = []
    for hooked in (False, True):
        model, handles = tiny_mlp(), []
        if hooked and first:
            handles = observing(model)
        precond = make_preconditioner(name, model)
        if hooked and not first:
            handles = observing(model)
        for step in range(3):
            backward(model, *data(12, 4, seed=step))
            precond.step()
        assert precond.report().share == 1.0
        steps.append(flat_gradient(model))
        for handle in handles:
            handle.remove()
    assert (steps[0] == steps[1]).all()


def test_hooks_that_change_the_output_or_the_input_leave_the_layer_what_it_is() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    model[0].register_forward_hook(lambda module, args, out: 3 * out)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"0", "2"}


def test_hooks_that_change_the_gradient_of_a_parameter_are_seen() -> None:
    model, (x, y) = tiny_mlp(), data(12, 4)
    model[0].weight.register_hook(lambda grad: grad * (torch.arange(4) > 0))
    assert treated_after(model, KFAC, lambda: F.cross_entropy(model(x), y)) == {"2"}


# ---------------------------------------------------------------- rounding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["kfac", "ekfac", "diagonal"])
def test_rounding_of_every_type_is_no_difference(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 10)).to(dtype)
    x, y = torch.randn(256, 20, dtype=dtype), torch.randint(10, (256,))
    assert treated_after(model, PRECONDITIONERS[name], lambda: F.cross_entropy(model(x), y)) == {"0", "2", "3"}


def test_autocast_is_no_difference() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
    x, y = torch.randn(256, 20), torch.randint(10, (256,))

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    assert treated_after(model, KFAC, loss) == {"0", "2"}


def test_a_gradient_of_nothing_but_rounding_is_neither_verified_nor_refused() -> None:
    """A bias in front of batch norm has no gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    precond = EKFACra(model)
    for step in range(3):
        x, y = data(64, 4, seed=step)
        model.zero_grad()
        F.cross_entropy(model(x.float()), y).backward()
        precond.step()
    verified = {group.name for group in precond.verification.done}
    assert verified == {"3"} and "0.bias" in {group.name for group in precond.groups}


def test_a_layer_that_rests_is_verified_when_it_is_used() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.use = nn.Linear(4, 3), nn.Linear(4, 3), False

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + (halved(x, self.b.weight, self.b.bias) if self.use else 0)

    model = Late().double()
    precond = Diagonal(model)
    for step in range(3):
        model.use = step == 2
        backward(model, *data(12, 4, seed=step))
        if step == 2:
            with pytest.warns(RuntimeWarning, match="b: its module was never called"):
                precond.step()
        else:
            precond.step()
    assert {group.name for group in precond.groups} == {"a"}


# ---------------------------------------------------------------- several processes


class Pretend(Processes):
    """Two processes, of which the other one has found these flags."""

    def __init__(self, failed: list[float], agreed: list[float]) -> None:
        super().__init__()
        self.answers = [failed, agreed]

    def totals(self, numbers):
        return [a + b for a, b in zip(numbers, self.answers.pop(0), strict=True)]


@pytest.mark.parametrize(("failed", "done"), [(0.0, True), (1.0, False)])
def test_a_layer_that_fails_in_one_process_fails_in_all(failed: float, done: bool) -> None:
    model = tiny_mlp()
    precond = KFAC(model, layers="0")
    (group,) = precond.groups
    verification = Verification()
    grads = [torch.ones_like(p) for p in model[0].parameters()]
    verification._rebuilt[group] = module_under_test.Rebuilt(torch.ones(15, dtype=torch.float64), 1.0, torch.float64)
    parts = {group: [module_under_test.Brought(p, grad, None) for p, grad in zip(model[0].parameters(), grads)]}
    reasons = verification.verdicts(0, parts, Pretend([failed], [0.0]))
    assert (group in verification.done) == done and (group in reasons) != done
    if not done:
        assert REASON in reasons[group]
