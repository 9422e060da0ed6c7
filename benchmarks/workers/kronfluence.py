"""kronfluence: empirical KFAC and EKFAC of linear and convolutional layers, by the functions below its `Analyzer`.

The `Analyzer` writes every factor to files; these functions return them, and their times are those of the computation.
"""

from __future__ import annotations

from typing import Any

import torch
from kronfluence.analyzer import prepare_model
from kronfluence.arguments import FactorArguments
from kronfluence.factor.covariance import fit_covariance_matrices_with_loader
from kronfluence.factor.eigen import fit_lambda_matrices_with_loader, perform_eigendecomposition
from kronfluence.task import Task as KronfluenceTask
from kronfluence.utils.state import State
from torch import Tensor, nn

from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve

Factors = dict[str, dict[str, Tensor]]


class _Training(KronfluenceTask):
    """The summed loss, of the layers of a problem."""

    def __init__(self, problem: common.Problem) -> None:
        self.layers = problem.layers

    def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
        return common.summed_loss(model(batch[0]), batch[1])

    def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
        return self.compute_train_loss(batch, model)

    def get_influence_tracked_modules(self) -> list[str]:
        return self.layers


def kronecker(task: Task) -> Prepared:
    """Covariances of inputs and output-gradients, for EKFAC their eigenvectors and the second moments in them."""
    problem = common.problem(task)
    parameters, probe = list(problem.factored.values()), common.probe(problem)
    training, state = _Training(problem), State(cpu=True)
    model = prepare_model(problem.model, training)
    batches = [(problem.x, problem.y)]
    settings = FactorArguments(
        strategy="ekfac", use_empirical_fisher=True, eigendecomposition_dtype=torch.float32
    )  # single precision, as everywhere here

    def run() -> Factors:
        given = {"model": model, "state": state, "factor_args": settings, "disable_tqdm": True}
        _, factors = fit_covariance_matrices_with_loader(task=training, loader=batches, **given)
        if task.kind == "kfac":
            return factors
        eigen = perform_eigendecomposition(factors, **given)
        _, moments = fit_lambda_matrices_with_loader(task=training, loader=batches, eigen_factors=eigen, **given)
        return eigen | moments

    def values(result: Factors) -> dict:
        own = ({key: factors[layer] for key, factors in result.items()} for layer in problem.layers)
        blocks = (_block(task.kind, factors, problem.n) for factors in own)
        return common.block_values(blocks, probe, parameters)

    return Prepared(run, values)


def _block(kind: str, own: dict[str, Tensor], examples: int) -> tuple[Tensor, Tensor, Tensor]:
    """(U_B, U_A, scale) of a layer: A is divided by examples, B by examples and positions, second moments by examples."""
    if kind == "ekfac":
        scale = own["lambda_matrix"] / examples
        return own["gradient_eigenvectors"], own["activation_eigenvectors"], scale
    a, right = torch.linalg.eigh(own["activation_covariance"] / examples)
    b, left = torch.linalg.eigh(own["gradient_covariance"] / own["num_gradient_covariance_processed"])
    return left, right, b[:, None] * a


TASKS = {"kfac": kronecker, "ekfac": kronecker}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("kronfluence"))
