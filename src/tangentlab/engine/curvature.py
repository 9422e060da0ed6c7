"""Curvature of a loss in the outputs, as rows: the generalized Gauss-Newton matrix of any convex loss."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.likelihood import Likelihood, LogSoftmax, likelihood_of
from tangentlab.engine.losses import LossFunction, loss_of, output_gradient
from tangentlab.engine.memory import require_memory
from tangentlab.engine.rows import Weighting
from tangentlab.errors import InputError, NumericsError


class ConvexLoss(Weighting):
    """1/n sum_n J_n^T H_n J_n with H_n the Hessian of example n's loss in its outputs (Schraudolph 2002).

    H_n comes from two backward passes through the loss alone; the columns of a root of it are the cotangents, so every
    representation follows from them as for a Fisher matrix. One row per output. A loss that is not convex in the outputs is
    refused: its Gauss-Newton matrix is no second moment.
    """

    name = "generalized Gauss-Newton"

    def __init__(self, loss: str | Likelihood | LossFunction) -> None:
        likelihood = likelihood_of(loss) if isinstance(loss, str) else loss
        if isinstance(likelihood, LogSoftmax):
            raise InputError(
                "The negative log-likelihood of 'log_softmax' is linear in its outputs, so its Gauss-Newton matrix is zero: "
                "take the logits as outputs with loss='classification', or FIM(..., likelihood='log_softmax')."
            )
        self.loss = loss_of(likelihood)
        self._checked: set[int] = set()
        self._roots: tuple[weakref.ref[Tensor], Tensor] | None = None

    def fresh(self) -> ConvexLoss:
        """Nothing is known about other data."""
        return ConvexLoss(self.loss)

    def count(self, outputs: Tensor) -> int:
        """One row per output."""
        return outputs[0].numel()

    def cotangents(self, outputs: Tensor, batch: Any, number: int, index: range) -> Tensor:
        """Columns of a root of H_n."""
        if self._roots is None or self._roots[0]() is not outputs:
            self._roots = weakref.ref(outputs), self._square_roots(outputs, batch, number)
        roots = self._roots[1][:, :, list(index)]
        return roots.permute(2, 0, 1).reshape(len(index), *outputs.shape)

    def weigh(self, outputs: Tensor, batch: Any, number: int, tangents: Tensor) -> Tensor:
        """H_n t, by one product with the Hessian of the loss; convexity is checked once per batch."""
        if number not in self._checked:
            self._square_roots(outputs, batch, number)
        wide = _wide(outputs)
        leaf, gradient = output_gradient(self.loss, wide, batch)
        return _product(gradient, leaf, tangents.reshape(outputs.shape).to(wide.dtype)).detach().to(outputs.dtype)

    def hessians(self, outputs: Tensor, batch: Any) -> Tensor:
        """(N, C, C): d^2 loss_n / d outputs_n^2, one backward per output; in single precision where outputs are in half."""
        size = outputs[0].numel()
        require_memory(
            2 * outputs.shape[0] * size**2 * outputs.element_size(),
            f"Hessians of the loss in {size:,} outputs for {outputs.shape[0]} examples",
            "Smaller batches need less; for token or pixel losses FIM(...) has a closed form.",
        )
        outputs = _wide(outputs)
        leaf, gradient = output_gradient(self.loss, outputs, batch)
        eye = torch.eye(size, dtype=outputs.dtype, device=outputs.device)
        rows = [_product(gradient, leaf, unit.expand(outputs.shape[0], -1).reshape(outputs.shape)) for unit in eye]
        return torch.stack([row.detach().flatten(1) for row in rows], 1)

    def _square_roots(self, outputs: Tensor, batch: Any, number: int) -> Tensor:
        """R_n with R_n R_n^T = H_n, (N, C, C)."""
        values, vectors = torch.linalg.eigh(self.hessians(outputs, batch))
        if _negative(values, values) and _negative(values, self._values_at_zero(outputs, batch)):
            raise NumericsError(
                f"The loss is not convex in the outputs (its Hessian has the eigenvalue {float(values.min()):.3g}), so its "
                "Gauss-Newton matrix is not positive semi-definite: take Hessian(...), or a loss that is convex."
            )
        self._checked.add(number)
        return (vectors * values.clamp_min(0).sqrt()[:, None, :]).to(outputs.dtype)

    def _values_at_zero(self, outputs: Tensor, batch: Any) -> Tensor:
        """Eigenvalues (N, C) of the Hessians at outputs of zero: the scale of rounding where a loss is saturated."""
        hessians = self.hessians(torch.zeros_like(outputs), batch)
        return torch.linalg.eigvalsh(hessians.nan_to_num(0.0, 0.0, 0.0))


def _negative(values: Tensor, scale: Tensor) -> bool:
    """Whether the least of ascending eigenvalues (N, C) is negative by more than rounding of values of a scale (N, C)."""
    info = torch.finfo(values.dtype)
    rounding = 1e3 * info.eps * values.shape[-1] * scale.abs().amax(1).clamp_min(info.tiny)
    return bool((values[:, 0] < -rounding).any())


def _wide(outputs: Tensor) -> Tensor:
    """Outputs in a type in which eigenvalues can be computed."""
    return outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))


def _product(gradient: Tensor, leaf: Tensor, tangents: Tensor) -> Tensor:
    """Hessian of the summed loss times tangents; examples do not mix, so this is H_n t_n for all of them."""
    if not gradient.requires_grad:
        return torch.zeros_like(leaf)
    (result,) = torch.autograd.grad(gradient, leaf, tangents, retain_graph=True, materialize_grads=True)
    return result
