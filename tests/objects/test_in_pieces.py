"""How much is done at a time changes no representation and no kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.testing.small_models import ALL, KRONECKER, Case, case_of
from tests.pieces import in_small_pieces


def fisher(kind: Any) -> Callable[[Case], Tensor]:
    return lambda case: tl.FIM(case.model, case.batches, kind).to_dense()


RESULTS: dict[str, Callable[[Case], Tensor]] = {
    "dense": fisher(tl.PMatDense),
    "blocks": fisher(tl.PMatBlockDiag),
    "diagonal": fisher(tl.PMatDiag),
    "low rank": fisher(tl.PMatLowRank),
    "mixed": fisher(tl.PMatMixed.default()),
    "implicit": lambda case: tl.FIM(case.model, case.batches, tl.PMatImplicit).to_dense(),
    "kernel": lambda case: tl.NTK(case.model, case.batches).matrix(),
    "implicit kernel": lambda case: tl.NTK(case.model, case.batches, representation=tl.FMatImplicit).matrix(),
    "trace kernel": lambda case: tl.NTK(case.model, case.batches, outputs="trace").matrix(),
    "norms": lambda case: tl.per_example_grad_norms(case.model, case.batches),
    "Jacobian": lambda case: tl.Jacobian(case.model, case.batches).data,
    "Hessian": lambda case: tl.Hessian(case.model, case.batches, tl.PMatDense).to_dense(),
}
KRONECKER_RESULTS: dict[str, Callable[[Case], Tensor]] = {
    "KFAC": fisher(tl.PMatKFAC),
    "EKFAC": fisher(tl.PMatEKFAC),
    "KFAC of sums": fisher(tl.PMatKFAC.with_options(sharing="reduce")),
    "KFAC with SUA": fisher(tl.PMatKFAC.with_options(sua=True)),
    "EKFAC with SUA": fisher(tl.PMatEKFAC.with_options(sua=True)),
    "EKFAC with centred SUA": fisher(tl.PMatEKFAC.with_options(sua="centred")),
    "quasi-diagonal": fisher(tl.PMatQuasiDiag),
    "arrows": fisher(tl.PMatQuasiDiag.with_options(form="arrow")),
}


ONE_POSITION = {"Kronecker sums": fisher(tl.PMatKronSum)}
EVERY = RESULTS | KRONECKER_RESULTS | ONE_POSITION
PAIRS = [
    *((name, result) for name in ALL for result in RESULTS),
    *((name, result) for name in KRONECKER for result in KRONECKER_RESULTS),
    *((name, result) for name in ("mlp", "wide", "frozen bias") for result in ONE_POSITION),
]


@pytest.mark.parametrize("split", ["one batch", "uneven batches"])
@pytest.mark.parametrize(("name", "result"), PAIRS)
def test_results_do_not_depend_on_how_much_is_done_at_a_time(name, result, split, monkeypatch):
    case, of = case_of(name, split=split), EVERY[result]
    whole = of(case)
    in_small_pieces(monkeypatch)
    torch.testing.assert_close(of(case), whole, rtol=1e-9, atol=1e-11)
