"""The slow, obvious truth: one backward pass per output and example over the graph of the whole batch, then dense algebra."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.trial.choices import NoSuchCase


@dataclass(frozen=True)
class Truth:
    """Jacobian rows (C, N, d) of the trainable parameters in flat order, outputs (N, ...) and targets, in float64."""

    rows: Tensor
    outputs: Tensor
    targets: Tensor
    names: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    sizes: tuple[int, ...]

    @property
    def examples(self) -> int:
        """N."""
        return self.rows.shape[1]

    @property
    def count(self) -> int:
        """C, outputs per example."""
        return self.rows.shape[0]

    def slices(self) -> dict[str, slice]:
        """Where every parameter is in the flat order."""
        found, start = {}, 0
        for name in self.names:
            numel = torch.Size(self.shapes[name]).numel()
            found[name] = slice(start, start + numel)
            start += numel
        return found

    def only(self, names: tuple[str, ...]) -> Truth:
        """The same for some of the parameters, in flat order."""
        kept = tuple(name for name in self.names if name in names)
        places = self.slices()
        rows = torch.cat([self.rows[..., places[name]] for name in kept], -1)
        return Truth(rows, self.outputs, self.targets, kept, self.shapes, self.sizes)

    def of_outputs(self, index: list[int]) -> Truth:
        """The same for some of the outputs."""
        outputs = self.outputs.flatten(1)[:, index]
        return Truth(self.rows[index], outputs, self.targets, self.names, self.shapes, self.sizes)

    def kernel(self) -> Tensor:
        """(C, N, C, N)."""
        return torch.einsum("cnd,bmd->cnbm", self.rows, self.rows)

    def weighted(self, weights: Tensor) -> Tensor:
        """1/N sum_n J_n^T M_n J_n for M (N, C, C)."""
        return torch.einsum("cnd,ncb,bne->de", self.rows, weights, self.rows) / self.examples

    def pulled(self, cotangents: Tensor) -> Tensor:
        """J_n^T u_n, (N, d), for u (N, ...)."""
        return torch.einsum("cnd,nc->nd", self.rows, cotangents.flatten(1))


def measure(
    fresh: Callable[[], nn.Module],
    call: Callable[[nn.Module, Any], Tensor],
    batches: list[tuple[Tensor, Tensor]],
    around: Callable[[], AbstractContextManager],
    dtype: torch.dtype | None = None,
) -> Truth:
    """Rows by plain autograd, every batch on a fresh model (in another type where asked for)."""
    rows, outputs = [], []
    model: Any = None
    for x, _ in batches:
        model = fresh()
        if dtype is not None:
            model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
        with around(), torch.enable_grad():
            out = call(model, x)
            out = out[:, None] if out.ndim == 1 else out
            rows.append(_rows(out, model))
        outputs.append(out.detach().double())
    jacobian, values = torch.cat(rows, 1), torch.cat(outputs)
    if not (torch.isfinite(jacobian).all() and torch.isfinite(values).all()):
        raise NoSuchCase("the truth is not finite")
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    sizes = tuple(len(x) for x, _ in batches)
    return Truth(jacobian, values, torch.cat([y for _, y in batches]), tuple(shapes), shapes, sizes)


def _rows(outputs: Tensor, model: nn.Module) -> Tensor:
    """(C, N, d), one ordinary backward() each."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = outputs.flatten(1)
    lines = []
    for n in range(flat.shape[0]):
        for c in range(flat.shape[1]):
            for p in parameters:
                p.grad = None
            if flat.requires_grad:
                flat[n, c].backward(retain_graph=True)
            grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
            lines.append(torch.cat([g.detach().double().flatten() for g in grads]))
    return torch.stack(lines).unflatten(0, flat.shape).transpose(0, 1)


# ---------------------------------------------------------------- what a likelihood does with outputs


def losses(likelihood: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of every example up to a constant, (N)."""
    if likelihood == "regression":
        values = 0.5 * (outputs - targets.to(outputs.dtype).reshape(outputs.shape)).square()
    elif likelihood == "binary":
        wanted = targets.to(outputs.dtype).reshape(outputs.shape)
        values = F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
    elif likelihood == "segmentation":
        values = F.cross_entropy(outputs, targets, reduction="none")
    elif likelihood == "log_softmax":
        values = F.nll_loss(outputs.movedim(-1, 1).contiguous(), targets, reduction="none")
    else:
        values = F.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def scores(likelihood: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """d loss_n / d outputs_n, (N, ...)."""
    leaf = outputs.detach().requires_grad_()
    return torch.autograd.grad(losses(likelihood, leaf, targets).sum(), leaf)[0]


def fisher_of_outputs(likelihood: str, outputs: Tensor) -> Tensor:
    """(N, C, C): E[score score^T] over labels drawn from the model."""
    flat = outputs.flatten(1)
    if likelihood == "regression":
        return torch.eye(flat.shape[1], dtype=flat.dtype).expand(len(flat), -1, -1)
    if likelihood == "binary":
        return torch.diag_embed(flat.sigmoid() * (-flat).sigmoid())
    if likelihood == "log_softmax":
        return torch.diag_embed(flat.exp())
    axis = 1 if likelihood == "segmentation" else -1
    size = outputs.shape[axis]
    result = flat.new_zeros((len(flat), flat.shape[1], flat.shape[1]))
    index = torch.arange(flat.shape[1]).reshape(outputs.shape[1:]).movedim(0 if axis == 1 else -1, -1).reshape(-1, size)
    for places in index:  # the places of one position's classes in the flat outputs
        p = flat[:, places].softmax(1)
        others = p @ (1 - torch.eye(size, dtype=p.dtype))  # 1 - p without its rounding
        result[:, places[:, None], places[None]] = -p[:, :, None] * p[:, None]
        result[:, places, places] = p * others
    return result


def hessian_of_loss(likelihood: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """(N, C, C): second derivatives of the loss in the outputs; that of log-probabilities is linear."""
    weights = fisher_of_outputs(likelihood, outputs)
    return torch.zeros_like(weights) if likelihood == "log_softmax" else weights


def second_derivatives(likelihood: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """The same by plain autograd, which is all there is of a loss that the user has written: 1 - p of a p near 1 is rounded."""
    own = [
        torch.autograd.functional.hessian(lambda f, y=y: losses(likelihood, f[None], y[None]).sum(), f)
        for f, y in zip(outputs, targets, strict=True)
    ]
    count = outputs[0].numel()
    return torch.stack([one.reshape(count, count) for one in own])
