"""What every representation stores, what each operation costs, and which answers are those of the exact matrix.

The tables of `docs/representations.md` are made from this; the tests hold every entry against the classes: memory against
`numel()`, exactness against the dense matrix, and WRITTEN_OUT against what the memory budget refuses.

Symbols: d parameters, n examples, m = n c rows (c outputs or label samples), and per layer i inputs (with the homogeneous
one) and o outputs, summed over layers; k iterations. A product of F with a vector by automatic differentiation is one "pass".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tangentlab.objects.pmat import (
    PMat,
    PMatBlockDiag,
    PMatDense,
    PMatDiag,
    PMatEKFAC,
    PMatEye,
    PMatImplicit,
    PMatImplicitHessian,
    PMatKFAC,
    PMatKronSum,
    PMatLowRank,
    PMatMixed,
    PMatQuasiDiag,
    PMatSum,
)

OPERATIONS = (
    "memory",
    "F @ v",
    "solve(v, damping)",
    "solve(v)",
    "trace",
    "diag",
    "norm",
    "norm(2)",
    "eigvalsh",
    "pinv(atol)",
    "logdet(damping)",
    "sample(damping)",
    "eigh",
    "tensor",
)
"""Rows of the table; `vTMv` costs what `F @ v` costs, `solve(v, atol=)` and `norm(-2)` what `eigvalsh` costs."""

ANSWERS = ("F @ v", "solve(v, damping)", "trace", "diag", "norm", "norm(2)", "eigvalsh", "logdet(damping)")
"""Operations whose answer can be compared with that of the exact matrix."""

WRITTEN_OUT = "d^2 (written out)"
"""The operation writes the d x d matrix, and is refused where that does not fit."""


@dataclass(frozen=True)
class Facts:
    """One representation.

    Attributes:
        costs: leading order of operations (of numbers stored, for memory), by operation.
        exact: the operations whose answer is that of the matrix that is approximated.
        situation: when the whole matrix is exact.
    """

    costs: Mapping[str, str]
    exact: frozenset[str]
    situation: str


def _facts(costs: str, exact: str, situation: str) -> Facts:
    """Costs as lines `operation: cost`, exact answers separated by commas ('all' for all of them)."""
    entries = dict(line.strip().split(": ", 1) for line in costs.strip().splitlines())
    if "eigvalsh" in entries:
        entries = dict.fromkeys(("norm(2)", "pinv(atol)"), entries["eigvalsh"]) | entries
    answers = ANSWERS if exact == "all" else tuple(part.strip() for part in exact.split(",") if part.strip())
    return Facts({name: entries.get(name, WRITTEN_OUT) for name in OPERATIONS}, frozenset(answers), situation)


FACTS: dict[type[PMat], Facts] = {
    PMatDense: _facts(
        """memory: d^2
        F @ v: d^2
        solve(v, damping): d^3 / 3 once per damping, then d^2
        solve(v): 9 d^3 once, then d^2
        trace: d
        diag: d
        norm: d^2
        eigvalsh: 9 d^3
        logdet(damping): 9 d^3
        sample(damping): 9 d^3 once, then d^2""",
        "all",
        "always",
    ),
    PMatBlockDiag: _facts(
        """memory: (i o)^2
        F @ v: (i o)^2
        solve(v, damping): (i o)^3 / 3 once per damping, then (i o)^2
        solve(v): 9 (i o)^3 once, then (i o)^2
        trace: i o
        diag: i o
        norm: (i o)^2
        eigvalsh: 9 (i o)^3
        logdet(damping): 9 (i o)^3
        sample(damping): 9 (i o)^3 once, then (i o)^2""",
        "trace, diag",
        "one layer, or layers whose gradients are uncorrelated",
    ),
    PMatKronSum: _facts(
        """memory: n (i + o^2)
        F @ v: n o (i + o)
        solve(v, damping): 9 (i o)^3 once, then (i o)^2
        solve(v): 9 (i o)^3 once, then (i o)^2
        trace: n (i + o)
        diag: n i o
        norm: n^2 (i + o^2)
        eigvalsh: 9 (i o)^3
        logdet(damping): 9 (i o)^3
        sample(damping): 9 (i o)^3 once, then (i o)^2""",
        "trace, diag",
        "as PMatBlockDiag, for linear layers applied once per example",
    ),
    PMatKFAC: _facts(
        """memory: i^2 + o^2
        F @ v: i o (i + o)
        solve(v, damping): 9 (i^3 + o^3) once, then 2 i o (i + o)
        solve(v): 9 (i^3 + o^3) once, then 2 i o (i + o)
        trace: i + o
        diag: i o
        norm: i^2 + o^2
        eigvalsh: 9 (i^3 + o^3) + i o
        logdet(damping): 9 (i^3 + o^3) + i o
        sample(damping): 9 (i^3 + o^3) once, then 2 i o (i + o)""",
        "",
        "one layer and one example; inputs independent of output-gradients",
    ),
    PMatEKFAC: _facts(
        """memory: i^2 + o^2 + i o
        F @ v: 2 i o (i + o)
        solve(v, damping): 2 i o (i + o)
        solve(v): 2 i o (i + o)
        trace: i o
        diag: i o (i + o)
        norm: i o
        eigvalsh: i o
        logdet(damping): i o
        sample(damping): 2 i o (i + o)""",
        "trace",
        "one layer whose eigenbasis is a Kronecker product; never further from F than PMatKFAC",
    ),
    PMatQuasiDiag: _facts(
        """memory: < 2 d
        F @ v: d
        solve(v, damping): d
        solve(v): d
        trace: d
        diag: d
        norm: d
        eigvalsh: 9 o i^3
        logdet(damping): d
        sample(damping): d""",
        "trace, diag",
        "one unit with one weight and a bias",
    ),
    PMatDiag: _facts(
        """memory: d
        F @ v: d
        solve(v, damping): d
        solve(v): d
        trace: d
        diag: d
        norm: d
        eigvalsh: d log d
        logdet(damping): d
        sample(damping): d""",
        "trace, diag",
        "uncorrelated gradients",
    ),
    PMatLowRank: _facts(
        """memory: m d
        F @ v: 4 m d
        solve(v, damping): 2 m^2 d + 9 m^3 once, then 8 m d
        solve(v): 2 m^2 d + 9 m^3 once, then 8 m d
        trace: m d
        diag: m d
        norm: m^2 d
        eigvalsh: 2 m^2 d + 9 m^3
        logdet(damping): 2 m^2 d + 9 m^3
        sample(damping): 2 m^2 d + 9 m^3 once, then 8 m d""",
        "all",
        "always",
    ),
    PMatImplicit: _facts(
        """memory: 0
        F @ v: one pass
        solve(v, damping): k passes
        solve(v): not defined: asks for a damping
        trace: c backward passes
        diag: c backward passes
        norm(2): k passes
        sample(damping): k passes""",
        "all",
        "always",
    ),
}


def _as(kind: type[PMat], situation: str, exact: str, **changed: str) -> Facts:
    """Facts like those of another class, apart from some costs."""
    names = {"memory": "memory", "product": "F @ v", "trace": "trace", "diag": "diag", "solve": "solve(v, damping)"}
    names |= {"largest": "norm(2)"}
    costs = dict(FACTS[kind].costs) | {names[key]: cost for key, cost in changed.items()}
    answers = frozenset(ANSWERS) if exact == "all" else frozenset(p.strip() for p in exact.split(",") if p.strip())
    return Facts(costs, answers, situation)


FACTS[PMatMixed] = Facts(
    dict.fromkeys(OPERATIONS, "per layer that of its kind") | {"eigh": WRITTEN_OUT, "tensor": WRITTEN_OUT},
    frozenset(),
    "per layer that of its kind",
)
FACTS[PMatSum] = _as(
    PMatImplicit,
    "as its terms",
    "",
    memory="sum of the terms",
    product="sum of the terms",
    trace="sum of the terms",
    diag="sum of the terms",
    solve="k products; direct with low-rank terms (Woodbury)",
    largest="k products",
)
FACTS[PMatEye] = _as(PMatDiag, "F is a multiple of the identity", "")
FACTS[PMatImplicitHessian] = _as(
    PMatImplicit, "always (of the Hessian)", "all", trace="d passes, by blocks", diag="d passes, by blocks"
)
