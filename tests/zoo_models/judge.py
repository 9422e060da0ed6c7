"""What becomes of a specimen: every operation is exact to plain autograd, or refused in words, or a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import tangentlab as tl
from tangentlab.engine.batches import common_length, take_examples
from tangentlab.engine.feeding import call_model
from tangentlab.errors import TangentlabError
from tests.engine.state import model_state
from tests.trial.linear_calls import NotOnce, kronecker_factors, linear_calls, own_linear_layers
from tests.zoo_models.base import Specimen

TOLERANCE, ROUNDED, SINGLE = 1e-9, 1e-4, 2e-3
EXACT, REFUSED, ABSENT = "exact", "refused", "not defined"
FAILURES = WRONG, FOREIGN, TOUCHED = "silent error", "foreign exception", "model changed"


class NotDefined(Exception):
    """The operation makes no sense for this specimen."""


@dataclass
class Verdict:
    """The outcome of one operation: the relative error where there is one, else the words."""

    operation: str
    outcome: str
    error: float | None = None
    words: str = ""

    @property
    def failed(self) -> bool:
        """Whether it counts against the library."""
        return self.outcome in FAILURES


@dataclass
class Subject:
    """A specimen with its truth: rows (C, N, d) by plain backward passes over the graph of the whole batch."""

    specimen: Specimen
    model: nn.Module = field(init=False)
    batch: Any = field(init=False)
    rows: Tensor = field(init=False, repr=False)
    options: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.model, self.batch = self.specimen.catch()
        self.options = {"function": self.specimen.outputs, "forward": self.specimen.forward}
        twin, batch = self.specimen.catch()
        self.rows = plain_rows(self.outputs(twin, batch), twin)

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """(N, C), with a graph."""
        return self.specimen.outputs((self.specimen.forward or call_model)(model, batch), batch)

    @property
    def structured(self) -> set[str]:
        """Parameters that take a closed form."""
        rows = tl.coverage(self.model, self.batch, **self.options).rows
        return {name for row in rows if row.route == "structured" for name in row.names}


def plain_rows(outputs: Tensor, model: nn.Module) -> Tensor:
    """(C, N, d) in float64, one backward pass per output and example."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def row(value: Tensor) -> Tensor:
        grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten().double() for g, p in zip(grads, parameters)]
        )

    return torch.stack([torch.stack([row(value) for value in line]) for line in outputs.t()])


def random_vector(layout: tl.LayerCollection, subject: Subject) -> tl.PVector:
    """Normal numbers in the type of the model."""
    drawn = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return tl.PVector(layout, drawn.to(subject.specimen.dtype))


def jacobian(subject: Subject) -> tuple[Tensor, Tensor]:
    """Rows."""
    return tl.Jacobian(subject.model, subject.batch, **subject.options).data, subject.rows


def kernel(subject: Subject) -> tuple[Tensor, Tensor]:
    """The tangent kernel."""
    found = tl.NTK(subject.model, subject.batch, **subject.options).data
    return found, torch.einsum("cnd,bmd->cnbm", subject.rows, subject.rows)


def product(subject: Subject) -> tuple[Tensor, Tensor]:
    """J v by automatic differentiation."""
    map_ = tl.Jacobian(subject.model, subject.batch, tl.PushForwardImplicit, **subject.options)
    v = random_vector(map_.layout, subject)
    return map_.mv(v).data, subject.rows @ v.flat.double()


def diagonal(subject: Subject) -> tuple[Tensor, Tensor]:
    """The diagonal of the Fisher matrix of a regression."""
    found = tl.FIM(subject.model, subject.batch, tl.PMatDiag, "regression", **subject.options)
    return found.diag().flat, subject.rows.square().sum((0, 1)) / subject.rows.shape[1]


def ekfac(subject: Subject) -> tuple[Tensor, Tensor]:
    """EKFAC where it is defined, the diagonal elsewhere: the trace is exact."""
    kind = tl.PMatMixed.default(block_limit=0, kronecker=tl.PMatEKFAC)
    found = tl.FIM(subject.model, subject.batch, kind, "regression", **subject.options)
    return found.trace(), subject.rows.square().sum() / subject.rows.shape[1]


