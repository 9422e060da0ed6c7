"""Each approximation of the Fisher matrix of one network against the exact one, which is never stored.

Rows of two kinds come out: `forward` (trace, quadratic forms, products) and `solve` (one per damping).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab import (
    FIM_MonteCarlo,
    LayerCollection,
    PMat,
    PMatBlockDiag,
    PMatDiag,
    PMatEKFAC,
    PMatImplicit,
    PMatKFAC,
    PMatQuasiDiag,
    PVector,
)
from tangentlab.experiments import Lab
from tangentlab.experiments._images import Row

REPRESENTATIONS: dict[str, type[PMat]] = {
    "Diag": PMatDiag,
    "QuasiDiag": PMatQuasiDiag,
    "BlockDiag": PMatBlockDiag,
    "KFAC": PMatKFAC,
    "EKFAC": PMatEKFAC,
}
FACTORED = "KFAC, factored"
DRAWS = ("shared", "independent")


@dataclass(frozen=True)
class Truth:
    """The exact matrix: its trace, and its products with unit vectors `(vectors, d)`."""

    labels: Any
    trace: Tensor
    vectors: PVector
    products: PVector


def representations(model: nn.Module, block_limit: int) -> list[str]:
    """Names of those that are compared: BlockDiag only where no layer has more than `block_limit` parameters."""
    layout = LayerCollection.from_model(model)
    largest = max(sum(math.prod(layout.shapes[name]) for name in names) for names in layout.layers.values())
    return [name for name in REPRESENTATIONS if name != "BlockDiag" or largest <= block_limit]


def exact(model: nn.Module, batches: Sequence[tuple[Tensor]], samples: int, vectors: int, lab: Lab, step: int) -> Truth:
    """The exact Monte-Carlo Fisher matrix, with `samples` labels drawn per example, on random unit vectors."""
    generator = lab.generator("labels", step, "exact")
    matrix = FIM_MonteCarlo(model, batches, PMatImplicit, samples=samples, generator=generator, progress=False)
    random = torch.randn(vectors, matrix.dim, generator=lab.generator("vectors", step))
    unit = (random / random.norm(dim=1, keepdim=True)).to(next(model.parameters()))
    v = PVector(matrix.layout, unit)
    return Truth(matrix.labels, matrix.trace(), v, matrix @ v)  # type: ignore[attr-defined]


def compare(
    model: nn.Module,
    batches: Sequence[tuple[Tensor]],
    names: Sequence[str],
    samples: int,
    truth: Truth,
    draws: str,
    dampings: Sequence[float],
    lab: Lab,
    step: int,
) -> list[Row]:
    """Every approximation against the truth, from the truth's own labels (`shared`) or from labels of its own."""
    rows: list[Row] = []
    for number, name in enumerate(names):
        lab.progress(f"step {step}, {draws} draws, {name}", number, len(names))
        labels: dict[str, Any] = {"labels": truth.labels}
        if draws == "independent":
            labels = {"generator": lab.generator("labels", step, name)}
        matrix = FIM_MonteCarlo(model, batches, REPRESENTATIONS[name], samples=samples, progress=False, **labels)
        where = {"step": step, "draws": draws, "representation": name}
        rows.append({"kind": "forward", **where, **forward_errors(matrix, truth)})
        for damping in dampings:
            rows.append({"kind": "solve", **where, "damping": damping, **solve_errors(matrix, truth, damping)})
        if isinstance(matrix, PMatKFAC):
            where = {**where, "representation": FACTORED}
            for damping in dampings:
                errors = solve_errors(matrix, truth, damping, factored=True)
                rows.append({"kind": "solve", **where, "damping": damping, **errors})
    return rows


def forward_errors(matrix: PMat, truth: Truth) -> dict[str, float]:
    """Relative errors of the trace and of v^T F v, residual and cosine of F v; means over the vectors."""
    v, expected = truth.vectors.flat, truth.products.flat
    found = (matrix @ truth.vectors).flat
    forms, true_forms = (v * found).sum(1), (v * expected).sum(1)
    return {
        "trace": ((matrix.trace() - truth.trace).abs() / truth.trace).item(),
        "vTMv": ((forms - true_forms).abs() / true_forms).mean().item(),
        "residual": ((found - expected).norm(dim=1) / expected.norm(dim=1)).mean().item(),
        "cosine": nn.functional.cosine_similarity(found, expected).mean().item(),
    }


def solve_errors(matrix: PMat, truth: Truth, damping: float, **options: Any) -> dict[str, float]:
    """v' = (approximation + damping I)^-1 (F + damping I) v against v: |v - v'| / |v'| and cosine, means over vectors."""
    back = matrix.solve(truth.products + damping * truth.vectors, damping, **options).flat
    v = truth.vectors.flat
    return {
        "residual": ((v - back).norm(dim=1) / back.norm(dim=1)).mean().item(),
        "cosine": nn.functional.cosine_similarity(v, back).mean().item(),
    }
