"""Networks in which no other tensors can be put in the place of parameters: linearized exactly, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tangentlab.errors import ModelError
from tangentlab.linearized import linearize
from tests.engine.state import model_state
from tests.engine.truth import dense_jacobian


class Network(nn.Module):
    """A function of the module and x."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.fc, self.head = function, nn.Linear(3, 3), nn.Linear(3, 2)
        self.listed = [self.fc.weight]
        self.register_buffer("scale", torch.full((), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x).tanh())


def converted(m: Any, x: Tensor) -> Tensor:
    m.fc = m.fc.to(x.dtype)
    return m.fc(x)


def counted(m: Any, x: Tensor) -> Tensor:
    m.scale += 1
    return m.fc(x) * m.scale


def noted(m: Any, x: Tensor) -> Tensor:
    m.last = m.fc(x)
    return m.last


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "parameters in a list": lambda m, x: x @ m.listed[0] + m.fc.bias,
    "half of them in a list": lambda m, x: m.fc(x) + x @ m.listed[0],
    "a converted module": converted,
    "a checkpoint": lambda m, x: checkpoint(m.fc, x, use_reentrant=False),
    "a counter": counted,
    "an attribute with a history": noted,
}


def network(name: str) -> tuple[Network, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(FORWARDS[name]).double().eval(), torch.randn(4, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", FORWARDS)
def test_values_and_slopes_are_those_of_the_network(name: str) -> None:
    model, x = network(name)
    rows, f = dense_jacobian(network(name)[0], x), network(name)[0](x).detach()
    linear = linearize(model)
    torch.testing.assert_close(linear(x).detach(), f)
    v = torch.randn(rows.shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start = 0
    with torch.no_grad():
        for part in linear.displacement.parameters():
            part.copy_(v[start : start + part.numel()].reshape(part.shape))
            start += part.numel()
    for _ in range(2):  # the second call is not proved again
        found = linear(x)
        torch.testing.assert_close(found.detach(), f + (rows @ v).t())
    u = torch.randn(found.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slopes = torch.autograd.grad(found, list(linear.displacement.parameters()), u)
    torch.testing.assert_close(torch.cat([s.flatten() for s in slopes]), torch.einsum("cnd,nc->d", rows, u))


@pytest.mark.parametrize("name", FORWARDS)
def test_nothing_of_the_base_changes_and_no_gradient_ends_in_it(name: str) -> None:
    model, x = network(name)
    linear = linearize(model)
    before = model_state(linear.base)
    linear(x).sum().backward()
    assert model_state(linear.base) == before
    assert all(part.grad is not None for part in linear.displacement.parameters())


@pytest.mark.parametrize("name", ["parameters in a list", "a converted module"])
def test_the_quadratic_model_too(name: str) -> None:
    plain, x = (
        Network(lambda m, x: x @ m.fc.weight + m.fc.bias if name.startswith("parameters") else m.fc(x)),
        network(name)[1],
    )
    plain.double().load_state_dict(network(name)[0].state_dict())
    quadratic, truth = linearize(network(name)[0], order=2), linearize(plain, order=2)
    for part, other in zip(quadratic.displacement.parameters(), truth.displacement.parameters()):
        nn.init.normal_(part, generator=torch.Generator().manual_seed(0))
        other.data.copy_(part)
    torch.testing.assert_close(quadratic(x).detach(), truth(x).detach())


def test_a_layer_that_lives_outside_of_the_module_is_refused() -> None:
    layer = nn.Linear(3, 3).double()
    model = Network(lambda m, x: layer(x)).double()
    with pytest.raises(ModelError, match=r"2 parameters \(the first of shape .*\) that a copy"):
        linearize(model)(torch.randn(4, 3, dtype=torch.float64))


def test_a_forward_that_draws_at_random_is_refused() -> None:
    model = Network(lambda m, x: nn.functional.dropout(m.fc(x), 0.5, training=True)).double()
    with pytest.raises(ModelError, match="random generator of torch"):
        linearize(model)(torch.randn(4, 3, dtype=torch.float64))
