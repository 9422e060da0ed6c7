"""The slow, obvious truth: Jacobians, Fisher matrices and Kronecker factors from plain autograd, in float64, by loops."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.testing.small_models import Case, Kron, case_of


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters in flat order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradient(scalar: Tensor, model: nn.Module) -> Tensor:
    """Flat gradient of one number, (d)."""
    parameters = list(trainable(model).values())
    grads = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True)
    pairs = zip(grads, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def jacobian(model: nn.Module, inputs: Tensor) -> Tensor:
    """(examples, outputs, d), one backward per output of every example."""
    rows = [[gradient(out, model) for out in model(x[None])[0].flatten()] for x in inputs]
    return torch.stack([torch.stack(row) for row in rows])


def scores(logits: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """(p_c, d log p_c / d logits) for every label c, by autograd on log p."""
    for label in range(len(logits)):
        leaf = logits.detach().requires_grad_()
        log_p = leaf.log_softmax(0)[label]
        yield log_p.detach().exp(), torch.autograd.grad(log_p, leaf)[0]


def weighted_rows(model: nn.Module, inputs: Tensor) -> Tensor:
    """Rows sqrt(p_c) d log p_c / dw of a classifier, (examples, classes, d)."""
    rows = []
    for x, one in zip(inputs, jacobian(model, inputs), strict=True):
        rows.append(torch.stack([p.sqrt() * (score @ one) for p, score in scores(model(x[None])[0])]))
    return torch.stack(rows)


def fisher(model: nn.Module, inputs: Tensor) -> Tensor:
    """1/n sum_n E_y[dlog p dlog p^T] by enumerating the labels."""
    rows = weighted_rows(model, inputs).flatten(0, 1)
    return rows.t() @ rows / len(inputs)


@cache
def exact_jacobian(name: str) -> Tensor:
    """The Jacobian (examples, outputs, d) of one of the small models."""
    case = case_of(name)
    return jacobian(case.model, case.inputs)


@cache
def exact(name: str) -> Tensor:
    """The Fisher matrix of one of the small models."""
    case = case_of(name)
    return fisher(case.model, case.inputs)


def slices_of(model: nn.Module) -> dict[str, slice]:
    """Slices of the trainable parameters in a flat vector."""
    found, start = {}, 0
    for name, p in trainable(model).items():
        found[name] = slice(start, start + p.numel())
        start += p.numel()
    return found


def diagonal(name: str) -> Tensor:
    """The diagonal alone."""
    return torch.diag(exact(name).diagonal())


def layer_blocks(name: str) -> Tensor:
    """The blocks of the modules, zero elsewhere."""
    case, full = case_of(name), exact(name)
    owners = [key.rpartition(".")[0] for key, p in trainable(case.model).items() for _ in range(p.numel())]
    return torch.tensor([[float(a == b) for b in owners] for a in owners], dtype=full.dtype) * full


# ---------------------------------------------------------------- Kronecker factors, example by example


def _patches(module: nn.Module, x: Tensor) -> Tensor:
    """Inputs of one example as (groups, positions, features)."""
    if isinstance(module, nn.Embedding):
        onehot = torch.nn.functional.one_hot(x[0], module.num_embeddings).double()
        onehot[:, module.padding_idx] = 0
        return onehot[None]
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str)
        columns = nn.functional.unfold(x, module.kernel_size, padding=module.padding, stride=module.stride)
        return columns[0].reshape(module.groups, -1, columns.shape[-1]).transpose(1, 2)
    return x.reshape(1, -1, x.shape[-1])


def _output_gradients(module: nn.Module, grad: Tensor) -> Tensor:
    """Output-gradients of one example as (groups, positions, features)."""
    if isinstance(module, nn.Conv2d):
        return grad[0].reshape(module.groups, grad.shape[1] // module.groups, -1).transpose(1, 2)
    return grad.reshape(1, -1, grad.shape[-1])


def _watched(model: nn.Module, modules: list[nn.Module], x: Tensor) -> tuple[Tensor, list[tuple[Any, Tensor, Tensor]]]:
    """Logits of one example, and (module, input, output) of every call of the modules."""
    seen: list[tuple[Any, Tensor, Tensor]] = []
    hooks = [m.register_forward_hook(lambda m, args, out: seen.append((m, args[0], out))) for m in modules]
    logits = model(x[None])[0]
    for hook in hooks:
        hook.remove()
    return logits, seen


def layer_data(case: Case, layer: Kron) -> list[tuple[Tensor, Tensor]]:
    """Per example: homogeneous inputs (groups, T, columns) and output-gradients (labels, groups, T, rows)."""
    modules = [case.model.get_submodule(name) for name in layer.modules]
    result = []
    for x in case.inputs:
        logits, seen = _watched(case.model, modules, x)
        inputs = torch.cat([_patches(m, value.detach()) for m, value, _ in seen], 1)
        if layer.bias:
            inputs = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)
        grads = []
        for p, score in scores(logits):
            found = torch.autograd.grad(p.sqrt() * (score @ logits), [out for *_, out in seen], retain_graph=True)
            grads.append(torch.cat([_output_gradients(m, g) for (m, *_), g in zip(seen, found, strict=True)], 1))
        stacked = torch.stack(grads)
        if layer.weight is None:
            inputs, stacked = torch.ones(1, 1, 1, dtype=stacked.dtype), stacked.sum(2, keepdim=True)
        result.append((inputs, stacked))
    return result


def kronecker_factors(data: list[tuple[Tensor, Tensor]], sharing: str) -> tuple[Tensor, Tensor]:
    """A (groups, columns, columns) and B (groups, rows, rows) as docs/conventions.md defines them."""
    n, positions = len(data), sum(inputs.shape[1] for inputs, _ in data)
    (groups, _, columns), rows = data[0][0].shape, data[0][1].shape[-1]
    a = torch.zeros(groups, columns, columns, dtype=torch.float64)
    b = torch.zeros(groups, rows, rows, dtype=torch.float64)
    for inputs, grads in data:
        for group in range(groups):
            if sharing == "reduce":
                mean, total = inputs[group].mean(0), grads[:, group].sum(1)
                a[group] += torch.outer(mean, mean) / n
                b[group] += sum(torch.outer(g, g) for g in total) / n
            else:
                a[group] += sum(torch.outer(v, v) for v in inputs[group]) / n
                b[group] += sum(torch.outer(g, g) for label in grads for g in label[group]) / positions
    return a, b


def flat_index(case: Case, layer: Kron, rows: int, columns: int, groups: int, transposed: bool) -> Tensor:
    """Place in the flat vector of entry (group, row, column) of the layer's matrices [W | b], (groups, rows, columns)."""
    slices = slices_of(case.model)
    if layer.weight is None:
        assert layer.bias is not None
        return torch.arange(slices[layer.bias].start, slices[layer.bias].stop).reshape(1, rows, 1)
    where = slices[layer.weight]
    width = columns - (layer.bias is not None)
    if transposed:  # an embedding stores (inputs, outputs)
        return torch.arange(where.start, where.stop).reshape(1, width, rows).transpose(1, 2)
    index = torch.arange(where.start, where.stop).reshape(groups, rows, width)
    if layer.bias:
        bias = torch.arange(slices[layer.bias].start, slices[layer.bias].stop).reshape(groups, rows, 1)
        index = torch.cat([index, bias], -1)
    return index


