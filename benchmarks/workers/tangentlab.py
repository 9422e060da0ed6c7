"""tangentlab, through its public interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

import tangentlab
from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve
from tangentlab import FIM, NTK, FIM_MonteCarlo, PMatDiag, PMatEKFAC, PMatImplicit, PMatKFAC, PVector, per_example_grads


def _fisher(problem: common.Problem, representation: type, fisher: str) -> Any:
    """The exact Fisher, or the one-sample Fisher of the labels drawn beforehand."""
    if fisher == "exact":
        return FIM(problem.model, problem.x, representation=representation, likelihood="classification")
    labels = problem.drawn.unsqueeze(0)
    return FIM_MonteCarlo(problem.model, problem.x, representation=representation, samples=1, labels=labels)


def _pvector(problem: common.Problem, flat: Tensor) -> PVector:
    parameters = dict(problem.model.named_parameters())
    return PVector(
        PVector.from_model(problem.model).layout, dict(zip(parameters, common.unflatten(flat, parameters.values())))
    )


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
        product = matrix.mv(_pvector(problem, common.probe(task)))
        return common.matrix_values(_flat(product), matrix.trace(), matrix.norm())

    return Prepared(lambda: _fisher(problem, representation, task.fisher), values)


def diag(task: Task) -> Prepared:
    """The diagonal Fisher."""
    problem = common.problem(task)

    def values(matrix: PMatDiag) -> dict:
        return common.vector_values(diagonal=_flat(matrix.diag()))

    return Prepared(lambda: _fisher(problem, PMatDiag, "exact"), values)


def fvp(task: Task) -> Prepared:
    """Implicit products; the matrix keeps what it can between them."""
    problem = common.problem(task)
    shared = [_pvector(problem, flat) for flat in common.vectors(task)]

    def run() -> list[PVector]:
        matrix = _fisher(problem, PMatImplicit, "exact")
        first = matrix.mv(shared[0])
        for vector in shared[1:]:
            last = matrix.mv(vector)
        return [first, last]

    def values(result: list[PVector]) -> dict:
        return common.vector_values(first=_flat(result[0]), last=_flat(result[1]))

    return Prepared(run, values)


def grads(task: Task) -> Prepared:
    """The gradient of every example's cross-entropy."""
    problem = common.problem(task)

    def values(result: PVector) -> dict:
        return common.gradients_values([result[name] for name, _ in problem.model.named_parameters()])

    return Prepared(lambda: per_example_grads(problem.model, (problem.x, problem.y)), values)


TASKS = {"ntk": ntk, "kfac": kronecker, "ekfac": kronecker, "diag": diag, "fvp": fvp, "grads": grads}

if __name__ == "__main__":
    serve(TASKS, lambda: {**common.versions(), "tangentlab": tangentlab.__version__})