def kfac(subject: Subject) -> tuple[Tensor, Tensor]:
    """Products of KFAC with a vector, for the linear layers that are called once, against B V A by definition."""
    structured, twin = subject.structured, subject.specimen.catch()[0]
    names = [n for n, p in twin.named_parameters() if p.requires_grad and n in structured]
    layers = [layer for layer in own_linear_layers(twin) if f"{layer}.weight" in names]
    names = [n for n in names if n.rpartition(".")[0] in layers]
    if not layers:
        raise NotDefined("no linear layer of its own takes a closed form")
    calls = linear_calls(
        twin,
        layers,
        lambda: subject.outputs(twin, subject.batch),
        lambda f: torch.eye(f[0].numel(), dtype=f.dtype).expand(len(f), -1, -1),
    )
    matrix = tl.FIM(subject.model, subject.batch, tl.PMatKFAC, "regression", **subject.options, layers=names)
    vector = random_vector(matrix.layout, subject)
    image = matrix @ vector
    found, truth = [], []
    for layer, (inputs, grads) in calls.items():
        bias = f"{layer}.bias" in names
        a, b = kronecker_factors(inputs.double(), grads.double(), subject.rows.shape[1], bias)
        parts = [f"{layer}.weight", *([f"{layer}.bias"] if bias else [])]
        whole = torch.cat([vector[n].double().reshape(len(b), -1) for n in parts], 1)
        truth.append((b @ whole @ a).flatten())
        found.append(torch.cat([image[n].reshape(len(b), -1) for n in parts], 1).flatten())
    return torch.cat(found), torch.cat(truth)


def alone(subject: Subject) -> tuple[Tensor, Tensor]:
    """The tangent kernel of one example alone, where experts may get nothing."""
    if common_length(subject.batch) != subject.rows.shape[1]:
        raise NotDefined("no single example in the batch")
    one = take_examples(subject.batch, [1])
    twin = subject.specimen.catch()[0]
    rows = plain_rows(subject.outputs(twin, one), twin)
    return tl.NTK(subject.model, one, **subject.options).data, torch.einsum("cnd,bmd->cnbm", rows, rows)


def own_loss(subject: Subject) -> tuple[Tensor, Tensor]:
    """Gradients of the model's own loss, every example asked alone."""
    if subject.specimen.package not in ("transformers", "peft"):
        raise NotDefined("no loss of its own")
    twin, batch = subject.specimen.catch()
    batch["labels"] = labels_of(twin(**batch).logits, batch)
    found = tl.per_example_grads(subject.model, batch, likelihood="model").flat
    losses = [twin(**take_examples(batch, [n])).loss for n in range(len(found))]
    return found, plain_rows(torch.stack(losses)[:, None], twin)[0]


def labels_of(logits: Tensor, batch: dict[str, Any]) -> Tensor:
    """A class, or the tokens themselves with some left out."""
    if logits.ndim == 2:
        return torch.arange(len(logits)) % logits.shape[1]
    labels = batch.get("decoder_input_ids", batch.get("input_ids")).clone()
    labels[0, -2:] = -100
    return labels


def check(subject: Subject) -> tuple[Tensor, Tensor]:
    """The library's own proof."""
    report = tl.check(subject.model, subject.batch, **subject.options, tolerance=ROUNDED)
    return torch.tensor(report.error), torch.zeros(())


OPERATIONS: dict[str, Callable[[Subject], tuple[Tensor, Tensor]]] = {
    one.__name__: one for one in (jacobian, kernel, alone, product, diagonal, ekfac, kfac, own_loss, check)
}


def judged(subject: Subject, operation: str) -> Verdict:
    """Run one operation."""
    before = model_state(subject.model)
    try:
        found, truth = OPERATIONS[operation](subject)
    except NotOnce:
        return Verdict(operation, ABSENT, words="a linear layer is called several times")
    except NotDefined as error:
        return Verdict(operation, ABSENT, words=str(error))
    except TangentlabError as error:
        verdict = Verdict(operation, REFUSED, words=f"{type(error).__name__}: {error}")
        if "disagrees with plain autograd" in verdict.words:
            verdict.outcome = WRONG
    except Exception as error:
        return Verdict(operation, FOREIGN, words=f"{type(error).__name__}: {error}")
    else:
        error = float((found.double() - truth).abs().max() / truth.abs().max().clamp_min(1e-3))
        single = subject.specimen.dtype == torch.float32
        tolerance = SINGLE if single else ROUNDED if subject.specimen.rounds else TOLERANCE
        verdict = Verdict(operation, EXACT if error <= tolerance else WRONG, error)
    if model_state(subject.model) != before:
        return Verdict(operation, TOUCHED, words=verdict.words)
    return verdict
