"""Second derivatives by plain autograd: the gradient with its graph is made once, a product is one more backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.jobs import EIGENVALUES
from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve


def _product(problem: common.Problem) -> Callable[[Tensor], Tensor]:
    """v -> H v of the mean loss."""
    parameters = list(problem.model.parameters())
    loss = cross_entropy(problem.model(problem.x), problem.y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=True)])

    def product(vector: Tensor) -> Tensor:
        return common.flatten(torch.autograd.grad(gradient, parameters, vector, retain_graph=True))

    return product


def hvp(task: Task) -> Prepared:
    """Products with the shared vectors."""
    problem, shared = common.problem(task), common.vectors(task)

    def run() -> list[Tensor]:
        product = _product(problem)
        products = [product(vector) for vector in shared]
        return [products[0], products[-1]]

    return Prepared(run, lambda result: common.vector_values(first=result[0], last=result[1]))


def eigenvalues(task: Task) -> Prepared:
    """The largest by scipy's `eigsh`, to the tolerance that tangentlab has by default in float32."""
    problem, size = common.problem(task), task.size

    def run() -> object:
        product = _product(problem)
        operator = LinearOperator(
            (size, size), lambda v: product(torch.from_numpy(v.reshape(-1))).numpy(), dtype="float32"
        )
        return eigsh(operator, k=EIGENVALUES, which="LA", tol=common.EIGENVALUE_TOLERANCE, return_eigenvectors=False)

    return Prepared(run, common.eigenvalues_values)


TASKS = {"hvp": hvp, "eigenvalues": eigenvalues}

if __name__ == "__main__":
    serve(TASKS, common.versions)
