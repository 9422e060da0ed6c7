"""PyHessian: Hessian-vector products with the gradient's graph kept, and leading eigenvalues by power iteration."""

from __future__ import annotations

import torch
from pyhessian import hessian
from pyhessian.utils import hessian_vector_product
from torch import Tensor
from torch.nn import CrossEntropyLoss

from benchmarks.jobs import EIGENVALUES
from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve


def _hessian(problem: common.Problem) -> hessian:
    """The Hessian of the mean loss on the one batch; the gradient and its graph are made here."""
    problem.model.zero_grad()
    return hessian(problem.model, CrossEntropyLoss(), data=(problem.x, problem.y), cuda=False)


def hvp(task: Task) -> Prepared:
    """Products with the shared vectors."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())
    shared = [common.unflatten(flat, parameters) for flat in common.vectors(task)]

    def run() -> list[tuple[Tensor, ...]]:
        matrix = _hessian(problem)
        products = [hessian_vector_product(matrix.gradsH, matrix.params, vector) for vector in shared]
        return [products[0], products[-1]]

    def values(result: list[tuple[Tensor, ...]]) -> dict:
        return common.vector_values(first=common.flatten(result[0]), last=common.flatten(result[1]))

    return Prepared(run, values)


def eigenvalues(task: Task) -> Prepared:
    """The eigenvalues of largest size, one after the other, to the tolerance that is its default."""
    problem = common.problem(task)

    def run() -> list[float]:
        torch.manual_seed(0)
        return _hessian(problem).eigenvalues(top_n=EIGENVALUES)[0]

    return Prepared(run, common.eigenvalues_values)


TASKS = {"hvp": hvp, "eigenvalues": eigenvalues}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("pyhessian"))
