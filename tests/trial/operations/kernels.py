"""Tangent kernels: all outputs, the trace, some outputs, by layer, between two sets, centred, as products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tangentlab as tl
from tangentlab.errors import SolveError
from tests.trial.choices import Choices
from tests.trial.operations.base import Results, Work, in_type, nothing, operation, random_vector
from tests.trial.scene import Scene
from tests.trial.truth import Truth


def centred(kernel: Tensor, how: str | None) -> Tensor:
    """A kernel (C, N, B, M) after projections written out."""
    if how is None:
        return kernel

    def projector(outputs: int, examples: int) -> Tensor:
        if how == "global":
            size = outputs * examples
            return torch.eye(size, dtype=kernel.dtype) - 1 / size
        return torch.kron(
            torch.eye(outputs, dtype=kernel.dtype), torch.eye(examples, dtype=kernel.dtype) - 1 / examples
        )

    c, n, b, m = kernel.shape
    flat = projector(c, n) @ kernel.reshape(c * n, b * m) @ projector(b, m)
    return flat.reshape(kernel.shape)


def true_kernel(truth: Truth, outputs: Any, cross: bool, center: str | None) -> Tensor:
    """(C, N, C, M) of what was asked for."""
    if isinstance(outputs, int):
        truth = truth.of_outputs([outputs])
    elif isinstance(outputs, list):
        truth = truth.of_outputs(outputs)
    kernel = truth.kernel()
    kernel = kernel[..., : truth.sizes[0]] if cross else kernel
    if outputs == "trace":
        kernel = torch.einsum("cncm->nm", kernel)[None, :, None]
    return centred(kernel, center)


def largest(truth: Truth) -> float:
    """Largest entry of the kernel before it is centred."""
    return float(truth.kernel().abs().max())


@operation(6)
def ntk(o: Choices, scene: Scene) -> Work:
    count = scene.truth.count
    outputs = o.pick("outputs", ["all", "trace", count - 1, [0], [count - 1, 0]])
    cross, center = o.chance("cross", 0.25), o.pick("center", [None, "per_output", "global"], [4, 1, 1])

    def found() -> Results:
        second = scene.data.batches[0][0] if cross else None
        options = scene.options() | {"outputs": outputs, "center": center}
        return {"kernel": tl.NTK(scene.model, scene.data.give(), second, **options).data}

    expected = lambda truth: {"kernel": true_kernel(truth, outputs, cross, center)}  # noqa: E731
    return Work(found, expected, ordered=True, size=largest if center else nothing)


@operation(1.5)
def ntk_by_layer(o: Choices, scene: Scene) -> Work:
    trace = o.pick("outputs", ["all", "trace"])

    def found() -> Results:
        kernels = tl.NTK(scene.model, scene.data.give(), per_layer=True, outputs=trace, **scene.options())
        return {name: kernel.data for name, kernel in kernels.items()}

    def expected(truth: Truth) -> Results:
        layers = tl.LayerCollection.from_model(scene.model, list(scene.selected())).layers
        return {layer: true_kernel(truth.only(tuple(names)), trace, False, None) for layer, names in layers.items()}

    return Work(found, expected, ordered=True)


@operation(2.5)
def implicit_kernel(o: Choices, scene: Scene) -> Work:
    outputs = o.pick("outputs", ["all", "trace", scene.truth.count - 1])
    center, what = o.pick("center", [None, "per_output"], [4, 1]), o.pick("what", ["product", "diagonal", "dense"])
    rows = scene.truth.count if outputs == "all" else 1
    size = (rows, scene.truth.examples)

    def found() -> Results:
        options = scene.options() | {"outputs": outputs, "center": center, "representation": tl.FMatImplicit}
        kernel = tl.NTK(scene.model, scene.data.give(), **options)
        if what == "product":
            return {"product": (kernel @ tl.FVector(in_type(scene, *size))).data}
        return {what: kernel.diag().data if what == "diagonal" else kernel.tensor()}

    def expected(truth: Truth) -> Results:
        kernel = true_kernel(truth, outputs, False, center)
        if what == "product":
            return {"product": torch.einsum("cnbm,bm->cn", kernel, random_vector(*size))}
        return {what: torch.einsum("cncn->cn", kernel) if what == "diagonal" else kernel}

    return Work(found, expected, ordered=True, size=largest if center else nothing)


@operation(1.5, dtypes=(torch.float64,))
def kernel_algebra(o: Choices, scene: Scene) -> Work:
    """Solves, determinants and spectra of a kernel, and regression with it."""
    what = o.pick("what", ["solve", "logdet", "eigvalsh", "norm", "trace", "vTMv", "ridge", "implicit solve"])
    damping = 0.5
    size = (scene.truth.count, scene.truth.examples)

    def found() -> Results:
        kind = tl.FMatImplicit if what == "implicit solve" else tl.FMatDense
        kernel = tl.NTK(scene.model, scene.data.give(), representation=kind, **scene.options())
        u = tl.FVector(in_type(scene, *size))
        if what == "ridge":
            from tangentlab.kernels import ridge_dual

            return {what: ridge_dual(kernel, u.flat, damping)}
        values = {
            "solve": lambda: kernel.solve(u, damping).data,
            "implicit solve": lambda: kernel.solve(u, damping).data,
            "logdet": lambda: kernel.logdet(damping),
            "eigvalsh": kernel.eigvalsh,
            "norm": kernel.norm,
            "trace": kernel.trace,
            "vTMv": lambda: kernel.vTMv(u),
        }
        return {what: values[what]()}

    def expected(truth: Truth) -> Results:
        matrix = truth.kernel().flatten(2).flatten(0, 1)
        u = random_vector(*size)
        damped = matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype)
        values = {
            "solve": lambda: torch.linalg.solve(damped, u.flatten()).reshape(size),
            "ridge": lambda: torch.linalg.solve(matrix + damping * len(matrix) * torch.eye(len(matrix)), u.flatten()),
            "logdet": lambda: torch.linalg.slogdet(damped)[1],
            "eigvalsh": lambda: torch.linalg.eigvalsh(matrix),
            "norm": matrix.norm,
            "trace": matrix.trace,
            "vTMv": lambda: u.flatten() @ matrix @ u.flatten(),
        }
        return {what: values[what.removeprefix("implicit ")]()}

    if what != "implicit solve":
        return Work(found, expected, ordered=True, slack=10)
    rounding = (SolveError,) if scene.rounds else ()  # products in single precision do not converge in double precision
    return Work(found, expected, ordered=True, slack=1e4, refusals=rounding)
