"""curvlinops: KFAC, EKFAC and the generalized Gauss-Newton (here the Fisher) as linear operators."""

from __future__ import annotations

from curvlinops import EKFACLinearOperator, GGNLinearOperator, KFACLinearOperator
from torch import Tensor
from torch.nn import CrossEntropyLoss

from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve


def _operator(kind: type, problem: common.Problem, **options: object) -> GGNLinearOperator:
    """An operator on the one batch, with the checks and counts that would traverse the data again switched off."""
    data = [(problem.x, problem.drawn)]
    parameters = list(problem.model.parameters())
    common_options = {"num_data": problem.n, "check_deterministic": False, **options}
    return kind(problem.model, CrossEntropyLoss(), parameters, data, **common_options)


def kronecker(task: Task) -> Prepared:
    """KFAC or EKFAC with joint weight and bias; the labels drawn beforehand make the one-sample Fisher."""
    problem = common.problem(task)
    options = {
        "fisher_type": {"exact": "type-2", "sample": "empirical"}[task.fisher],
        "separate_weight_and_bias": False,
        "num_per_example_loss_terms": 1,
    }

    def run() -> KFACLinearOperator:
        if task.kind == "ekfac":
            operator = _operator(EKFACLinearOperator, problem, **options)
            operator.compute_eigenvalue_correction()
        else:
            operator = _operator(KFACLinearOperator, problem, **options)
            operator.compute_kronecker_factors()
        return operator

    def values(operator: KFACLinearOperator) -> dict:
        return common.matrix_values(operator @ common.probe(task), operator.trace, operator.frobenius_norm)

    return Prepared(run, values)


def fvp(task: Task) -> Prepared:
    """Products by jvp and vjp, on vectors given as lists of tensors (no copies)."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())
    shared = [common.unflatten(flat, parameters) for flat in common.vectors(task)]

    def run() -> list[list[Tensor]]:
        operator = _operator(GGNLinearOperator, problem)
        ends = [operator @ shared[0]]
        for vector in shared[1:]:
            last = operator @ vector
        return [*ends, last]

    def values(result: list[list[Tensor]]) -> dict:
        return common.vector_values(first=common.flatten(result[0]), last=common.flatten(result[1]))

    return Prepared(run, values)


TASKS = {"kfac": kronecker, "ekfac": kronecker, "fvp": fvp}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("curvlinops-for-pytorch"))
