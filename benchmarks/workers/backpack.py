"""BackPACK: exact diagonal, per-example gradients, and Gauss-Newton products by double backward."""

from __future__ import annotations

import warnings

import torch
from backpack import backpack, extend
from backpack.extensions import BatchGrad, DiagGGNExact
from backpack.hessianfree.ggnvp import ggn_vector_product_from_plist
from torch import Tensor, nn
from torch.nn import CrossEntropyLoss

from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve


def _extended(problem: common.Problem, second_order: bool) -> tuple[nn.Module, list[nn.Parameter], nn.Module]:
    """The network as BackPACK wants it, its parameters in the original order, and the loss.

    Second-order quantities need residual sums as modules; BackPACK's converter rewrites the graph with copies of the
    modules under their own names, so parameters are matched by value.
    """
    residual = second_order and not isinstance(problem.model, nn.Sequential)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = extend(problem.model, use_converter=residual)
    by_name = dict(model.named_parameters())
    parameters = []
    for name, parameter in problem.model.named_parameters():
        found = by_name.get(name)
        if found is None or not torch.equal(found, parameter):
            found = next(p for p in by_name.values() if p.shape == parameter.shape and torch.equal(p, parameter))
        parameters.append(found)
    return model, parameters, extend(CrossEntropyLoss())


def diag(task: Task) -> Prepared:
    """Diagonal of the Gauss-Newton matrix of the mean cross-entropy, which is the Fisher."""
    problem = common.problem(task)
    model, parameters, loss = _extended(problem, second_order=True)

    def run() -> list[Tensor]:
        model.zero_grad()
        with backpack(DiagGGNExact()):
            loss(model(problem.x), problem.y).backward()
        return [parameter.diag_ggn_exact for parameter in parameters]

    return Prepared(run, lambda result: common.vector_values(diagonal=common.flatten(result)))


def grads(task: Task) -> Prepared:
    """Per-example gradients of the summed loss (of the mean loss they would come divided by n)."""
    problem = common.problem(task)
    model, parameters, _ = _extended(problem, second_order=False)
    loss = extend(CrossEntropyLoss(reduction="sum"))

    def run() -> list[Tensor]:
        model.zero_grad()
        for parameter in parameters:
            parameter.grad_batch = None
        with backpack(BatchGrad()):
            loss(model(problem.x), problem.y).backward()
        return [parameter.grad_batch for parameter in parameters]

    return Prepared(run, common.gradients_values)


def fvp(task: Task) -> Prepared:
    """Products by double backward, the forward's graph kept for all of them."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())
    shared = [common.unflatten(flat, parameters) for flat in common.vectors(task)]

    def run() -> list[tuple[Tensor, ...]]:
        output = problem.model(problem.x)
        loss = CrossEntropyLoss()(output, problem.y)
        first = ggn_vector_product_from_plist(loss, output, parameters, shared[0])
        for vector in shared[1:]:
            last = ggn_vector_product_from_plist(loss, output, parameters, vector)
        return [first, last]

    def values(result: list[tuple[Tensor, ...]]) -> dict:
        return common.vector_values(first=common.flatten(result[0]), last=common.flatten(result[1]))

    return Prepared(run, values)


TASKS = {"diag": diag, "grads": grads, "fvp": fvp}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("backpack-for-pytorch"))
