"""The matrices of curvlinops 3.0.1 by their definitions, dense and slow.

The loss is a sum (or mean) over terms: one per example, or one per token. Terms are rows of outputs, (R, C).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.docs.coming_from.cases import C, Case, N
from tests.engine.truth import dense_jacobian

Factors = dict[str, tuple[Tensor, Tensor]]
"""(A, B) by layer, both with the bias as A's last column."""


def row_jacobian(one: Case) -> Tensor:
    """(R, C, d)."""
    jacobian = dense_jacobian(one.model, one.x)  # (outputs, examples, d)
    return jacobian.transpose(0, 1).reshape(-1, C, jacobian.shape[-1])


def ggn(one: Case) -> Tensor:
    """J^T (Hessian of the reduced loss in all outputs) J."""
    outputs = one.outputs().detach().reshape(-1, C)
    inner = torch.autograd.functional.hessian(one.value, outputs).reshape(outputs.numel(), -1)
    jacobian = row_jacobian(one).flatten(0, 1)
    return jacobian.T @ inner @ jacobian


def hessian(one: Case) -> Tensor:
    """Hessian of the reduced loss in the parameters."""
    shapes = {name: p.shape for name, p in one.model.named_parameters()}

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts)}
        return one.value(torch.func.functional_call(one.model, named, (one.x,)))

    flat = torch.cat([p.detach().flatten() for p in one.model.parameters()])
    return torch.autograd.functional.hessian(loss, flat)


def divisor(one: Case) -> float:
    """What a mean divides by: terms, and for all but the cross entropy the outputs of a term as well."""
    outputs = 1 if one.loss == "cross entropy" else C
    return 1.0 if one.reduction == "sum" else N * one.terms * outputs


def term_gradients(one: Case) -> Tensor:
    """Gradient of every term in its own outputs, before the reduction, (R, C)."""
    outputs = one.outputs().detach().requires_grad_()
    (grads,) = torch.autograd.grad(one.value(outputs), outputs)
    return grads.reshape(-1, C) * divisor(one)


def empirical_fisher(one: Case) -> Tensor:
    """1/divisor sum over terms of g g^T: terms of one example are not added up first."""
    return second_moment(one, term_gradients(one)[None])


def second_moment(one: Case, grads: Tensor) -> Tensor:
    """1/(S divisor) sum over samples and terms of (J_r^T g)(J_r^T g)^T, for grads (S, R, C)."""
    rows = torch.einsum("rcd,src->srd", row_jacobian(one), grads).flatten(0, 1)
    return rows.T @ rows / (len(grads) * divisor(one))


def sampled_gradients(one: Case, labels: Tensor) -> Tensor:
    """Gradients of the terms at drawn labels (S, R) of a cross entropy, (S, R, C)."""
    probabilities = one.outputs().detach().reshape(-1, C).softmax(-1)
    return probabilities - F.one_hot(labels, C)


# ---------------------------------------------------------------- Kronecker factors


def inputs_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """(N, S, columns + 1): positions of a shared weight, with a homogeneous 1."""
    if isinstance(module, nn.Conv2d):
        inputs = F.unfold(inputs, module.kernel_size).transpose(1, 2)
    rows = inputs.reshape(N, -1, inputs.shape[-1])
    return torch.cat([rows, torch.ones_like(rows[..., :1])], -1)


def gradients_of(module: nn.Module, grads: Tensor) -> Tensor:
    """(N, S, rows)."""
    return grads.flatten(2).transpose(1, 2) if isinstance(module, nn.Conv2d) else grads.reshape(N, -1, grads.shape[-1])


