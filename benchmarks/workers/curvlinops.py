"""curvlinops: KFAC, EKFAC and the generalized Gauss-Newton (here the Fisher) as linear operators."""

from __future__ import annotations

from curvlinops import EKFACLinearOperator, GGNLinearOperator, HessianLinearOperator, KFACLinearOperator
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from torch.nn import CrossEntropyLoss

from benchmarks.jobs import EIGENVALUES
from benchmarks.workers import common
from benchmarks.workers.base import Prepared, Task, serve


class _ClassesSecond(nn.Module):
    """Logits `(examples, positions, classes)` with the classes on axis 1, where cross-entropy has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        return logits.movedim(-1, 1) if logits.ndim > 2 else logits


def _operator(
    kind: type, problem: common.Problem, parameters: list[nn.Parameter], labels: Tensor, **options: object
) -> GGNLinearOperator:
    """An operator on the one batch, with the checks and counts that would traverse the data again switched off."""
    model = problem.model if labels.ndim == 1 else _ClassesSecond(problem.model)
    common_options = {"num_data": problem.n, "check_deterministic": False, **options}
    return kind(model, CrossEntropyLoss(), parameters, [(problem.x, labels)], **common_options)


def kronecker(task: Task) -> Prepared:
    """KFAC or EKFAC with joint weight and bias; the labels drawn beforehand make the one-sample Fisher."""
    problem = common.problem(task)
    labels = problem.y if task.fisher == "empirical" else problem.drawn
    terms = labels[0].numel()
    options = {
        "parameters": list(problem.factored.values()),
        "labels": labels,
        "fisher_type": {"exact": "type-2", "sample": "empirical", "empirical": "empirical"}[task.fisher],
        "separate_weight_and_bias": False,
        "num_per_example_loss_terms": terms,
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
        """Of losses that are summed over the positions of an example; the operator's are means over them."""
        product, size = terms * (operator @ common.probe(problem)), (operator.trace, operator.frobenius_norm)
        return common.matrix_values(product, *(terms * number for number in size))

    return Prepared(run, values)


def fvp(task: Task) -> Prepared:
    """Products by jvp and vjp, on vectors given as lists of tensors (no copies)."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())
    shared = [common.unflatten(flat, parameters) for flat in common.vectors(task)]

    def run() -> list[list[Tensor]]:
        operator = _operator(GGNLinearOperator, problem, parameters, problem.drawn)
        ends = [operator @ shared[0]]
        for vector in shared[1:]:
            last = operator @ vector
        return [*ends, last]

    def values(result: list[list[Tensor]]) -> dict:
        return common.vector_values(first=common.flatten(result[0]), last=common.flatten(result[1]))

    return Prepared(run, values)


def hvp(task: Task) -> Prepared:
    """Hessian-vector products, on vectors given as lists of tensors."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())
    shared = [common.unflatten(flat, parameters) for flat in common.vectors(task)]

    def run() -> list[list[Tensor]]:
        operator = _operator(HessianLinearOperator, problem, parameters, problem.y)
        products = [operator @ vector for vector in shared]
        return [products[0], products[-1]]

    def values(result: list[list[Tensor]]) -> dict:
        return common.vector_values(first=common.flatten(result[0]), last=common.flatten(result[1]))

    return Prepared(run, values)


def eigenvalues(task: Task) -> Prepared:
    """The largest by scipy's `eigsh`, to the tolerance that tangentlab has by default in float32."""
    problem = common.problem(task)
    parameters = list(problem.model.parameters())

    def run() -> Tensor:
        operator = _operator(HessianLinearOperator, problem, parameters, problem.y).to_scipy()
        return eigsh(operator, k=EIGENVALUES, which="LA", tol=common.EIGENVALUE_TOLERANCE, return_eigenvectors=False)

    return Prepared(run, common.eigenvalues_values)


TASKS = {"kfac": kronecker, "ekfac": kronecker, "fvp": fvp, "hvp": hvp, "eigenvalues": eigenvalues}

if __name__ == "__main__":
    serve(TASKS, lambda: common.versions("curvlinops-for-pytorch"))
