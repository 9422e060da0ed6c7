"""The closed forms of a network of one hidden layer, as one writes them down for this one network."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve

Factors = list[tuple[Tensor, Tensor]]
"""Homogeneous inputs (n, i + 1) and output-gradients (k, n, o) of both layers."""


def _factors(model: nn.Sequential, x: Tensor, fisher: bool) -> Factors:
    """With the rows of the identity as cotangents, or with those whose squares add up to the Fisher of a softmax."""
    first, _, last = model
    before = first(x)
    hidden = before.relu()
    outputs = last(hidden)
    cotangents = torch.eye(outputs.shape[1]).unsqueeze(1).expand(-1, len(x), -1)
    if fisher:
        p = outputs.softmax(1)
        cotangents = p.sqrt().T.unsqueeze(-1) * (cotangents - p)
    backward = (cotangents @ last.weight) * (before > 0)
    ones = x.new_ones(len(x), 1)
    return [(torch.cat([x, ones], 1), backward), (torch.cat([hidden, ones], 1), cotangents)]


def _kernel(model: nn.Sequential, x: Tensor) -> Tensor:
    total: Tensor | float = 0.0
    with torch.no_grad():
        for inputs, grads in _factors(model, x, fisher=False):
            total = total + torch.einsum("nm,cno,dmo->cndm", inputs @ inputs.T, grads, grads)
    assert isinstance(total, Tensor)
    return total


def _diagonal(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    found = []
    with torch.no_grad():
        for inputs, grads in _factors(model, x, fisher=True):
            both = torch.einsum("cno,ni->oi", grads.square(), inputs.square()) / len(x)
            found += [both[:, :-1], both[:, -1]]
    return found


def _kronecker(model: nn.Sequential, x: Tensor) -> Factors:
    with torch.no_grad():
        return [
            (inputs.T @ inputs / len(x), torch.einsum("cno,cnp->op", grads, grads) / len(x))
            for inputs, grads in _factors(model, x, fisher=True)
        ]


def ntk(task: Task) -> Prepared:
    """The tangent kernel."""
    problem = common.problem(task)
    return Prepared(partial(_kernel, problem.model, problem.x), common.kernel_values)


def diag(task: Task) -> Prepared:
    """The diagonal of the exact Fisher."""
    problem = common.problem(task)

    def values(result: list[Tensor]) -> dict:
        return common.vector_values(diagonal=common.flatten(result))

    return Prepared(partial(_diagonal, problem.model, problem.x), values)


def kfac(task: Task) -> Prepared:
    """A and B of both layers."""
    problem = common.problem(task)

    def values(result: Factors) -> dict:
        parts = iter(common.unflatten(common.probe(problem), problem.factored.values()))
        products, trace, square = [], 0.0, 0.0
        for (a, b), (weight, bias) in zip(result, zip(parts, parts)):
            image = b @ torch.cat([weight, bias[:, None]], 1) @ a
            products += [image[:, :-1], image[:, -1]]
            trace, square = trace + float(a.trace() * b.trace()), square + float(a.norm() * b.norm()) ** 2
        return common.matrix_values(common.flatten(products), trace, square**0.5)

    return Prepared(partial(_kronecker, problem.model, problem.x), values)


TASKS = {"ntk": ntk, "diag": diag, "kfac": kfac}

if __name__ == "__main__":
    serve(TASKS, common.versions)
