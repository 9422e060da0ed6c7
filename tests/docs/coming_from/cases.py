"""Networks, losses and tables: what the statements of `docs/coming-from.md` are tested on, and where they stand there.

A row of the page is tested by running its own code on other networks than the page's: weights that are used once, weights
shared over positions, convolutions, outputs at every position (tokens), and tokens that see each other.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tangentlab
from tangentlab import FIM, NTK, FVector, Jacobian, PMatKFAC, PVector, kernels, linalg
from tests.docs.pages import ROOT, without_fences

PAGE = ROOT / "docs" / "coming-from.md"
N, T, C = 6, 5, 3
"""Examples, positions, outputs (of every position)."""


class Mix(nn.Module):
    """Every position becomes a combination of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.eye(T) + torch.randn(T, T) / T**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("st,ntd->nsd", self.weights, x)


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "plain": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, C)), (4,)),
    "shared": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(5 * T, C)), (T, 4)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, C)), (2, 3, 3)),
    "tokens": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, C)), (T, 4)),
    "mixed tokens": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Mix(), nn.Linear(5, C)), (T, 4)),
}
SINGLE = ("plain", "shared", "conv")
TOKENS = ("tokens", "mixed tokens")
LOSSES = {"cross entropy": "classification", "binary cross entropy": "binary", "squared error": "regression"}
REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class Case:
    """A network, its data, and a loss as torch has it.

    `likelihood` is our name of the loss; `terms` the loss terms of an example: T for tokens, else 1.
    """

    name: str
    loss: str
    reduction: str
    model: nn.Sequential
    x: Tensor
    y: Tensor

    @property
    def likelihood(self) -> str:
        return LOSSES[self.loss]

    @property
    def terms(self) -> int:
        return T if self.name in TOKENS else 1

    def outputs(self) -> Tensor:
        """(N, C), or (N, T, C)."""
        return self.model(self.x)

    def value(self, outputs: Tensor) -> Tensor:
        """The loss of outputs (..., C), reduced as torch's loss modules do."""
        rows, labels = outputs.reshape(-1, C), self.y.reshape(-1, *self.y.shape[self.x_axes :])
        if self.loss == "cross entropy":
            return F.cross_entropy(rows, labels, reduction=self.reduction)
        if self.loss == "squared error":
            return F.mse_loss(rows, labels, reduction=self.reduction)
        return F.binary_cross_entropy_with_logits(rows, labels, reduction=self.reduction)

    @property
    def x_axes(self) -> int:
        return 2 if self.terms > 1 else 1

    def torch_loss(self) -> nn.Module:
        """The loss module."""
        kinds = {"cross entropy": nn.CrossEntropyLoss, "squared error": nn.MSELoss}
        return kinds.get(self.loss, nn.BCEWithLogitsLoss)(reduction=self.reduction)

    def names(self) -> dict[str, Any]:
        """What the code of the page may use."""
        public = {name: getattr(tangentlab, name) for name in tangentlab.__all__}
        model, x, y = self.model, self.x, self.y
        model.zero_grad()
        self.value(self.outputs()).backward()
        own = {
            "tl": tangentlab, "torch": torch, "nn": nn, "kernels": kernels, "linalg": linalg,
            "model": model, "x": x, "y": y, "x2": x[:2] + 1, "n": N, "c": C, "T": T,
            "targets": torch.randn(N, C, dtype=x.dtype, generator=torch.Generator().manual_seed(3)),
            "loader": DataLoader(TensorDataset(x, y), batch_size=N),
            "v": PVector.from_grad(model), "F": FIM(model, x, PMatKFAC, self.likelihood),
            "u": FVector(torch.randn(self.terms * C, N, dtype=x.dtype, generator=torch.Generator().manual_seed(4))),
            "K": NTK(model, x), "J": Jacobian(model, x),
        }  # fmt: skip
        return {**public, **own}


@contextmanager
def default_double() -> Iterator[None]:
    """Float64 for libraries that make tensors of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def case(name: str, loss: str = "cross entropy", reduction: str = "mean") -> Case:
    """A network with fixed weights and data, in float64."""
    build, shape = NETWORKS[name]
    with torch.random.fork_rng(devices=[]), default_double():
        torch.manual_seed(0)
        model, x = build(), torch.randn(N, *shape)
        rows = (N, T) if name in TOKENS else (N,)
        y = {
            "cross entropy": lambda: torch.randint(C, rows),
            "binary cross entropy": lambda: torch.randint(2, (*rows, C)).to(x.dtype),
            "squared error": lambda: torch.randn(*rows, C),
        }[loss]()
    return Case(name, loss, reduction, model, x, y)


# ---------------------------------------------------------------- the page

Row = tuple[str, str]
TESTED: dict[Row, str] = {}
"""(section, first cell) of every row that has a test, with the test's name."""


def table_rows() -> dict[Row, list[str]]:
    """(section, first cell) -> the code of the column headed `tangentlab`."""
    found: dict[Row, list[str]] = {}
    section, column = "", None
    for line in without_fences(PAGE.read_text(encoding="utf-8")).splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not line.startswith("|"):
            column = None
        elif column is None:
            column = cells.index("tangentlab") if "tangentlab" in cells else -1
        elif column > 0 and not set(cells[0]) <= {"-"}:
            codes = re.findall(r"`([^`]+)`", cells[column])
            found[section, cells[0].replace("`", "")] = [code.replace("\\|", "|") for code in codes]
    return found


ROWS = table_rows()


def ours(section: str, row: str, names: dict[str, Any]) -> list[Any]:
    """The values of a row's code, run with these names; of an assignment, the assigned value."""
    values = []
    for code in ROWS[section, row]:
        before = set(names)
        try:
            values.append(eval(code, names))
        except SyntaxError:
            exec(code, names)
            values += [names[name] for name in names if name not in before and name != "__builtins__"]
    return values


def covers(section: str, *rows: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test as that of these rows; they must be on the page."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        for row in rows:
            assert (section, row) in ROWS, f"{section} has no row {row!r}"
            TESTED[section, row] = test.__name__
        return test

    return mark
