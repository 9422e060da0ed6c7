"""Opacus: per-example gradients by its samplers, their norms by ghost clipping, and the empirical diagonal.

Its hooks are silent in evaluation mode; no network here computes anything else in training mode.
"""

from __future__ import annotations

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from torch import Tensor

from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve


def _rows(problem: common.Problem, model: GradSampleModule) -> list[Tensor]:
    model.zero_grad()
    common.summed_loss(model(problem.x), problem.y).backward()
    return [parameter.grad_sample for parameter in model.parameters()]


def grads(task: Task) -> Prepared:
    """Per-example gradients of the summed loss."""
    problem = common.problem(task)
    model = GradSampleModule(problem.model.train(), loss_reduction="sum")
    return Prepared(lambda: _rows(problem, model), common.gradients_values)


def diag(task: Task) -> Prepared:
    """The mean of the squared per-example gradients, which are squared in place."""
    problem = common.problem(task)
    model = GradSampleModule(problem.model.train(), loss_reduction="sum")

    def run() -> list[Tensor]:
        result = [rows.square_().mean(0) for rows in _rows(problem, model)]
        model.zero_grad()
        return result

    def values(result: list[Tensor]) -> dict:
        return common.vector_values(diagonal=common.flatten(result))

    return Prepared(run, values)


def norms(task: Task) -> Prepared:
    """Norms by ghost clipping: no per-example gradient of a linear layer or an embedding is written out."""
    problem = common.problem(task)
    model = GradSampleModuleFastGradientClipping(
        problem.model.train(), loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
    )

    def run() -> Tensor:
        model.zero_grad()
        common.summed_loss(model(problem.x), problem.y).backward()
        return torch.stack([parameter._norm_sample for parameter in model.parameters()]).norm(2, dim=0)

    return Prepared(run, common.norms_values)


TASKS = {"grads": grads, "diag": diag, "norms": norms}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("opacus"))