def place(full: Tensor, index: Tensor, block: Tensor) -> None:
    """Write a matrix on (row, column) pairs, row-major, at the flat places `index` (rows, columns)."""
    flat = index.flatten()
    full[flat[:, None], flat[None, :]] = block


def kronecker(name: str, corrected: bool, sharing: str = "expand") -> Tensor:
    """KFAC (B x A on row-major [W | b]) or EKFAC (second moments in its eigenbasis) of every Kronecker layer, dense."""
    case = case_of(name)
    full = torch.zeros_like(exact(name))
    for layer in case.recipe.kron:
        data = layer_data(case, layer)
        a, b = kronecker_factors(data, sharing)
        transposed = isinstance(case.model.get_submodule(layer.modules[0]), nn.Embedding)
        index = flat_index(case, layer, b.shape[-1], a.shape[-1], a.shape[0], transposed)
        for group in range(a.shape[0]):
            block = torch.kron(b[group].contiguous(), a[group].contiguous())
            if corrected:
                block = _second_moments_in_basis(data, group, a[group].numpy(), b[group].numpy())
            place(full, index[group], block)
    return full


def _second_moments_in_basis(data: list[tuple[Tensor, Tensor]], group: int, a: np.ndarray, b: np.ndarray) -> Tensor:
    """(U_B x U_A) diag(s*) (U_B x U_A)^T, s* = E[(U_B^T G U_A)^2]."""
    u_a, u_b = np.linalg.eigh(a)[1], np.linalg.eigh(b)[1]
    scale = np.zeros((b.shape[0], a.shape[0]))
    for inputs, grads in data:
        for label in grads:
            whole = sum(np.outer(g, v) for g, v in zip(label[group].numpy(), inputs[group].numpy(), strict=True))
            scale += (u_b.T @ whole @ u_a) ** 2 / len(data)
    basis = np.kron(u_b, u_a)
    return torch.from_numpy((basis * scale.flatten()) @ basis.T)


def mixed(name: str, corrected: bool) -> Tensor:
    """Kronecker where defined, the module's dense block elsewhere."""
    case = case_of(name)
    result = kronecker(name, corrected)
    covered = {key for layer in case.recipe.kron for key in (layer.weight, layer.bias)}
    loose = [key not in covered for key, p in trainable(case.model).items() for _ in range(p.numel())]
    both = torch.tensor(loose)[:, None] & torch.tensor(loose)[None, :]
    return torch.where(both, layer_blocks(name), result)
