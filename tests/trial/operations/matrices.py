"""Matrices on parameter space: which matrix, in which representation, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.errors import ModelError, NumericsError, StructureError
from tests.trial.choices import Choices, NoSuchCase
from tests.trial.operations.base import Work, has_targets, operation, random_vector
from tests.trial.operations.second_derivatives import dense_hessian
from tests.trial.scene import Scene
from tests.trial.truth import Truth, fisher_of_outputs, hessian_of_loss, losses, scores, second_derivatives

ALL, DIAGONAL, BLOCKS, TRACE = "all", "diagonal", "blocks", "trace"
REPRESENTATIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "PMatDense": (lambda: tl.PMatDense, ALL),
    "PMatImplicit": (lambda: tl.PMatImplicit, ALL),
    "PMatLowRank": (lambda: tl.PMatLowRank, ALL),
    "PMatBlockDiag": (lambda: tl.PMatBlockDiag, BLOCKS),
    "PMatDiag": (lambda: tl.PMatDiag, DIAGONAL),
    "PMatKronSum": (lambda: tl.PMatKronSum, BLOCKS),
    "PMatQuasiDiag": (lambda: tl.PMatQuasiDiag, TRACE),
    "PMatEKFAC": (lambda: tl.PMatEKFAC, TRACE),
    "PMatMixed, EKFAC": (lambda: tl.PMatMixed.default(kronecker=tl.PMatEKFAC), TRACE),
    "PMatMixed, diagonal": (lambda: tl.PMatMixed.of({"*": tl.PMatDiag}), DIAGONAL),
}
"""How to ask for it, and which part of the exact matrix it holds; the last kind keeps the trace of every parameter group."""

QUESTIONS = [
    "dense",
    "product",
    "trace",
    "diagonal",
    "solve",
    "quadratic",
    "norm",
    "logdet",
    "spectrum",
    "inverse",
    "sum",
]


def held(matrix: Tensor, part: str, scene: Scene) -> Tensor:
    """The part of the exact matrix that a representation stores."""
    if part == DIAGONAL:
        return torch.diag(matrix.diagonal())
    if part != BLOCKS:
        return matrix
    layers = tl.LayerCollection.from_model(scene.model, list(scene.selected())).layers
    owner = {name: layer for layer, names in layers.items() for name in names}
    shapes = scene.truth.shapes
    owners = [owner[name] for name in scene.truth.names for _ in range(torch.Size(shapes[name]).numel())]
    number = torch.tensor([list(layers).index(layer) for layer in owners])
    return matrix * (number[:, None] == number[None]).to(matrix.dtype)


def damping_of(matrix: Tensor) -> float:
    """A damping that keeps the condition number at a few hundred, whatever the network."""
    return 0.01 * float(matrix.diagonal().abs().max()) + 1e-3


def asked(matrix: tl.PMat, question: str, damping: float) -> Tensor:
    """What the library answers."""
    example = matrix.diag().flat
    v = tl.PVector(matrix.layout, random_vector(matrix.layout.numel).to(example.dtype))
    return {
        "dense": matrix.to_dense,
        "product": lambda: (matrix @ v).flat,
        "trace": matrix.trace,
        "diagonal": lambda: example,
        "solve": lambda: matrix.solve(v, damping).flat,
        "quadratic": lambda: matrix.vTMv(v),
        "norm": matrix.norm,
        "logdet": lambda: matrix.logdet(damping),
        "spectrum": matrix.eigvalsh,
        "inverse": lambda: matrix.inverse(damping).to_dense(),
        "sum": lambda: (matrix + 0.5 * matrix).to_dense(),
    }[question]()


def answer(matrix: Tensor, question: str, damping: float) -> Tensor:
    """The same by dense algebra."""
    v = random_vector(len(matrix))
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    return {
        "dense": lambda: matrix,
        "product": lambda: matrix @ v,
        "trace": matrix.trace,
        "diagonal": matrix.diagonal,
        "solve": lambda: torch.linalg.solve(matrix + damping * eye, v),
        "quadratic": lambda: v @ matrix @ v,
        "norm": matrix.norm,
        "logdet": lambda: torch.linalg.slogdet(matrix + damping * eye)[1],
        "spectrum": lambda: torch.linalg.eigvalsh(matrix),
        "inverse": lambda: torch.linalg.inv(matrix + damping * eye),
        "sum": lambda: 1.5 * matrix,
    }[question]()


def matrix_work(
    o: Choices, scene: Scene, build: Callable[[Any], tl.PMat], exact: Callable[[Truth], Tensor], **facts: Any
) -> Work:
    """A representation of a matrix and a question to it."""
    name = o.pick("representation", facts.pop("representations", list(REPRESENTATIONS)))
    make, part = REPRESENTATIONS[name]
    low = scene.blueprint.dtype not in (torch.float64, torch.float32)
    traces = ["trace"] if "EKFAC" in name else ["trace", "diagonal"]
    question = o.pick("question", traces if part == TRACE else QUESTIONS[:4] if low else QUESTIONS)
    damping = damping_of(held(exact(scene.truth), part, scene))
    iterative = name == "PMatImplicit" and question == "solve"
    return Work(
        lambda: {question: asked(build(make()), question, damping)},
        lambda truth: {question: answer(held(exact(truth), part, scene), question, damping)},
        slack=facts.pop("slack", 1.0)
        * (1e4 if iterative else 100 if question in ("solve", "inverse", "logdet") else 1),
        refusals=facts.pop("refusals", ()) + (StructureError,) * ("EKFAC" in name or "Kron" in name),
        **facts,
    )


@operation(7)
def fisher(o: Choices, scene: Scene) -> Work:
    name = scene.data.likelihood

    def build(kind: Any) -> tl.PMat:
        return tl.FIM(scene.model, scene.data.give(), kind, name, **scene.options())

    return matrix_work(o, scene, build, lambda truth: truth.weighted(fisher_of_outputs(name, truth.outputs)))


@operation(2)
def sampled_fisher(o: Choices, scene: Scene) -> Work:
    """The labels that the library drew are the labels of the truth."""
    name, samples = scene.data.likelihood, o.number("samples", 1, 2)
    drawn: list[Tensor] = []

    def build(kind: Any) -> tl.PMat:
        generator = torch.Generator().manual_seed(3)
        options = scene.options() | {"samples": samples, "generator": generator}
        matrix = tl.FIM_MonteCarlo(scene.model, scene.data.give(), kind, name, **options)
        matrix.trace()  # implicit matrices draw when they are first asked
        drawn[:] = matrix.labels  # type: ignore[attr-defined]
        return matrix

    def exact(truth: Truth) -> Tensor:
        if not drawn:
            return truth.weighted(fisher_of_outputs(name, truth.outputs))
        rows = [truth.pulled(scores(name, truth.outputs, labels)) for labels in torch.cat(drawn, 1)]
        every = torch.cat(rows)
        return every.t() @ every / len(every)

    if scene.data.form == "shuffled":
        raise NoSuchCase("the order of the labels would not be known")
    return matrix_work(o, scene, build, exact)


@operation(2, fits=has_targets)
def second_moment(o: Choices, scene: Scene) -> Work:
    """FIM_Empirical and GradientCovariance."""
    name, centred = scene.data.likelihood, o.pick("centred", [None, False, True])

    def build(kind: Any) -> tl.PMat:
        if centred is None:
            return tl.FIM_Empirical(scene.model, scene.data.give(), kind, name, **scene.options())
        return tl.GradientCovariance(scene.model, scene.data.give(), kind, name, centred=centred, **scene.options())

    def exact(truth: Truth) -> Tensor:
        gradients = truth.pulled(scores(name, truth.outputs, truth.targets))
        gradients = gradients - gradients.mean(0) if centred else gradients
        return gradients.t() @ gradients / len(gradients)

    names = list(REPRESENTATIONS)
    if centred:  # what is centred is another class for those
        names = ["PMatDense", "PMatImplicit", "PMatLowRank", "PMatBlockDiag", "PMatDiag"]

    def size(truth: Truth) -> float:
        """Of what the mean takes away."""
        gradients = truth.pulled(scores(name, truth.outputs, truth.targets))
        return 1e-4 * float(gradients.square().sum(1).max()) if centred else 0.0

    refusals = (NumericsError,) * bool(centred)
    return matrix_work(o, scene, build, exact, representations=names, refusals=refusals, size=size)


@operation(2, fits=has_targets)
def gauss_newton(o: Choices, scene: Scene) -> Work:
    name, own = scene.data.likelihood, o.chance("own loss")

    def build(kind: Any) -> tl.PMat:
        loss = (lambda f, y: losses(name, f, y)) if own else name
        return tl.GGN(scene.model, scene.data.give(), kind, loss, **scene.options())

    second = second_derivatives if own else hessian_of_loss
    work = matrix_work(o, scene, build, lambda truth: truth.weighted(second(name, truth.outputs, truth.targets)))
    work.undefined = "the matrix is zero" if name == "log_softmax" and not own else ""
    return work


@operation(2, fits=has_targets, dtypes=(torch.float64,))
def hessian(o: Choices, scene: Scene) -> Work:
    name = scene.data.likelihood
    if scene.place not in ("nowhere", "no_grad", "default double"):
        raise NoSuchCase("second derivatives under a mode")
    if scene.truth.rows.shape[-1] > 60:
        raise NoSuchCase("too many columns")
    matrix = dense_hessian(scene)

    def build(kind: Any) -> tl.PMat:
        return tl.Hessian(scene.model, scene.data.give(), kind, name, **scene.options())

    names = ["PMatDense", "PMatImplicit", "PMatBlockDiag", "PMatDiag"]
    work = matrix_work(
        o, scene, build, lambda truth: matrix, representations=names, refusals=(NumericsError, ModelError), slack=1e3
    )
    if o.record["question"] in ("solve", "inverse", "logdet"):
        raise NoSuchCase("an indefinite matrix need not have it")
    return work
