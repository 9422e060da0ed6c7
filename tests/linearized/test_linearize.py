"""The linearized network is f0 + J v, with explicit Jacobians in float64 as the truth."""

import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tangentlab import NTK, FMatImplicit, FVector
from tangentlab.errors import InputError, ModelError
from tangentlab.linearized import linearize
from tangentlab.models import MLP
from tests.linearized.networks import CASES, Attention, Keywords, Recurrent, case, dense_jacobian, displace, parameters

EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("name", CASES)
def test_the_outputs_are_those_of_the_explicit_jacobian(name: str) -> None:
    model, x = case(name)
    f0, jacobian = dense_jacobian(model, x)
    linear, differential = linearize(model), linearize(model, offset=False)
    torch.testing.assert_close(linear(x), f0, **EXACT)
    v = displace(linear)
    torch.testing.assert_close(linear(x), f0 + jacobian @ v, **EXACT)
    displace(differential)
    torch.testing.assert_close(differential(x), jacobian @ v, **EXACT)
    with torch.no_grad():
        silent = linear(x)
    torch.testing.assert_close(silent, f0 + jacobian @ v, **EXACT)
    assert not silent.requires_grad and linear(x).requires_grad


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_in_the_displacement_is_the_transposed_jacobian(name: str) -> None:
    model, x = case(name)
    f0, jacobian = dense_jacobian(model, x)
    linear = linearize(model)
    displace(linear)
    u = torch.randn(f0.shape, dtype=f0.dtype)
    (linear(x) * u).sum().backward()
    found = torch.cat([parameter.grad.flatten() for parameter in linear.displacements().values()])
    torch.testing.assert_close(found, jacobian.flatten(0, -2).t() @ u.flatten(), **EXACT)


@pytest.mark.parametrize("name", ["mlp", "batch norm", "lstm", "attention", "padding and ties"])
def test_the_tangent_kernel_of_the_linearization_is_that_of_the_network_at_every_displacement(name: str) -> None:
    model, x = case(name)
    linear = linearize(model)
    displace(linear)
    kernel = NTK(model.eval(), x)
    torch.testing.assert_close(NTK(linear, x).matrix(), kernel.matrix(), **EXACT)
    v = FVector(torch.randn(kernel.sizes[:2], dtype=torch.float64))
    implicit = NTK(linear, x, representation=FMatImplicit)
    torch.testing.assert_close((implicit @ v).flat, (kernel @ v).flat, **EXACT)


def test_the_function_is_affine_in_the_parameters() -> None:
    model, x = case("batch norm")
    one, two, mixed = (linearize(model) for _ in range(3))
    displace(one, seed=1)
    displace(two, seed=2)
    with torch.no_grad():
        for a, b, c in zip(one.parameters(), two.parameters(), mixed.parameters()):
            if c.requires_grad:
                c.copy_(0.3 * a + 0.7 * b)
    torch.testing.assert_close(mixed(x), 0.3 * one(x) + 0.7 * two(x), **EXACT)


def test_at_the_start_value_and_loss_gradient_are_those_of_the_network() -> None:
    model, x = case("attention")
    model.eval()
    linear, y = linearize(model), torch.randint(0, 2, (len(x),))
    for one in (model, linear):
        F.cross_entropy(one(x), y).backward()
    for name, parameter in linear.displacements().items():
        torch.testing.assert_close(parameter.grad, model.get_parameter(name).grad, **EXACT)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.05),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_trains_it_as_it_trains_the_explicit_linear_model(name: str) -> None:
    model, x = case("batch norm")
    f0, jacobian = dense_jacobian(model, x)
    y = torch.randint(0, f0.shape[1], (len(x),))
    linear = linearize(model).train()
    explicit = [nn.Parameter(torch.zeros(p.shape, dtype=p.dtype)) for p in parameters(model).values()]

    def run(outputs, variables) -> None:
        optimizer = OPTIMIZERS[name](variables)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(outputs(), y)
            loss.backward()
            return loss

        for _ in range(5):
            optimizer.step(closure)

    run(lambda: linear(x), linear.parameters())
    run(lambda: f0 + jacobian @ torch.cat([p.flatten() for p in explicit]), explicit)
    for found, truth in zip(linear.displacements().values(), explicit):
        torch.testing.assert_close(found, truth, rtol=1e-7, atol=1e-9)


