"""Write the tables of docs/representations.md from the classes: `python scripts/representation_tables.py`.

Costs and exactness come from `tangentlab.objects.facts`, the first sentence from each class's docstring, and the classes of
F + F, F**p and F.inverse(damping) from doing it on a small network. Everything between the two markers is replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import tangentlab as tl
from tangentlab.errors import TangentlabError
from tangentlab.objects.facts import ANSWERS, FACTS, OPERATIONS, WRITTEN_OUT

PAGE = Path(__file__).parent.parent / "docs" / "representations.md"
START, END = "<!-- generated: start -->", "<!-- generated: end -->"
SHOWN = (
    tl.PMatDense,
    tl.PMatBlockDiag,
    tl.PMatKronSum,
    tl.PMatEKFAC,
    tl.PMatKFAC,
    tl.PMatQuasiDiag,
    tl.PMatDiag,
    tl.PMatLowRank,
    tl.PMatImplicit,
)


def example(kind: Any) -> tl.PMat:
    """A small matrix of a kind."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        x = torch.randn(5, 3, dtype=torch.float64)
    return tl.FIM(model, x, kind)


def result_class(operation: Any) -> str:
    """Name of the class that an operation returns, or of the error that it raises."""
    try:
        return f"`{type(operation()).__name__}`"
    except TangentlabError as error:
        return type(error).__name__


def first_sentence(kind: type) -> str:
    """What the class says it is."""
    text = " ".join((kind.__doc__ or "").split())
    end = min((text.find(mark) for mark in (". ", ": ") if text.find(mark) > 0), default=len(text))
    return text[:end].rstrip(".")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cost_table() -> str:
    """operation x representation, leading order; a star marks answers that are those of the exact matrix."""
    rows = []
    for operation in OPERATIONS:
        cells = []
        for kind in SHOWN:
            star = " \\*" if operation in FACTS[kind].exact else ""
            cells.append(FACTS[kind].costs[operation].replace("^2", "²").replace("^3", "³") + star)
        rows.append([f"`{operation}`", *cells])
    return table(["operation", *(f"`{kind.__name__}`" for kind in SHOWN)], rows)


def class_table() -> str:
    """What each representation is, when it is exact, and the classes of sums, powers and inverses."""
    rows = []
    for kind in SHOWN:
        F = example(kind)
        results = [lambda F=F: F + F, lambda F=F: F**0.5, lambda F=F: F.inverse(0.1), lambda F=F: F @ F]
        facts = FACTS[kind]
        cells = [f"`{kind.__name__}`", first_sentence(kind), facts.situation, *(result_class(work) for work in results)]
        rows.append(cells)
    header = ["class", "is", "is exact for", "`F + F`", "`F**p`", "`F.inverse(damping)`", "`F @ F`"]
    return table(header, rows)


def generated() -> str:
    """The generated part of the page."""
    answers = ", ".join(f"`{name}`" for name in ANSWERS)
    return "\n\n".join(
        [
            START,
            "## What they are",
            class_table(),
            "`PMatMixed` takes one of these per layer; `PMatSum` is what no class can hold, kept as it is written; "
            "`PMatProduct` is the map v -> F (G v), which is not symmetric and therefore no PMat.",
            "## What each operation costs",
            "Leading order. d parameters, n examples, m = n c rows (c outputs or label samples); i inputs (with the "
            "homogeneous 1) and o outputs of a layer, summed over layers; k iterations. One pass is a product by automatic "
            f"differentiation, about six forward passes. `{WRITTEN_OUT}` is refused above the memory budget. "
            f"A star: the answer is that of the exact matrix (judged for {answers}).",
            cost_table(),
            END,
        ]
    )


def page(text: str) -> str:
    """The page with its generated part renewed."""
    before, rest = text.split(START, 1)
    return before + generated() + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
