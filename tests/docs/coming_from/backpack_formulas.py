"""The quantities of BackPACK 1.7.1 by their definitions, for the reduced loss of a case, dense and slow."""

import torch
from torch import Tensor, nn

from tests.docs.coming_from.cases import C, Case, N
from tests.docs.coming_from.curvlinops_formulas import calls, columns_of, divisor, row_jacobian, term_gradients


def batch_grad(one: Case) -> Tensor:
    """Every example's part of the gradient of the reduced loss, (N, d)."""
    rows = torch.einsum("rcd,rc->rd", row_jacobian(one), term_gradients(one)) / divisor(one)
    return rows.reshape(N, one.terms, -1).sum(1)


def variance(one: Case) -> Tensor:
    """mean_n g_n^2 - (mean_n g_n)^2, entry by entry, (d)."""
    grads = batch_grad(one)
    return grads.square().mean(0) - grads.mean(0).square()


def batch_ggn(one: Case) -> Tensor:
    """Every example's part of the Gauss-Newton matrix of the reduced loss, (N, d, d)."""
    outputs = one.outputs().detach().reshape(-1, C)
    inner = torch.autograd.functional.hessian(one.value, outputs)
    blocks = torch.stack([inner[r, :, r, :] for r in range(len(outputs))])
    parts = torch.einsum("rcd,rce,ref->rdf", row_jacobian(one), blocks, row_jacobian(one))
    return parts.reshape(N, one.terms, *parts.shape[1:]).sum(1)


def kflr(one: Case) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, B) of every layer's weight: A = 1/N sum a a^T over positions, B of output-gradients summed over positions."""
    weight = 1.0 if one.reduction == "sum" else 1 / N
    factors = {}
    for name, (inputs, grads) in calls(one, columns_of(one, "type-2")).items():
        a, g = inputs[..., :-1].flatten(0, 1), grads.sum(2).flatten(0, 1)
        factors[name] = a.T @ a / N, weight * g.T @ g
    return factors


def kfra(one: Case) -> dict[str, tuple[Tensor, Tensor]]:
    """(A, G) of linear - tanh - linear: G = mean Hessian at the output, below it (W^T G W) * mean(s' s'^T)."""
    first, _, last = one.model
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    outputs = one.outputs().detach()
    inner = torch.autograd.functional.hessian(one.value, outputs)
    top = sum(inner[n, :, n, :] for n in range(N))
    hidden = first(one.x).tanh().detach()
    slopes = 1 - hidden.square()
    low = (last.weight.T @ top @ last.weight).detach() * (slopes.T @ slopes / N)
    return {"0": (one.x.T @ one.x / N, low), "2": (hidden.T @ hidden / N, top)}