def test_batch_norm_stays_at_its_initial_state_and_the_model_is_left_alone() -> None:
    model, x = case("batch norm")
    assert model.training
    state = deepcopy(model.state_dict())
    linear = linearize(model).train()
    assert linear.training and not any(module.training for module in linear.base.modules())
    base = deepcopy(linear.base.state_dict())
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        linear(x).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(value, base[key]) for key, value in linear.base.state_dict().items())
    assert model.training and all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_state_dict_pickle_and_copies_hold_the_start_and_the_displacement() -> None:
    model, x = case("batch norm")
    linear = linearize(model)
    displace(linear)
    other = linearize(CASES["batch norm"][0]().double())
    assert not torch.allclose(other(x), linear(x))
    other.load_state_dict(linear.state_dict())
    assert torch.equal(other(x), linear(x))
    for again in (pickle.loads(pickle.dumps(linear)), deepcopy(linear)):
        assert torch.equal(again(x), linear(x))
        assert not again.train().base.training
    torch.testing.assert_close(linear.float()(x.float()), other(x).float(), rtol=1e-4, atol=1e-4)


def test_the_trainable_parameters_carry_the_networks_names() -> None:
    model, _ = case("frozen")
    linear = linearize(model)
    trainable = [name for name, parameter in linear.named_parameters() if parameter.requires_grad]
    assert trainable == [f"displacement.{name}" for name in parameters(model)]
    assert [*linearize(model, layers="layers.2").displacements()] == ["layers.2.weight", "layers.2.bias"]


def test_the_network_at_the_displaced_point() -> None:
    model, x = case("frozen")
    linear = linearize(model)
    displace(linear, 1e-4)
    moved = linear.network()
    assert (moved(x) - linear(x)).abs().max() < 1e-6 < (moved(x) - model(x)).abs().max()
    assert [parameter.requires_grad for parameter in moved.parameters()] == [True, False, True, True]


def test_it_is_called_like_the_network() -> None:
    torch.manual_seed(0)
    model, x = Keywords(), torch.randn(4, 3)
    torch.testing.assert_close(linearize(model)(x, temperature=2.0), model(x, temperature=2.0)["logits"])


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "attention",
        "lstm",
        "batch norm",
        "layer norm",
        "layer norm first",
        "instance norm",
        "instance norm first",
    ],
)
def test_gradients_flow_to_the_inputs_too(name: str) -> None:
    model, x = case(name)
    linear = linearize(model)
    v = displace(linear)
    step, x = 1e-6 * torch.randn_like(x), x.requires_grad_()
    (slope,) = torch.autograd.grad(linear(x).sum(), x)

    def value(at: torch.Tensor) -> torch.Tensor:
        f0, jacobian = dense_jacobian(model, at.detach())
        return (f0 + jacobian @ v).sum()

    change = value(x + step) - value(x - step)
    torch.testing.assert_close(2 * (slope * step).sum(), change, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("name", ["layer norm first", "instance norm", "instance norm first", "attention"])
def test_gradients_of_the_second_order_model_flow_to_the_inputs_too(name: str) -> None:
    model, x = case(name)
    quadratic = linearize(model, order=2)
    displace(quadratic)
    step, x = 1e-5 * torch.randn_like(x), x.requires_grad_()
    (slope,) = torch.autograd.grad(quadratic(x).sum(), x)
    with torch.no_grad():
        change = quadratic(x + step).sum() - quadratic(x - step).sum()
    torch.testing.assert_close(2 * (slope * step).sum(), change, rtol=1e-5, atol=1e-10)


def test_what_is_not_differentiated_in_the_network_counts_as_a_constant_in_the_inputs_gradient() -> None:
    model, x = case("no_grad inside")
    constant = deepcopy(model)
    constant.scale = model.branch(x).norm(dim=1, keepdim=True).detach()
    slopes = []
    for one in (model, constant):
        linear, at = linearize(one), x.clone().requires_grad_()
        displace(linear)
        slopes += torch.autograd.grad(linear(at).square().sum(), at)
    torch.testing.assert_close(*slopes, **EXACT)


def test_the_padding_row_does_not_count_whether_inputs_need_gradients_or_not() -> None:
    torch.manual_seed(0)
    words, head = nn.Embedding(7, 4, padding_idx=0), nn.Linear(7, 2)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = words, head

        def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([self.words(tokens).mean(1), x], 1)).tanh()

    model, tokens, x = Both().double(), torch.tensor([[1, 2], [0, 3]]), torch.randn(2, 3).double()
    for order in (1, 2):
        linear = linearize(model, order=order)
        displace(linear)
        torch.testing.assert_close(
            linear(tokens[:1], x[:1].requires_grad_()), linear(tokens[:1], x[:1].detach()), **EXACT
        )
        before = linear(tokens, x.detach())
        with torch.no_grad():
            linear.displacements()["words.weight"][0] = 9.0
        for at in (x.detach(), x.requires_grad_()):
            torch.testing.assert_close(linear(tokens, at), before, **EXACT)


