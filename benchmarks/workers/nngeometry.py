"""nngeometry: GramMatrix, and the Fisher matrix in its representations."""

from __future__ import annotations

import torch
from nngeometry.gram import GramMatrix
from nngeometry.layercollection import LayerCollection
from nngeometry.metrics import FIM
from nngeometry.object import FMatDense, PMatDiag, PMatEKFAC, PMatImplicit, PMatKFAC, PVector
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve
from benchmarks.workers.fresh import fresh_process


def _loader(problem: common.Problem) -> DataLoader:
    return DataLoader(TensorDataset(problem.x, problem.drawn), batch_size=problem.n)


def _layer_order(problem: common.Problem) -> list[int]:
    """Positions of the parameters, in the order in which nngeometry's layers list them."""
    layers = LayerCollection.from_model(problem.model)
    modules, _ = layers.get_layerid_module_maps(problem.model)
    position = {id(parameter): index for index, parameter in enumerate(problem.model.parameters())}
    return [position[id(parameter)] for parameter in layers.parameters(modules)]


def _to_pvector(problem: common.Problem, flat: Tensor) -> PVector:
    parts = common.unflatten(flat, problem.model.parameters())
    ordered = [parts[index] for index in _layer_order(problem)]
    return PVector(LayerCollection.from_model(problem.model), vector_repr=common.flatten(ordered))


def _to_flat(problem: common.Problem, vector: Tensor) -> Tensor:
    parameters, order = list(problem.model.parameters()), _layer_order(problem)
    parts = common.unflatten(vector, [parameters[index] for index in order])
    return common.flatten([part for _, part in sorted(zip(order, parts), key=lambda pair: pair[0])])


def _fisher(problem: common.Problem, representation: type, fisher: str) -> object:
    """The exact Fisher, or the one-sample Fisher of the labels drawn beforehand (the regression of log p(label))."""
    if fisher == "exact":
        return FIM(problem.model, _loader(problem), representation, variant="classif_logits")

    def log_probability(x: Tensor, labels: Tensor) -> Tensor:
        return torch.log_softmax(problem.model(x), dim=1).gather(1, labels.unsqueeze(1))

    return FIM(problem.model, _loader(problem), representation, variant="regression", function=log_probability)


def ntk(task: Task) -> Prepared:
    """The kernel by its closed forms per layer, one backward per pair of outputs."""
    problem = common.problem(task)

    def run() -> Tensor:
        return GramMatrix(problem.model, _loader(problem), representation=FMatDense).data

    return Prepared(run, common.kernel_values)


def kronecker(task: Task) -> Prepared:
    """KFAC or EKFAC; the latter starts with KFAC's eigenvalues, `update_diag` makes them the corrected ones."""
    problem = common.problem(task)

    def run() -> PMatKFAC | PMatEKFAC:
        if task.kind == "kfac":
            return _fisher(problem, PMatKFAC, task.fisher)
        matrix = _fisher(problem, PMatEKFAC, task.fisher)
        matrix.update_diag(_loader(problem))
        return matrix

    def values(matrix: PMatKFAC | PMatEKFAC) -> dict:
        product = matrix.mv(_to_pvector(problem, common.probe(problem))).to_torch()
        return common.matrix_values(_to_flat(problem, product), matrix.trace(), matrix.frobenius_norm())

    return Prepared(run, values)


def diag(task: Task) -> Prepared:
    """The diagonal Fisher."""
    problem = common.problem(task)

    def values(matrix: PMatDiag) -> dict:
        return common.vector_values(diagonal=_to_flat(problem, matrix.get_diag()))

    return Prepared(lambda: _fisher(problem, PMatDiag, "exact"), values)


def fvp(task: Task) -> Prepared:
    """Implicit products: two backwards per output and product."""
    problem = common.problem(task)
    shared = [_to_pvector(problem, flat) for flat in common.vectors(task)]

    def run() -> list[Tensor]:
        matrix = _fisher(problem, PMatImplicit, "exact")
        products = [matrix.mv(vector) for vector in shared]
        return [products[0].to_torch(), products[-1].to_torch()]

    def values(result: list[Tensor]) -> dict:
        return common.vector_values(first=_to_flat(problem, result[0]), last=_to_flat(problem, result[1]))

    return Prepared(run, values)


def first(task: Task) -> Prepared:
    """The first kernel of a process that has just been started."""
    return fresh_process(task, _FIRST)


_FIRST = """
from torch.utils.data import DataLoader, TensorDataset
from nngeometry.gram import GramMatrix
from nngeometry.object import FMatDense
kernel = GramMatrix(model, DataLoader(TensorDataset(x, y), batch_size=len(x)), representation=FMatDense).data
"""

TASKS = {"first": first, "ntk": ntk, "kfac": kronecker, "ekfac": kronecker, "diag": diag, "fvp": fvp}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("nngeometry"))
