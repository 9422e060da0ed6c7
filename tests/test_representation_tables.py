"""The tables of docs/representations.md say what the classes do."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import tangentlab as tl
from scripts import representation_scaling as scaling
from scripts.representation_tables import PAGE, SHOWN, generated, page
from tangentlab.errors import MemoryBudgetError, SolveError
from tangentlab.objects import pmat
from tangentlab.objects.facts import ANSWERS, FACTS, OPERATIONS, WRITTEN_OUT

EXAMPLES, CLASSES, WIDTH, INPUTS, DAMPING = 60, 3, 16, 12, 0.1


@cache
def data() -> tuple[nn.Module, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)).double()
        return model, torch.randn(EXAMPLES, INPUTS, dtype=torch.float64)


@cache
def matrix(kind: type) -> tl.PMat:
    return tl.FIM(*data(), kind)


def answer(F: tl.PMat, operation: str) -> torch.Tensor:
    v = tl.PVector.random_unit(data()[0], generator=torch.Generator().manual_seed(1))
    work: dict[str, Callable[[], Any]] = {
        "F @ v": lambda: (F @ v).flat,
        "solve(v, damping)": lambda: F.solve(v, DAMPING).flat,
        "solve(v)": lambda: F.solve(v).flat,
        "trace": F.trace,
        "diag": lambda: F.diag().flat,
        "norm": F.norm,
        "norm(2)": lambda: F.norm(2),
        "eigvalsh": F.eigvalsh,
        "pinv(atol)": lambda: F.pinv(0.01).trace(),
        "eigh": lambda: F.eigh()[1].flat,
        "logdet(damping)": lambda: F.logdet(DAMPING),
        "sample(damping)": lambda: F.sample(DAMPING).flat,
        "tensor": F.tensor,
    }
    return work[operation]()


def test_page_is_up_to_date():
    """`python scripts/representation_tables.py` renews it."""
    assert page(PAGE.read_text()) == PAGE.read_text()


def test_page_names_every_representation_and_every_operation():
    text = generated()
    for kind in SHOWN:
        assert text.count(f"`{kind.__name__}`") >= 2
    for operation in OPERATIONS:
        assert f"| `{operation}` |" in text


def test_every_representation_has_its_facts():
    kinds = [getattr(pmat, name) for name in pmat.__all__]
    matrices = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, tl.PMat)} - {tl.PMat}
    assert set(FACTS) == matrices
    for facts in FACTS.values():
        assert set(facts.costs) == set(OPERATIONS) and facts.exact <= set(ANSWERS) and facts.situation


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("operation", ANSWERS)
def test_an_answer_is_exact_if_and_only_if_the_table_says_so(kind, operation):
    truth, found = answer(matrix(tl.PMatDense), operation), answer(matrix(kind), operation)
    error = float((found - truth).norm() / truth.norm())
    assert (error < 1e-6) == (operation in FACTS[kind].exact), error


@pytest.mark.parametrize("kind", SHOWN)
def test_stored_numbers_follow_the_formula_of_the_table(kind):
    F = matrix(kind)
    formula = FACTS[kind].costs["memory"]
    expression = re.sub(r"(?<=[\w)])\s+(?=[\w(])", "*", formula.removeprefix("< ").replace("^", "**"))
    whole = {"d": F.dim, "n": EXAMPLES, "m": EXAMPLES * (CLASSES - 1)}
    layers = [{"i": INPUTS + 1, "o": WIDTH}, {"i": WIDTH + 1, "o": CLASSES}]
    per_layer = bool(re.search(r"\b[io]\b", expression))
    expected = sum(eval(expression, {}, whole | layer) for layer in (layers if per_layer else [{}]))
    if formula.startswith("<"):
        assert F.dim < F.numel() < expected
    else:
        assert expected <= F.numel() <= 1.02 * expected


@pytest.mark.parametrize("kind", [kind for kind in SHOWN if kind is not tl.PMatDense])
@pytest.mark.parametrize("operation", OPERATIONS[1:])
def test_only_what_the_table_says_writes_the_matrix_out(kind, operation):
    F = tl.FIM(*data(), kind)
    cost = FACTS[kind].costs[operation]
    with tl.memory_limit(8 * F.dim**2 - 1):
        if cost == WRITTEN_OUT:
            with pytest.raises(MemoryBudgetError):
                answer(F, operation)
        elif cost.startswith("not defined"):
            with pytest.raises(SolveError):
                answer(F, operation)
        else:
            assert torch.isfinite(answer(F, operation)).all()


def test_measured_table_is_that_of_the_measurements_and_stored_numbers_grow_as_stated():
    result = json.loads(scaling.DATA.read_text())
    assert scaling.page(scaling.PAGE.read_text(), result) == scaling.PAGE.read_text()
    exponents = {kind: scaling.slope(points, "numbers") for kind, points in result["curves"].items()}
    for kind in ("PMatLowRank", "PMatEKFAC", "PMatKFAC", "PMatQuasiDiag", "PMatDiag"):
        assert abs(exponents[kind] - 1) < 0.05
    assert abs(exponents["PMatDense"] - 2) < 0.05 and exponents["PMatImplicit"] == 0
    assert scaling.FIGURE.with_suffix(".svg").exists() and scaling.FIGURE.with_suffix(".png").exists()
