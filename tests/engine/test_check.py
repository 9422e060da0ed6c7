"""`check` sees every wrong row of every example, at a cost that grows with the batch and not with its square."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.check import _spread, check
from tangentlab.engine.progress_bar import progress_told_to
from tangentlab.errors import NumericsError
from tangentlab.layers import registry
from tests.engine.state import model_state

EXAMPLES, OUTPUTS = 40, 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, OUTPUTS))


def inputs(examples: int = EXAMPLES) -> Tensor:
    return torch.randn(examples, 3, generator=torch.Generator().manual_seed(1))


def test_the_cases_below_are_not_among_the_rows_that_are_looked_at_one_by_one() -> None:
    assert not {1, 2} & set(_spread(EXAMPLES, 16)) and 5 not in _spread(OUTPUTS, 4)
    assert len(_spread(EXAMPLES, 16)) == 16
    assert _spread(3, 16) == [0, 1, 2] and _spread(10, 4) == [0, 3, 6, 9] and _spread(7, 1) == [0]


def one_example(grads: Tensor) -> Tensor:
    grads[:, 1] *= 1.001
    return grads


def two_swapped(grads: Tensor) -> Tensor:
    return grads[:, [0, 2, 1, *range(3, grads.shape[1])]]


def one_output(grads: Tensor) -> Tensor:
    if grads.shape[-1] == OUTPUTS:
        grads[..., 5] *= 1.001
    return grads


def last_example_from_its_neighbour(grads: Tensor) -> Tensor:
    grads[:, -2] += 1e-6 * grads[:, -1]
    return grads


def one_is_not_finite(grads: Tensor) -> Tensor:
    grads[:, 1] = torch.nan
    return grads


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one example": one_example,
    "two examples swapped": two_swapped,
    "one output": one_output,
    "a trace of the neighbour": last_example_from_its_neighbour,
    "not a number": one_is_not_finite,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_rows_that_are_not_looked_at_one_by_one_is_found_and_named(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = registry._RULES[nn.Linear]

    def wrong(module: nn.Module, x: Tensor, grads: Tensor, names: tuple[str, ...]) -> Any:
        return rule.factors(module, x, FAULTS[fault](grads.clone()), names)

    monkeypatch.setitem(registry._RULES, nn.Linear, replace(rule, factors=wrong))
    with tl.verify(False), pytest.raises(NumericsError, match=r"disagrees with plain autograd on: .*2.weight/2.bias"):
        check(network(), inputs())
    monkeypatch.setitem(registry._RULES, nn.Linear, rule)
    assert check(network(), inputs()).error < 1e-13


class Counted(nn.Module):
    """Counts examples that come back through it, outside of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.net(x)
        if outputs.requires_grad:
            outputs.register_hook(lambda grad: BACKWARDS.append(grad.shape))
        return outputs


BACKWARDS: list[torch.Size] = []


def test_the_number_of_backward_passes_does_not_grow_with_the_batch() -> None:
    counts = []
    for examples in (20, 40, 160):
        BACKWARDS.clear()
        check(Counted(), inputs(examples))
        counts.append(len(BACKWARDS))
    assert counts[0] == counts[1] == counts[2]
    assert 16 * 5 < counts[0] < 16 * 5 + 18


def test_small_batches_are_looked_at_one_by_one() -> None:
    BACKWARDS.clear()
    check(Counted(), inputs(3), max_outputs=2)
    assert 3 * 3 < len(BACKWARDS) < 3 * 3 + 18


class PartlySingle(nn.Module):
    """An activation in single precision between layers of double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).float().tanh().to(x.dtype))


@pytest.mark.parametrize("examples", [1, 2, 20])
def test_what_rounding_does_to_plain_autograd_is_no_disagreement(examples: int) -> None:
    torch.manual_seed(0)
    assert check(PartlySingle(), inputs(examples)).passed


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 2), nn.Linear(2, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


def test_outputs_of_many_tokens_need_no_square_of_their_number() -> None:
    """The identity on 150,000 outputs would take 180 GB."""
    tokens = torch.randint(7, (2, 50_000), generator=torch.Generator().manual_seed(0))
    with tl.memory_limit(2 * 10**9):
        assert check(Tokens(), tokens).passed
        assert tl.plan(Tokens(), tokens, what="kfac").rows


def test_a_small_memory_budget_changes_nothing() -> None:
    with tl.memory_limit(100):
        assert check(network(), inputs()).error < 1e-13


def test_progress_is_told_example_by_example() -> None:
    told: list[tuple[str, int, int | None]] = []
    with progress_told_to(lambda *step: told.append(step)):
        check(network(), inputs())
    assert [step for step in told if step[0] == "check"] == [("check", n, 16) for n in range(16)]
    told.clear()
    with progress_told_to(lambda *step: told.append(step)):
        check(network(), inputs(), progress=False)
    assert not told


def test_a_check_leaves_the_model_and_the_random_state_alone() -> None:
    model = network()
    before = model_state(model)
    check(model, inputs())
    assert model_state(model) == before
