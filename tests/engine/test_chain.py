"""Chains whose examples are known to be apart: what counts as one, and that everything else is still probed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import tangentlab as tl
from tangentlab.engine import plain_chain, router
from tangentlab.engine.forward_mode import Linearization
from tangentlab.engine.network import Network
from tangentlab.engine.plain_chain import is_plain_chain
from tangentlab.engine.router import Router

X = torch.randn(5, 2, 6, 6)
SHARED = nn.Sequential(nn.Conv1d(6, 6, 3))


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


def true_kernel(model: nn.Module, x: Tensor) -> Tensor:
    """The Gram matrix of the Jacobian by autograd, outputs first."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def outputs(*tensors: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(trained, tensors, strict=True)), (x,))

    jacobians = torch.autograd.functional.jacobian(outputs, tuple(trained.values()))
    flat = torch.cat([jacobian.flatten(2) for jacobian in jacobians], 2).transpose(0, 1).flatten(0, 1)
    return flat @ flat.t()


def test_a_chain_is_not_probed_and_its_kernel_is_that_of_the_jacobian(probes: list[int]) -> None:
    torch.manual_seed(0)
    model, x = chain().double(), X.double()
    kernel = tl.NTK(model, x, outputs="all").matrix()
    assert probes == []
    torch.testing.assert_close(kernel, true_kernel(model, x))


def examples_as_channels(trainable: bool) -> nn.Sequential:
    """Six examples, flattened, are six channels of one example to the convolution."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Conv1d(6, 6, 3)).double()
    model[3].requires_grad_(trainable)
    return model


@pytest.mark.parametrize("trainable", [True, False])
def test_a_convolution_that_takes_the_examples_for_channels_is_seen(trainable: bool) -> None:
    model, x = examples_as_channels(trainable), torch.randn(6, 2, 5).double()
    torch.testing.assert_close(tl.NTK(model, x, outputs="all").matrix(), true_kernel(model, x))


def test_gradients_that_are_not_finite_are_an_error_without_a_probe(probes: list[int]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.GELU("tanh"), nn.Linear(4, 2)), torch.randn(5, 3)
    x[2] *= 1e22  # the output is finite, its derivative is not
    with pytest.raises(tl.errors.NumericsError, match=r"0\.weight"):
        tl.Jacobian(model, x)
    with pytest.raises(tl.errors.NumericsError, match=r"0\.weight"):
        tl.FIM(model, x, representation=tl.PMatLowRank, likelihood="classification")
    assert probes == []


@pytest.mark.parametrize("make", [hooked, replaced, subclassed])
def test_what_mixes_examples_is_found_out(make: Callable[[], nn.Module], probes: list[int]) -> None:
    with pytest.raises(tl.errors.ModelError, match="depend on other examples"):
        tl.NTK(make(), X, outputs="all")
    assert probes


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (nn.Sequential(nn.Flatten(0), nn.Linear(360, 2)), X),
        (nn.Sequential(nn.LayerNorm((2, 6, 6)), nn.Flatten(), nn.Linear(72, 2)), X),
        (nn.Sequential(nn.Linear(6, 2)), torch.randn(6)),
        (examples_as_channels(True), torch.randn(6, 2, 5)),
        (nn.Sequential(SHARED, nn.Flatten(), SHARED), torch.randn(6, 6, 9)),
        (nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(16, 2)), torch.randn(3, 6, 6)),
        (nn.Sequential(nn.Linear(6, 2)), {"input": torch.randn(3, 6)}),
        (nn.ModuleList([nn.Linear(6, 2)]), torch.randn(3, 6)),
        (parametrized(), X),
    ],
)
def test_everything_else_is_no_plain_chain(model: nn.Module, batch: object) -> None:
    assert is_plain_chain(Network.of(chain()), X)
    assert not is_plain_chain(Network.of(model), batch)


def test_functions_around_the_model_are_probed() -> None:
    model = chain()
    assert not is_plain_chain(Network.of(model, function=lambda out, _: out - out.mean(0)), X)
    assert not is_plain_chain(Network.of(model, forward=lambda m, x: m(x)), X)


@pytest.mark.parametrize("kind", ["forward", "full_backward"])
def test_global_hooks_are_probed(kind: str) -> None:
    model = chain()
    handle = getattr(nn.modules.module, f"register_module_{kind}_hook")(lambda *_: None)
    try:
        assert not is_plain_chain(Network.of(model), X)
    finally:
        handle.remove()
    assert is_plain_chain(Network.of(model), X)


LAYERS = [
    *(one() for one in plain_chain._ENTRYWISE),
    nn.Conv2d(2, 3, 3, padding=1, groups=1),
    nn.MaxPool2d(2, stride=1),
    nn.AvgPool2d(3),
    nn.AdaptiveAvgPool2d(2),
    nn.BatchNorm2d(2),
    nn.Linear(6, 6),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_forward_mode_needs_no_proof_in_a_chain_because_it_is_the_transpose(layer: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), layer, nn.Flatten(), nn.LazyLinear(3)).double().eval()
    x = X.double()
    model(x)
    network = Network.of(model)
    assert is_plain_chain(network, x)
    linear = Linearization(network, x)
    v, u = torch.randn(network.layout.numel, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close((u * linear.jvp(v)).sum(), linear.vjp(u) @ v)
    assert linear.trusted == {0}


def test_a_chain_whose_backward_is_changed_is_no_plain_one() -> None:
    model = chain()
    model[4].register_full_backward_hook(lambda _, grads, __: (2 * grads[0],))
    assert not is_plain_chain(Network.of(model), X)


def test_a_computed_weight_is_no_plain_chain() -> None:
    model = chain()
    weight = model[4].weight
    del model[4].weight
    model[4].original = weight
    model[4].__dict__["weight"] = 2 * weight
    assert not is_plain_chain(Network.of(model), X)


def test_outputs_that_nearly_cancel_are_compared_on_the_scale_of_what_cancelled() -> None:
    outputs = torch.tensor([[1e-10], [-2e-10]], dtype=torch.float64)
    assert router._alike(outputs, outputs + 1e-15)
    assert not router._alike(outputs, outputs + 1e-11)
    assert not router._alike(outputs, outputs[:1])
