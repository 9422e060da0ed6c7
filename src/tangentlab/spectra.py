"""Eigenpairs of a Fisher or Gauss-Newton matrix by the cheapest exact route, its Gram matrix included.

F = 1/n R^T R and K = R R^T, with the same weighted Jacobian rows R (m, d), have the same nonzero spectrum up to the factor n:
K u = s u gives F v = (s / n) v with v = R^T u / sqrt(s). With unit weights K is the tangent kernel.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.likelihood import Likelihood, likelihood_of
from tangentlab.engine.losses import LossFunction
from tangentlab.engine.memory import memory_budget
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.rows import Rows
from tangentlab.engine.tangent_kernel import tangent_kernel
from tangentlab.engine.weightings import ConvexLoss, Exact, Weighting
from tangentlab.errors import InputError
from tangentlab.linalg import safe_eigh
from tangentlab.objects.matrix_free import Eigenpairs
from tangentlab.objects.pmat import PMatDense, PMatImplicit
from tangentlab.objects.pvector import PVector

EigenRoute = Literal["auto", "gram", "dense", "lanczos"]


@spelled_out
def fisher_eigenpairs(
    model: nn.Module,
    loader: Any,
    k: int | None = None,
    likelihood: str | Likelihood = "classification",
    *,
    loss: str | Likelihood | LossFunction | None = None,
    method: EigenRoute = "auto",
    generator: torch.Generator | None = None,
    **options: Unpack[Options],
) -> Eigenpairs[PVector]:
    """The k largest eigenpairs of the Fisher matrix (all nonzero ones without k), the largest first.

    method: "gram" decomposes the m x m Gram matrix of the m = n c rows, without building the Jacobian (cost 9 m^3); "dense"
    the d x d matrix (9 d^3); "lanczos" multiplies with the implicit matrix, a few k times; "auto" takes the cheapest that
    fits in memory, and `message` of the result says which. `loss` takes the Gauss-Newton matrix of a convex loss instead;
    `generator` is the source of Lanczos' starting vectors.
    """
    network = Network.of(model, **options)
    weighting: Weighting = ConvexLoss(loss) if loss is not None else Exact(likelihood_of(likelihood))
    if method not in ("auto", "gram", "dense", "lanczos"):
        raise InputError(f"The argument method must be 'auto', 'gram', 'dense' or 'lanczos', not {method!r}.")
    if method == "lanczos" and k is None:
        raise InputError("Lanczos finds some eigenpairs: give k, or take method='gram' or 'dense' for all of them.")
    rows = Rows(network, loader, weighting)
    if method == "auto":
        method = cheapest_route(*_sizes(rows), k)
    if method == "gram":
        return _by_gram(rows, k)
    if method == "lanczos":
        return PMatImplicit.from_rows(rows).top_eigenpairs(k or 1, generator=generator)
    return _by_dense(rows, k)


def cheapest_route(m: int, n: int, d: int, itemsize: int, k: int | None) -> EigenRoute:
    """The route with the fewest operations among those that fit, for m rows, n examples and d parameters.

    Counted are the decomposition and what makes its matrix (2 m^2 d is an upper bound for a Gram matrix by closed forms);
    a product with the implicit matrix is about six forward passes, at two operations per parameter and example or more.
    """
    budget = memory_budget() / 4
    costs: dict[EigenRoute, float] = {}
    if 2 * m**2 * 8 <= budget:
        costs["gram"] = 9.0 * m**3 + 2.0 * m**2 * d
    if 2 * d**2 * itemsize <= budget:
        costs["dense"] = 9.0 * d**3 + 2.0 * m * d**2
    if k is not None:
        costs["lanczos"] = (4 * k + 40) * 12.0 * n * d
    if not costs:
        raise InputError(
            f"Neither the Gram matrix of {m:,} rows nor the matrix over {d:,} parameters fits in memory: give k, and Lanczos "
            "finds the k largest eigenpairs from products."
        )
    return min(costs, key=lambda route: costs[route])


def _sizes(rows: Rows) -> tuple[int, int, int, int]:
    """(rows, examples, parameters, bytes per number)."""
    count = examples = itemsize = 0
    for batch in rows.batches:
        outputs = rows.network.values(batch)
        count += rows.weighting.count(outputs) * outputs.shape[0]
        examples += outputs.shape[0]
        itemsize = outputs.element_size()
    return count, examples, rows.network.layout.numel, itemsize


def _by_gram(rows: Rows, k: int | None) -> Eigenpairs[PVector]:
    """Decompose K = R R^T, then pull its eigenvectors back to the parameters."""
    data, network = rows.batches, rows.network
    kernels = tangent_kernel(network, data, None, rows.weighting, False, lambda group: "")
    count, examples = kernels[""].shape[:2]
    gram = kernels[""].reshape(count * examples, -1)
    values, vectors = safe_eigh(gram.double())
    keep = values > torch.finfo(gram.dtype).eps * len(values) * values[-1].clamp_min(0)
    order = torch.arange(len(values), device=values.device)[keep].flip(0)[:k]
    values, vectors = values[order], vectors[:, order]
    residual = gram.double() @ vectors - vectors * values
    errors = ((residual * (gram.double() @ residual)).sum(0).clamp_min(0) / values).sqrt() / examples
    coefficients = (vectors / values.sqrt()).t().to(gram.dtype).reshape(-1, count, examples)
    pulled = _pull(rows, coefficients)
    message = f"Gram matrix of {len(gram):,} rows over {network.layout.numel:,} parameters"
    return Eigenpairs((values / examples).to(gram.dtype), pulled, errors.to(gram.dtype), 0, True, message)


def _pull(rows: Rows, coefficients: Tensor) -> PVector:
    """R^T u for coefficients (k, cotangents, examples), streamed."""
    layout = rows.network.layout
    total = coefficients.new_zeros((len(coefficients), layout.numel))
    done = first = before = 0
    for chunk in rows:
        if chunk.first:
            done, first, before = 0, first + before, chunk.examples
        for group, factor in chunk.factors.items():
            part = coefficients[:, done : done + factor.outputs, first : first + factor.examples]
            sizes = [torch.Size(layout.shapes[name]).numel() for name in group.names]
            for row, weights in enumerate(part):
                for name, piece in zip(group.names, factor.pull(weights).split(sizes), strict=True):
                    total[row, layout.slices[name]] += piece
        done += next(iter(chunk.factors.values())).outputs
    return PVector(layout, total)


def _by_dense(rows: Rows, k: int | None) -> Eigenpairs[PVector]:
    """Decompose the matrix itself."""
    matrix = PMatDense.from_rows(rows).tensor()
    values, vectors = safe_eigh(matrix)
    keep = values > torch.finfo(values.dtype).eps * len(values) * values[-1].clamp_min(0)
    order = torch.arange(len(values), device=values.device)[keep].flip(0)[:k]
    values, found = values[order], vectors[:, order].t()
    residuals = (found @ matrix - values[:, None] * found).norm(dim=1)
    message = f"matrix over {rows.network.layout.numel:,} parameters"
    return Eigenpairs(values, PVector(rows.network.layout, found), residuals, 0, True, message)
