"""Proofs that are kept from call to call: made once for a chain that stays as it is, again whenever anything has changed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tangentlab as tl
from tangentlab.engine import router, standing
from tangentlab.engine.backward import backward
from tangentlab.errors import TangentlabError

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.LeakyReLU(0.1), nn.Linear(7, 4), nn.Tanh())
    return nn.Sequential(nn.Linear(5, 7), inner, nn.Identity(), nn.Linear(4, 3)).double()


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of proofs, as the length of a list."""
    found: list[int] = []
    proof = router.proof

    def counted(*arguments: object, **options: bool) -> object:
        found.append(1)
        return proof(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(router, "proof", counted)
    return found


def true_kernel(model: nn.Module, x: Tensor) -> Tensor:
    """The Gram matrix of the Jacobian, one plain backward per output and example, (C, N, C, N)."""
    outputs, parameters = model(x), [p for p in model.parameters() if p.requires_grad]
    rows = []
    for c in range(outputs.shape[1]):
        for n in range(len(x)):
            grads = torch.autograd.grad(outputs[n, c], parameters, retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat(
                    [
                        torch.zeros(p.numel()) if g is None else g.flatten()
                        for g, p in zip(grads, parameters, strict=True)
                    ]
                )
            )
    jacobian = torch.stack(rows).double()
    return (jacobian @ jacobian.t()).reshape(outputs.shape[1], len(x), outputs.shape[1], len(x))


def test_a_chain_that_stays_as_it_is_is_proved_once_per_shape(proofs: list[int]) -> None:
    model = chain()
    torch.testing.assert_close(true_kernel(model, X), true_kernel(model, X))  # imports more of torch, which is a change
    tl.FIM(chain(), X, tl.PMatDiag)
    proofs.clear()
    for x in (X, X + 1, X[:4], X):
        torch.testing.assert_close(tl.NTK(model, x).data, true_kernel(model, x))
    tl.FIM(model, X, tl.PMatDiag)
    assert len(proofs) == 2


def test_a_selection_of_all_layers_is_kept_and_one_of_some_is_proved_anew(proofs: list[int]) -> None:
    model = chain()
    tl.NTK(model, X)
    before = len(proofs)
    tl.FIM(model, X, tl.PMatKFAC, layers=["0", "1", "3"])
    assert len(proofs) == before
    for _ in range(2):
        found = tl.NTK(model, X, layers=["0", "3"]).data
    assert len(proofs) == before + 2
    parts = tl.NTK(model, X, per_layer=True)
    torch.testing.assert_close(found, parts["0"].data + parts["3"].data)


def test_values_play_no_part_in_a_proof_and_are_always_those_of_now(proofs: list[int]) -> None:
    model = chain()
    for change in (
        lambda p: p.data.mul_(-2),
        lambda p: setattr(p, "data", p.data.flip(0)),
        lambda p: p.detach().add_(1),
    ):
        tl.NTK(model, X)
        for parameter in model.parameters():
            change(parameter)
        torch.testing.assert_close(tl.NTK(model, X).data, true_kernel(model, X))
    assert len(proofs) == 1


def test_models_of_other_kinds_are_proved_in_every_call(proofs: list[int]) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = chain()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    class Sub(nn.Sequential):
        pass

    for model in (Own(), Sub(*chain()), nn.Sequential(*chain(), nn.Softmax(-1))):
        before = len(proofs)
        for _ in range(2):
            tl.NTK(model, X)
        assert len(proofs) == before + 2
    for options in ({"function": lambda out, _: out}, {"forward": lambda model, x: model(x)}):
        model, before = chain(), len(proofs)
        for _ in range(2):
            tl.NTK(model, X, **options)  # type: ignore[arg-type]
        assert len(proofs) == before + 2


def test_what_was_not_proved_is_not_kept(proofs: list[int]) -> None:
    model = chain()
    tl.NTK(model, X, verify=False)
    assert not proofs
    tl.NTK(model, X)
    assert len(proofs) == 1
    dead = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    dead[0].bias.data.fill_(-100)
    for _ in range(2):
        tl.NTK(dead, X)
    assert len(proofs) == 3


def test_the_model_is_not_kept_alive() -> None:
    import gc
    import weakref

    model = chain()
    tl.NTK(model, X)
    model_reference, layer = weakref.ref(model), weakref.ref(model[0])
    del model
    gc.collect()
    assert model_reference() is None and layer() is None


# ---------------------------------------------------------------------- changes


Change = Callable[[nn.Sequential], AbstractContextManager[object] | None]


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def mixing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: (found := function(*args, **kwargs)) + found.mean(0)


def tripled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: 3 * function(*args, **kwargs)


class Fake:
    tanh = staticmethod(tripled(torch.tanh))


class Centred(nn.Tanh):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Doubling(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        return 2 * found if func is F.linear else found  # type: ignore[operator]


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        return func(*args, **(kwargs or {}))


@contextmanager
def new_code() -> Iterator[None]:
    old = nn.Linear.forward.__code__
    nn.Linear.forward.__code__ = (lambda self, input: F.linear(input, 2 * self.weight, self.bias)).__code__
    try:
        yield
    finally:
        nn.Linear.forward.__code__ = old


@contextmanager
def global_hook() -> Iterator[None]:
    handle = module_hooks.register_module_forward_hook(
        lambda module, _, out: out * 2 if isinstance(module, nn.Linear) else out
    )
    try:
        yield
    finally:
        handle.remove()


def coarse_saved_tensors(model: nn.Sequential) -> AbstractContextManager[object]:
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: 2 * x)


class Turned(nn.Parameter):
    """Turns the batch over before it is multiplied, which leaves no trace in the graph."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        with torch._C.DisableTorchFunctionSubclass():
            return func(args[0].flip(0), *args[1:]) if func is F.linear else func(*args, **(kwargs or {}))


class Doubled(Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        with torch._C.DisableTorchFunctionSubclass():
            return (
                func(2 * args[0].as_subclass(Tensor), *args[1:]) if func is F.linear else func(*args, **(kwargs or {}))
            )


CHANGES: dict[str, Change] = {
    "another class of a parameter": lambda model: setattr(model[0].weight, "__class__", Turned),
    "a patched function": lambda model: patched(F, "linear", tripled(F.linear)),
    "a patched function that mixes examples": lambda model: patched(F, "linear", mixing(F.linear)),
    "a patched function of torch": lambda model: patched(torch, "tanh", tripled(torch.tanh)),
    "a function that a function calls": lambda model: patched(
        torch._C._nn, "leaky_relu", tripled(torch._C._nn.leaky_relu)
    ),
    "a patched namespace": lambda model: patched(
        nn.modules.activation, "torch", type("Fake", (), {"tanh": tripled(torch.tanh)})
    ),
    "a patched forward": lambda model: patched(nn.Linear, "forward", tripled(nn.Linear.forward)),
    "a patched call": lambda model: patched(nn.Module, "_call_impl", tripled(nn.Module._call_impl)),
    "a property over a weight": lambda model: patched_property(),
    "code": lambda model: new_code(),
    "a forward of its own": lambda model: setattr(model[3], "forward", lambda x: 2 * nn.Linear.forward(model[3], x)),
    "a hook": lambda model: model[0].register_forward_hook(lambda *args: 2 * args[-1]) and None,
    "a hook that mixes": lambda model: (
        model[0].register_forward_pre_hook(lambda _, args: (args[0] + args[0].sum(0),)) and None
    ),
    "a backward hook": lambda model: model[3].register_full_backward_hook(lambda *args: (5 * args[1][0],)) and None,
    "a global hook": lambda model: global_hook(),
    "an attribute": lambda model: setattr(model[1][0], "negative_slope", 0.7),
    "another layer": lambda model: model.__setitem__(2, nn.Tanh()),
    "one layer more": lambda model: model.append(nn.Linear(3, 2).double()) and None,
    "another class": lambda model: setattr(model[1][2], "__class__", nn.Sigmoid),
    "a subclass": lambda model: setattr(
        model[1][2], "__class__", type("Mine", (nn.Tanh,), {"forward": lambda s, x: x - x.mean(0)})
    ),
    "another parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.randn(7, 5).double())),
    "no bias": lambda model: setattr(model[0], "bias", None),
    "a computed weight": lambda model: nn.utils.parametrizations.weight_norm(model[0]) and None,
    "tied layers": lambda model: model.__setitem__(2, nn.Sequential(square := nn.Linear(4, 4).double(), square)),
    "a frozen parameter": lambda model: setattr(model[0].weight, "requires_grad", False),
    "a function mode": lambda model: Doubling(),
    "a dispatch mode": lambda model: Dispatched(),
    "hooks on saved tensors": coarse_saved_tensors,
    "autocast": lambda model: torch.autocast("cpu", torch.bfloat16),
    "another type": lambda model: model.float() and None,
    "train mode with dropout": lambda model: model.__setitem__(2, nn.Dropout(0.5)),
}


REFUSED = {"a patched function that mixes examples", "a hook that mixes", "a subclass", "train mode with dropout"}


def patched_property() -> AbstractContextManager[None]:
    @contextmanager
    def block() -> Iterator[None]:
        nn.Linear.weight = property(lambda self: 2 * self._parameters["weight"])  # type: ignore[assignment]
        try:
            yield
        finally:
            del nn.Linear.weight

    return block()


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_is_noticed_and_the_result_is_exact_or_refused(name: str) -> None:
    model = chain()
    tl.NTK(model, X)
    kept = standing._known[model]
    assert kept.holds(model) and kept.settled
    with CHANGES[name](model) or nullcontext():
        assert not kept.holds(model)
        x = X.to(model[0].weight.dtype)
        try:
            found = tl.NTK(model, x).data
        except TangentlabError:
            assert name in {
                "a patched function that mixes examples",
                "another class of a parameter",
                "a hook that mixes",
                "a subclass",
                "train mode with dropout",
            }
            return
        rough = (
            {"rtol": 0.1, "atol": 0.3}
            if name == "autocast"
            else {"rtol": 1e-4, "atol": 1e-4}
            if name == "another type"
            else {}
        )
        torch.testing.assert_close(found.double(), true_kernel(model, x).double(), **rough)


IMAGES = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    body = [
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.AvgPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*body, nn.Linear(4, 2)).double()


IMAGE_CHANGES: dict[str, Change] = {
    "a patched convolution": lambda model: patched(F, "conv2d", tripled(F.conv2d)),
    "a patched method of the convolution": lambda model: patched(
        nn.Conv2d, "_conv_forward", tripled(nn.Conv2d._conv_forward)
    ),
    "what a choice between functions comes to": lambda model: patched(torch, "max_pool2d", mixing(torch.max_pool2d)),
    "a patched choice between functions": lambda model: patched(F, "max_pool2d", tripled(F.max_pool2d)),
    "a patched mean": lambda model: patched(F, "avg_pool2d", tripled(F.avg_pool2d)),
    "another divisor": lambda model: setattr(model[4], "divisor_override", 3),
    "another padding": lambda model: setattr(model[0], "padding_mode", "circular"),
    "a method of its own": lambda model: setattr(
        model[0], "_conv_forward", lambda x, w, b: 2 * F.conv2d(x, w, b, 1, 1)
    ),
}


@pytest.mark.parametrize("name", IMAGE_CHANGES)
def test_what_changes_in_a_chain_of_convolutions_is_noticed(name: str) -> None:
    model = convolutions()
    tl.NTK(model, IMAGES)
    kept = standing._known[model]
    assert kept.holds(model) and kept.settled
    with IMAGE_CHANGES[name](model) or nullcontext():
        assert not kept.holds(model)
        try:
            found = tl.NTK(model, IMAGES).data
        except TangentlabError:
            assert name == "what a choice between functions comes to"
            return
        torch.testing.assert_close(found, true_kernel(model, IMAGES))


def test_a_chain_of_convolutions_is_proved_once_unless_it_pads_by_a_list(proofs: list[int]) -> None:
    model = convolutions()
    for _ in range(3):
        torch.testing.assert_close(tl.NTK(model, IMAGES).data, true_kernel(model, IMAGES))
    before = len(proofs)
    tl.NTK(model, IMAGES + 1)
    assert len(proofs) == before
    circular = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(192, 2))
    for _ in range(2):
        tl.NTK(circular.double(), IMAGES)
    assert len(proofs) == before + 2


def test_a_batch_of_a_class_of_its_own_is_looked_at_anew() -> None:
    model, x = chain(), X.clone().as_subclass(Doubled)
    tl.NTK(model, X)
    with pytest.raises(TangentlabError, match="depend on other examples"):  # a part of the batch is a plain tensor
        tl.NTK(model, x)


def test_a_patch_that_was_there_at_first_is_never_trusted(proofs: list[int]) -> None:
    model, scale = chain(), [1.0]
    linear = F.linear
    with patched(F, "linear", lambda x, *rest: scale[0] * linear(x, *rest)):
        for scale[0] in (1.0, 2.0):
            torch.testing.assert_close(tl.NTK(model, X).data, true_kernel(model, X))
    assert len(proofs) >= 2


def test_operations_that_python_registers_end_what_was_kept() -> None:
    model = chain()
    tl.NTK(model, X)
    kept = standing._known[model]
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("linear", lambda x, w, b=None: 2 * (x @ w.t() + b), "AutogradCPU")
        assert not kept.holds(model)


@pytest.mark.parametrize("count", [1, 3])
def test_the_short_way_into_the_engine_gives_what_torch_gives(count: int) -> None:
    model, unused = chain(), torch.zeros(2, requires_grad=True)
    outputs = model(X)
    inputs = [*model.parameters(), unused, torch.autograd.graph.get_gradient_edge(outputs)]
    cotangents = torch.randn(count, *outputs.shape, dtype=outputs.dtype)
    wanted = torch.autograd.grad(
        outputs, inputs, cotangents, is_grads_batched=True, retain_graph=True, allow_unused=True
    )
    found = backward(outputs, inputs, cotangents, batched=True)
    single = backward(outputs, inputs, cotangents[0])
    for one, many, true in zip(single, found, wanted, strict=True):
        assert (many is None) == (true is None) == (one is None)
        if true is not None:
            torch.testing.assert_close(many, true)
            torch.testing.assert_close(one, true[0])
    with pytest.raises(RuntimeError):
        backward(outputs, inputs, cotangents[:, :2], batched=True)
