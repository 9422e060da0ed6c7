"""What would not fit is refused before it is computed, with what it needs, what there is and what would fit."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine import memory
from tangentlab.errors import MemoryBudgetError
from tests.engine.state import model_state


@pytest.fixture(autouse=True)
def budget_restored() -> Iterator[None]:
    yield
    tl.set_memory_budget(None)


class Counted(nn.Module):
    """A wide layer that counts, outside of itself, how often examples pass and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(50, 200), nn.Linear(200, 4)

    def forward(self, x: Tensor) -> Tensor:
        FORWARDS.append(len(x))
        hidden = self.fc(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: BACKWARDS.append(grad.shape))
        return self.head(hidden)


FORWARDS: list[int] = []
BACKWARDS: list[torch.Size] = []


@pytest.mark.parametrize(
    ("build", "instead"),
    [
        (lambda m, x: tl.FIM(m, x, tl.PMatDense), "PMatKFAC"),
        (lambda m, x: tl.FIM(m, x, tl.PMatBlockDiag), "PMatKFAC|PMatDiag"),
        (lambda m, x: tl.Jacobian(m, [(x,)] * 40), "PushForwardImplicit"),
        (lambda m, x: tl.per_example_grads(m, [(x, torch.zeros(30, dtype=torch.long))] * 40), "Implicit|norms"),
        (lambda m, x: tl.FIM(m, x, tl.PMatDiag).to_dense(), "PMatDiag"),
        (lambda m, x: tl.FIM(m, x, tl.PMatImplicit).to_dense(), "PMatDiag"),
    ],
    ids=["dense", "block-diagonal", "Jacobian", "gradients", "diagonal written out", "implicit written out"],
)
def test_a_result_that_would_not_fit_is_refused_before_the_data_are_swept(build, instead: str) -> None:
    model, x = Counted(), torch.randn(30, 50)
    before = model_state(model)
    FORWARDS.clear()
    BACKWARDS.clear()
    tl.set_memory_budget(10_000_000)
    with pytest.raises(MemoryBudgetError, match=instead) as caught:
        build(model, x)
    message = str(caught.value)
    assert "needs" in message and "the memory budget is 10 MB" in message and "set_memory_budget" in message
    assert sum(FORWARDS) <= 2 * 30 + 2
    assert len(BACKWARDS) <= 8
    assert model_state(model) == before


def test_the_budget_is_half_of_what_is_free_unless_it_is_set() -> None:
    free = memory.available_bytes()
    assert 0 < memory.memory_budget() <= 0.75 * free
    tl.set_memory_budget(1234)
    assert tl.memory_budget() == 1234
    tl.set_memory_budget(None)
    assert tl.memory_budget() > 1234


def test_what_fits_is_not_refused() -> None:
    tl.set_memory_budget(100)
    memory.require_memory(100, "This", "")
    with pytest.raises(MemoryBudgetError, match=r"This needs 101 B and the memory budget is 100 B .* Take less."):
        memory.require_memory(101, "This", "Take less.")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_345_678, "12.3 MB"), (4e12, "4 TB"), (2.3e15, "2.3 PB")],
)
def test_bytes_are_told_in_units_that_people_read(count: float, text: str) -> None:
    assert memory.human_bytes(count) == text


def test_small_budgets_change_the_number_of_chunks_and_not_the_result() -> None:
    model, x = Counted().double(), torch.randn(9, 50, dtype=torch.float64)
    truth = tl.FIM(model, x, tl.PMatDiag).diag().flat
    tl.set_memory_budget(150_000)
    assert torch.allclose(tl.FIM(model, x, tl.PMatDiag).diag().flat, truth, rtol=1e-12)
