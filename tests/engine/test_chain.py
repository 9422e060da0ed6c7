"""Chains whose examples are known to be apart: what counts as one, and that everything else is still probed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import tangentlab as tl
from tangentlab.engine.chain import is_plain_chain
from tangentlab.engine.network import Network
from tangentlab.engine.routes import Router

X = torch.randn(5, 2, 6, 6)


def chain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.Tanh(),
        nn.Linear(4, 2),
    )


class Mixing(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x - x.mean(0))


def hooked() -> nn.Sequential:
    model = chain()
    model[1].register_forward_hook(lambda _, __, output: output - output.mean(0))
    return model


def replaced() -> nn.Sequential:
    model = chain()
    model[1].forward = lambda x: x - x.mean(0)  # type: ignore[method-assign]
    return model


def subclassed() -> nn.Sequential:
    model = chain()
    model[1] = Mixing()
    return model


def parametrized() -> nn.Sequential:
    model = chain()
    parametrizations.weight_norm(model[4])
    return model


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of probes, as the length of a list."""
    found: list[int] = []
    probe = Router._probe

    def counted(self: Router, *args: object) -> list[int | None]:
        found.append(1)
        return probe(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "_probe", counted)
    return found


def test_a_chain_is_not_probed_and_its_kernel_is_that_of_the_jacobian(probes: list[int]) -> None:
    torch.manual_seed(0)
    model, x = chain().double(), X.double()
    kernel = tl.NTK(model, x, outputs="all").matrix()
    assert probes == []
    names, values = zip(*model.named_parameters(), strict=True)

    def outputs(*tensors: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, tensors, strict=True)), (x,))

    jacobians = torch.autograd.functional.jacobian(outputs, values)
    flat = torch.cat([jacobian.flatten(2) for jacobian in jacobians], 2).transpose(0, 1).flatten(0, 1)
    torch.testing.assert_close(kernel, flat @ flat.t())


@pytest.mark.parametrize("make", [hooked, replaced, subclassed])
def test_what_mixes_examples_is_found_out(make: Callable[[], nn.Module], probes: list[int]) -> None:
    with pytest.raises(tl.errors.ModelError, match="change with the other examples"):
        tl.NTK(make(), X, outputs="all")
    assert probes


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (nn.Sequential(nn.Flatten(0), nn.Linear(360, 2)), X),
        (nn.Sequential(nn.LayerNorm((2, 6, 6)), nn.Flatten(), nn.Linear(72, 2)), X),
        (nn.Sequential(nn.Linear(6, 2)), torch.randn(6)),
        (nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(16, 2)), torch.randn(3, 6, 6)),
        (nn.Sequential(nn.Linear(6, 2)), {"input": torch.randn(3, 6)}),
        (nn.ModuleList([nn.Linear(6, 2)]), torch.randn(3, 6)),
        (parametrized(), X),
    ],
)
def test_everything_else_is_no_plain_chain(model: nn.Module, batch: object) -> None:
    assert is_plain_chain(Network.of(chain()), X)
    assert not is_plain_chain(Network.of(model), batch)


def test_functions_around_the_model_and_global_hooks_are_probed() -> None:
    model = chain()
    assert not is_plain_chain(Network.of(model, function=lambda out, _: out - out.mean(0)), X)
    assert not is_plain_chain(Network.of(model, forward=lambda m, x: m(x)), X)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_plain_chain(Network.of(model), X)
    finally:
        handle.remove()
    assert is_plain_chain(Network.of(model), X)
