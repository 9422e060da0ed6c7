"""tangentlab, through its public interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

import tangentlab
from benchmarks.jobs import EIGENVALUES
from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve
from benchmarks.workers.fresh import fresh_process
from tangentlab import (
    FIM,
    NTK,
    FIM_Empirical,
    FIM_MonteCarlo,
    Hessian,
    LayerCollection,
    PMatDiag,
    PMatEKFAC,
    PMatImplicit,
    PMatKFAC,
    PVector,
    per_example_grad_norms,
    per_example_grads,
)


def _fisher(problem: common.Problem, representation: type, fisher: str, layers: list[str] | None = None) -> Any:
    """The exact Fisher, the one-sample Fisher of the labels drawn beforehand, or the second moment at the labels."""
    given = {"representation": representation, "layers": layers}
    if fisher == "exact":
        return FIM(problem.model, problem.x, likelihood="classification", **given)
    if fisher == "empirical":
        return FIM_Empirical(problem.model, (problem.x, problem.y), **given)
    return FIM_MonteCarlo(problem.model, problem.x, samples=1, labels=problem.drawn.unsqueeze(0), **given)


def _pvector(problem: common.Problem, flat: Tensor, layers: list[str] | None = None) -> PVector:
    return PVector(LayerCollection.from_model(problem.model, layers), flat)


def _flat(vector: PVector) -> Tensor:
    return vector.flat


def _planned_operations(problem: common.Problem) -> dict[str, float]:
    """Operations of the routes that the planner chooses for the kernel, symmetric products counted once."""
    return {"operations": float(tangentlab.plan(problem.model, problem.x, what="ntk").operations)}


def ntk(task: Task) -> Prepared:
    """The tangent kernel."""
    problem = common.problem(task)
    run = partial(NTK, problem.model, problem.x)
    return Prepared(run, lambda kernel: common.kernel_values(kernel.data), partial(_planned_operations, problem))


def kronecker(task: Task) -> Prepared:
    """KFAC or EKFAC."""
    problem = common.problem(task)
    representation = {"kfac": PMatKFAC, "ekfac": PMatEKFAC}[task.kind]

    def values(matrix: Any) -> dict:
        product = matrix.mv(_pvector(problem, common.probe(problem), problem.layers))
        return common.matrix_values(_flat(product), matrix.trace(), matrix.norm())

    return Prepared(lambda: _fisher(problem, representation, task.fisher, problem.layers), values)


def diag(task: Task) -> Prepared:
    """The diagonal Fisher."""
    problem = common.problem(task)

    def values(matrix: PMatDiag) -> dict:
        return common.vector_values(diagonal=_flat(matrix.diag()))

    return Prepared(lambda: _fisher(problem, PMatDiag, task.fisher), values)


def fvp(task: Task) -> Prepared:
    """Implicit products inside one `frozen()` block: what `torch.func.linearize` promises by construction."""
    problem = common.problem(task)
    shared = [_pvector(problem, flat) for flat in common.vectors(task)]

    def run() -> list[PVector]:
        matrix = _fisher(problem, PMatImplicit, "exact")
        with matrix.frozen():
            products = [matrix.mv(vector) for vector in shared]
        return [products[0], products[-1]]

    def values(result: list[PVector]) -> dict:
        return common.vector_values(first=_flat(result[0]), last=_flat(result[1]))

    return Prepared(run, values)


def hvp(task: Task) -> Prepared:
    """Products with the Hessian of the mean loss, inside one `frozen()` block; that it is symmetric is proved in the first."""
    problem = common.problem(task)
    shared = [_pvector(problem, flat) for flat in common.vectors(task)]
    matrix = Hessian(problem.model, (problem.x, problem.y), PMatImplicit)

    def run() -> list[PVector]:
        with matrix.frozen():
            products = [matrix.mv(vector) for vector in shared]
        return [products[0], products[-1]]

    def values(result: list[PVector]) -> dict:
        return common.vector_values(first=_flat(result[0]), last=_flat(result[1]))

    return Prepared(run, values)


def eigenvalues(task: Task) -> Prepared:
    """The largest eigenvalues of the Hessian, by block Lanczos."""
    problem = common.problem(task)

    def run() -> Tensor:
        return Hessian(problem.model, (problem.x, problem.y), PMatImplicit).top_eigenpairs(EIGENVALUES).values

    return Prepared(run, common.eigenvalues_values)


def first(task: Task) -> Prepared:
    """The first kernel of a process that has just been started."""
    return fresh_process(task, "import tangentlab\nkernel = tangentlab.NTK(model, x).data")


def grads(task: Task) -> Prepared:
    """The gradient of every example's cross-entropy."""
    problem = common.problem(task)

    def values(result: PVector) -> dict:
        return common.gradients_values([result[name] for name, _ in problem.model.named_parameters()])

    return Prepared(lambda: per_example_grads(problem.model, (problem.x, problem.y)), values)


def norms(task: Task) -> Prepared:
    """Their norms."""
    problem = common.problem(task)
    return Prepared(lambda: per_example_grad_norms(problem.model, (problem.x, problem.y)), common.norms_values)


TASKS = {
    "hvp": hvp,
    "eigenvalues": eigenvalues,
    "first": first,
    "ntk": ntk,
    "kfac": kronecker,
    "ekfac": kronecker,
    "diag": diag,
    "fvp": fvp,
    "grads": grads,
    "norms": norms,
}

if __name__ == "__main__":
    serve(TASKS, lambda: {**common.versions(), "tangentlab": tangentlab.__version__})