@pytest.mark.parametrize("build", [Recurrent, Attention])
def test_sequence_models_train_in_single_precision(build) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 3 if build is Recurrent else 4), torch.randint(0, 2, (8,))
    linear = linearize(build())
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(linear(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["mlp", "smooth batch norm", "lstm", "attention", "layer norm", "frozen"])
def test_the_second_order_model_leaves_an_error_of_third_order(name: str) -> None:
    model, x = case(name)
    quadratic = linearize(model, order=2)
    direction = displace(quadratic)
    errors = []
    for size in (0.04, 0.02):
        with torch.no_grad():
            start = 0
            for parameter in quadratic.displacements().values():
                parameter.copy_(size * direction[start : start + parameter.numel()].reshape(parameter.shape))
                start += parameter.numel()
        errors.append(float((quadratic.network()(x) - quadratic(x)).detach().norm()))
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.25)


def test_the_second_order_model_of_two_linear_layers_is_the_network_itself_and_trains_like_it() -> None:
    torch.manual_seed(0)
    model, x = MLP((3, 4, 2), nn.Identity, bias=False).double(), torch.randn(6, 3).double()
    quadratic, y = linearize(model, order=2), torch.randn(6, 2).double()
    for one in (model, quadratic):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            (one(x) - y).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(quadratic(x), model(x), **EXACT)
    torch.testing.assert_close(linearize(model, order=2, offset=False)(x), torch.zeros(6, 2).double())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_behind_torch_jit_are_linearized() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    traced = nn.Sequential(torch.jit.trace(plain[0], torch.ones(2, 3).double()), *plain[1:])
    models = linearize(traced), linearize(plain)
    for model in models:
        for k, v in enumerate(model.displacements().values()):
            v.data.copy_(torch.linspace(-1, 1, v.numel()).reshape(v.shape) + k)
    x = torch.randn(5, 3).double()
    torch.testing.assert_close(models[0](x), models[1](x))


def test_what_cannot_be_linearized_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match="order is 1"):
        linearize(MLP((2, 2)), order=3)
    with pytest.raises(InputError, match="no trainable parameter"):
        linearize(MLP((2, 2)).requires_grad_(False))
    with pytest.raises(ModelError, match="batch statistics"):
        linearize(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))
    with pytest.raises(ModelError, match="cannot be copied"):
        weighted = nn.utils.weight_norm(nn.Linear(2, 2))
        weighted(torch.ones(1, 2))
        linearize(weighted)
    with torch.inference_mode(), pytest.raises(ModelError, match="no_grad"):
        linearize(MLP((2, 2)))(torch.ones(1, 2))
    with pytest.raises(InputError, match="returns a tuple"):
        linearize(nn.LSTM(2, 2))(torch.ones(1, 1, 2))


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_the_network_itself_is_seen_as_it_is_and_forgotten(first: bool) -> None:
    model, x = case("mlp")
    linear = linearize(model)
    displace(linear)
    if not first:
        linear(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x[:, :2])
    f0, jacobian = dense_jacobian(model, x)
    torch.testing.assert_close(linear(x), f0 + jacobian @ displace(linear), **EXACT)
    assert linear._own_map.rung == 0


def test_dropout_is_off_and_the_random_stream_is_not_touched() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2)), torch.randn(4, 3)
    linear = linearize(model).train()
    state = torch.get_rng_state()
    assert torch.equal(linear(x), linear(x))
    assert torch.equal(state, torch.get_rng_state())
