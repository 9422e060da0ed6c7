"""The recipes of `torch.func`, as its tutorials give them, and the yardsticks of the machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, jvp, linearize, vjp, vmap
from torch.nn.functional import cross_entropy

from benchmarks.jobs import GEMM_SIZE
from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve

Params = dict[str, Tensor]
CHUNK = 16


def _single(problem: common.Problem) -> Callable[[Params, Tensor], Tensor]:
    def call(params: Params, example: Tensor) -> Tensor:
        return functional_call(problem.model, params, (example.unsqueeze(0),)).squeeze(0)

    return call


def ntk(task: Task) -> Prepared:
    """Jacobian contraction: all Jacobians by `vmap(jacrev)`, then one matrix product per parameter, without copies."""
    problem = common.problem(task)
    call, params = _single(problem), problem.params

    def run() -> Tensor:
        jacobians = vmap(jacrev(call), (None, 0))(params, problem.x)
        flat = (jacobian.flatten(0, 1).flatten(1) for jacobian in jacobians.values())
        total = sum(rows @ rows.T for rows in flat)
        return total.unflatten(1, (problem.n, -1)).unflatten(0, (problem.n, -1)).permute(1, 0, 3, 2)

    return Prepared(run, common.kernel_values)


def _rows(problem: common.Problem) -> Callable[[], list[Tensor]]:
    call, params = _single(problem), problem.params

    def loss(params: Params, example: Tensor, label: Tensor) -> Tensor:
        return common.summed_loss(call(params, example)[None], label[None])

    return lambda: list(vmap(grad(loss), (None, 0, 0))(params, problem.x, problem.y).values())


def grads(task: Task) -> Prepared:
    """Per-example gradients by `vmap(grad)`."""
    return Prepared(_rows(common.problem(task)), common.gradients_values)


def norms(task: Task) -> Prepared:
    """Norms of the same."""
    rows = _rows(common.problem(task))

    def run() -> Tensor:
        return torch.stack([part.flatten(1).norm(2, dim=1) for part in rows()]).norm(2, dim=0)

    return Prepared(run, common.norms_values)


def _empirical_diag(task: Task) -> Prepared:
    """The mean of their squares, squared in place."""
    rows = _rows(common.problem(task))

    def values(result: list[Tensor]) -> dict:
        return common.vector_values(diagonal=common.flatten(result))

    return Prepared(lambda: [part.square_().mean(0) for part in rows()], values)


def diag(task: Task) -> Prepared:
    """Per-example gradients of each class's log-probability, squared and weighted, on a few examples at a time."""
    if task.fisher == "empirical":
        return _empirical_diag(task)
    problem = common.problem(task)
    call, params = _single(problem), problem.params

    def log_probability(params: Params, example: Tensor, label: Tensor) -> Tensor:
        return -cross_entropy(call(params, example), label)

    def run() -> list[Tensor]:
        total = {name: torch.zeros_like(value) for name, value in params.items()}
        for x in problem.x.split(CHUNK):
            with torch.no_grad():
                probabilities = problem.model(x).softmax(1)
            for c, weights in enumerate(probabilities.T / problem.n):
                labels = torch.full((len(x),), c)
                for name, rows in vmap(grad(log_probability), (None, 0, 0))(params, x, labels).items():
                    total[name].view(-1).add_(weights @ rows.flatten(1).square_())
        return list(total.values())

    def values(result: list[Tensor]) -> dict:
        return common.vector_values(diagonal=common.flatten(result))

    return Prepared(run, values)


def fvp(task: Task) -> Prepared:
    """`J^T H J v` by a jvp per product and a vjp whose forward is kept; `linearize` keeps the jvp's forward as well."""
    problem = common.problem(task)
    params = problem.params
    shared = common.vectors(task)

    def outputs(params: Params) -> Tensor:
        return functional_call(problem.model, params, (problem.x,))

    def named(flat: Tensor) -> Params:
        return dict(zip(params, common.unflatten(flat, params.values())))

    def run() -> tuple[Tensor, Tensor]:
        logits, pull = vjp(outputs, params)
        probabilities = logits.softmax(1)
        if task.variant == "linearize":
            _, push = linearize(outputs, params)
        else:

            def push(tangent: Params) -> Tensor:
                return jvp(outputs, (params,), (tangent,))[1]

        ends = []
        for index, flat in enumerate(shared):
            tangent = push(named(flat))
            weighted = probabilities * (tangent - (probabilities * tangent).sum(1, keepdim=True)) / problem.n
            product = common.flatten(pull(weighted)[0].values())
            if index in (0, len(shared) - 1):
                ends.append(product)
        return ends[0], ends[-1]

    return Prepared(run, lambda result: common.vector_values(first=result[0], last=result[1]))


def gradient(task: Task) -> Prepared:
    """The gradient of the mean loss, by plain autograd."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())

    def run() -> tuple[Tensor, ...]:
        loss = common.summed_loss(problem.model(problem.x), problem.y) / problem.n
        return torch.autograd.grad(loss, parameters)

    return Prepared(run, lambda result: common.vector_values(gradient=common.flatten(result)))


def gemm(task: Task) -> Prepared:
    """The product of two square matrices; the rate that a dense computation could reach on this machine."""
    common.problem(task)
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE).unbind()
    return Prepared(lambda: a @ b, lambda result: {}, lambda: {"operations": 2 * GEMM_SIZE**3})


TASKS = {"ntk": ntk, "grads": grads, "norms": norms, "diag": diag, "fvp": fvp, "gradient": gradient, "gemm": gemm}

if __name__ == "__main__":
    serve(TASKS, common.versions)