def calls(one: Case, columns: Sequence[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """By layer: inputs (N, S, columns + 1) and output-gradients (K, N, S, rows) for cotangents (R, C) of the outputs."""
    seen: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}
    layers = {name: m for name, m in one.model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    handles = [
        m.register_forward_hook(lambda m, args, out, name=name: seen.update({name: (m, args[0].detach(), out)}))
        for name, m in layers.items()
    ]
    outputs = one.outputs().reshape(-1, C)
    for handle in handles:
        handle.remove()
    found = {}
    for name, (module, inputs, out) in seen.items():
        grads = [torch.autograd.grad((outputs * column).sum(), out, retain_graph=True)[0] for column in columns]
        found[name] = inputs_of(module, inputs), torch.stack([gradients_of(module, grad) for grad in grads])
    return found


def columns_of(one: Case, fisher: str) -> list[Tensor]:
    """Cotangents (R, C): of the loss, or column k of a square root of every term's Hessian, for all terms at once."""
    share = 1.0 if one.reduction == "sum" or one.loss == "cross entropy" else C**-0.5
    if fisher == "empirical":
        return [term_gradients(one) * share]
    outputs = one.outputs().detach().reshape(-1, C)
    if one.loss == "cross entropy":
        p = outputs.softmax(-1)
        roots = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]
    elif one.loss == "squared error":
        roots = 2**0.5 * torch.eye(C, dtype=outputs.dtype).expand(len(outputs), C, C)
    else:
        p = outputs.sigmoid()
        roots = torch.diag_embed((p * (1 - p)).sqrt())
    return list((roots * share).unbind(-1))


def kfac_factors(one: Case, fisher: str = "type-2", sharing: str = "expand") -> Factors:
    """A = 1/(N S) sum a a^T, B = 1/(N terms) sum g g^T (mean) or sum g g^T (sum); "reduce": mean of a, sum of g."""
    weight = 1.0 if one.reduction == "sum" else 1 / (N * one.terms)
    factors = {}
    for name, (inputs, grads) in calls(one, columns_of(one, fisher)).items():
        if sharing == "reduce":
            inputs, grads = inputs.mean(1, keepdim=True), grads.sum(2, keepdim=True)
        a, g = inputs.flatten(0, 1), grads.flatten(0, 2)
        factors[name] = a.T @ a / len(a), weight * g.T @ g
    return factors


def assembled(blocks: Sequence[tuple[Tensor, int, int]]) -> Tensor:
    """Layer blocks (matrix over [W | b] row by row, rows, columns) as one matrix in the order W, b, W, b, ..."""
    ordered = []
    for matrix, rows, columns in blocks:
        place = torch.arange(rows * columns).reshape(rows, columns)
        order = torch.cat([place[:, :-1].flatten(), place[:, -1]])
        ordered.append(matrix[order][:, order])
    return torch.block_diag(*ordered)


def kfac(factors: Factors) -> Tensor:
    """B (x) A of every layer."""
    return assembled([(torch.kron(b, a), len(b), len(a)) for a, b in factors.values()])


def ekfac(one: Case, fisher: str = "type-2") -> Tensor:
    """KFAC's eigenvectors with weight sum_k sum_n (U_B^T G_kn U_A)^2; one term per example."""
    weight = 1.0 if one.reduction == "sum" else 1 / N
    seen, blocks = calls(one, columns_of(one, fisher)), []
    for name, (a, b) in kfac_factors(one, fisher).items():
        inputs, grads = seen[name]
        u_a, u_b = torch.linalg.eigh(a)[1], torch.linalg.eigh(b)[1]
        examples = torch.einsum("knso,nsi->knoi", grads, inputs).flatten(0, 1)
        scale = weight * (u_b.T @ examples @ u_a).square().sum(0)
        basis = torch.kron(u_b, u_a)
        blocks.append(((basis * scale.flatten()) @ basis.T, len(b), len(a)))
    return assembled(blocks)


def inverse(factors: Factors, damping: float, mode: str = "default") -> Tensor:
    """(A + d)^-1 (x) (B + d)^-1 by default; "heuristic" with pi and sqrt(d); "exact" (B (x) A + d)^-1."""
    blocks = []
    for a, b in factors.values():
        eye_a, eye_b = torch.eye(len(a), dtype=a.dtype), torch.eye(len(b), dtype=a.dtype)
        pi = ((a.trace() / len(a)) / (b.trace() / len(b))).sqrt()
        left, right = (damping**0.5 / pi, damping**0.5 * pi) if mode == "heuristic" else (damping, damping)
        if mode == "exact":
            block = torch.linalg.inv(torch.kron(b, a) + damping * torch.kron(eye_b, eye_a))
        else:
            block = torch.kron(torch.linalg.inv(b + left * eye_b), torch.linalg.inv(a + right * eye_a))
        blocks.append((block, len(b), len(a)))
    return assembled(blocks)
