"""The graph of a sweep is used up by its last backward pass, unless somebody else has a part in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tangentlab import NTK, FIM_Empirical, PMatDiag, PMatKFAC, per_example_grad_norms, per_example_grads
from tangentlab.engine.memory import fresh_zeros
from tangentlab.engine.network import Network
from tangentlab.engine.rows import Engine


class Scaled(nn.Module):
    """A forward of one's own, with a factor that may have a history."""

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)) * self.factor)


def _data(n: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator).double(), torch.arange(n) % 2


CALLS = [
    lambda model, x, y: per_example_grads(model, (x, y)),
    lambda model, x, y: per_example_grad_norms(model, (x, y)),
    lambda model, x, y: FIM_Empirical(model, (x, y), PMatKFAC),
    lambda model, x, y: FIM_Empirical(model, (x, y), PMatDiag),
    lambda model, x, y: NTK(model, x, outputs=0),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_history_that_the_model_holds_can_still_be_differentiated(call: object) -> None:
    source = torch.ones(4, dtype=torch.float64, requires_grad=True)
    model = Scaled((source * source).exp())
    call(model, *_data())  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(model.factor.sum(), source)
    assert torch.allclose(gradient, 2 * source * (source * source).exp())


@pytest.mark.parametrize("call", CALLS)
def test_a_history_of_the_inputs_can_still_be_differentiated(call: object) -> None:
    (x, y), source = _data(), torch.ones(3, dtype=torch.float64, requires_grad=True)
    inputs = x * source.exp()
    call(Scaled(torch.ones(4, dtype=torch.float64)), inputs, y)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(inputs.sum(), source)
    assert torch.allclose(gradient, x.sum(0) * source.exp())


def test_a_sweep_that_is_used_up_has_given_the_same_gradients() -> None:
    x, _ = _data()
    engine = Engine(Network.of(Scaled(torch.ones(4, dtype=torch.float64))))
    cotangents = torch.randn(1, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sweep = engine.sweep(x)
    kept = {group: factor.rows() for group, factor in sweep.factors(cotangents).items()}
    for group, factor in sweep.factors(cotangents, last=True).items():
        assert torch.equal(factor.rows(), kept[group])
    with pytest.raises(RuntimeError, match="second time"):
        sweep.factors(cotangents)


def test_large_zeros_are_zeros_to_write_to_and_outlive_their_maker() -> None:
    large = fresh_zeros((2, 9, 1 << 20), torch.empty(0))
    assert large.shape == (2, 9, 1 << 20) and large.dtype == torch.float32 and not large.any()
    part = large[1, 3:5].fill_(2.0)
    del large
    assert part.sum() == 4 << 20
    assert torch.equal(fresh_zeros((2, 3), torch.empty(0, dtype=torch.float64)), torch.zeros(2, 3).double())
