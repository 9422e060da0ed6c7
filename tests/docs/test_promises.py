"""Promises that the pages make in words, where no snippet can show them."""

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.errors import MemoryBudgetError
from tangentlab.models import MLP


@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_a_kernel_that_does_not_fit_is_refused_before_the_second_batch(outputs: str) -> None:
    calls = 0

    def forward(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
        nonlocal calls
        calls += len(batch[0]) == 30
        return model(batch[0])

    batches = [(part,) for part in torch.randn(3000, 64).split(30)]
    with pytest.raises(MemoryBudgetError, match="This kernel needs"):
        tl.NTK(MLP((64, 32, 10)), batches, outputs=outputs, forward=forward, memory=20_000_000)
    assert calls == 1


def test_the_total_of_a_kernel_counts_when_it_is_computed_in_blocks() -> None:
    batches = [(part,) for part in torch.randn(400, 64).split(10)]
    with pytest.raises(MemoryBudgetError, match="This kernel needs 640 kB"):
        tl.NTK(MLP((64, 512, 10)), batches, outputs="trace", memory=100_000)


@pytest.mark.parametrize("in_place", [False, True], ids=["torch.compile", "Module.compile"])
def test_compiled_models_give_what_the_model_gives_and_are_never_compiled_for_it(in_place: bool) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing had to be compiled")

    torch.manual_seed(0)
    model, x = MLP((4, 6, 3)), torch.randn(8, 4)
    wanted = [tl.NTK(model, x).data, tl.FIM(model, x, tl.PMatKFAC).to_dense(), tl.linearize(model)(x)]
    if in_place:
        model.compile(backend=refuse)
    compiled = model if in_place else torch.compile(model, backend=refuse)
    assert tl.coverage(compiled, x).structured_fraction == 1.0
    assert tl.check(compiled, x).passed
    found = [tl.NTK(compiled, x).data, tl.FIM(compiled, x, tl.PMatKFAC).to_dense(), tl.linearize(compiled)(x)]
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert (tl.FIM(compiled, x, tl.PMatImplicit) @ tl.PVector.ones(compiled)).norm() > 0


def test_half_precision_matrices_solve_in_every_representation() -> None:
    torch.manual_seed(0)
    model, x = MLP((4, 3, 2)), torch.randn(6, 4)
    kinds = (tl.PMatDense, tl.PMatBlockDiag, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatDiag, tl.PMatLowRank)
    wanted = [tl.FIM(model, x, kind).solve(tl.PVector.ones(model), damping=0.1) for kind in kinds]
    model, x = model.bfloat16(), x.bfloat16()
    for kind, exact in zip(kinds, wanted):
        found = tl.FIM(model, x, kind).solve(tl.PVector.ones(model), damping=0.1)
        assert found.dtype == torch.bfloat16
        assert found.to(torch.float32).cosine(exact) > 0.98, kind
