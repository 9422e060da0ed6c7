"""SOAP: Adam in the eigenbasis of Shampoo (Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.layout import is_distributed
from tangentlab.errors import InputError
from tangentlab.linalg import safe_eigh
from tangentlab.optim.options import NamedOptions


class SOAP(NamedOptions, torch.optim.Optimizer):
    """For a weight W (m, n) with gradient G, the paper's Algorithm 3:

        L <- b3 L + (1 - b3) G G^T,  R <- b3 R + (1 - b3) G^T G,   Q_L, Q_R their eigenvectors
        M <- b1 M + (1 - b1) G,      V <- b2 V + (1 - b2) (Q_L^T G Q_R)^2
        W <- W - eta Q_L [ M' / (sqrt(V) + eps) ] Q_R^T,           M' = Q_L^T M Q_R

    with Adam's bias correction and decoupled weight decay. The first step only makes the bases (by eigh); every `period`
    steps each basis takes one orthogonal-iteration step, Q <- qr(L Q), with columns by falling Rayleigh quotient, and V
    follows the order of the columns. Vectors are plain Adam. A convolution (o, i, kernel...) is the matrix
    (o, i * kernel) with `merge=True`, else every axis has a basis of its own.

    EKFAC-ra differs by its basis (activations and output-gradients, not gradients alone), by dividing by s in place of
    sqrt(V), and by momentum outside.

    Args:
        params: parameters or groups.
        lr: eta.
        betas: (b1, b2).
        shampoo_beta: b3; by default b2.
        eps: added to the denominator.
        weight_decay: decoupled.
        period: f, steps between basis updates.
        max_size: an axis with more entries keeps the identity as its basis.
        merge: treat a kernel's input channels and taps as one axis.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        period: int = 10,
        max_size: int = 10_000,
        merge: bool = True,
    ) -> None:
        if isinstance(params, nn.Module):
            raise InputError("SOAP reads gradients alone, so it takes parameters: SOAP(model.parameters()).")
        beta3 = betas[1] if shampoo_beta is None else shampoo_beta
        if not lr >= 0 or not eps >= 0 or not weight_decay >= 0 or period < 1:
            raise InputError(
                f"SOAP needs lr, eps, weight_decay >= 0 and period >= 1; got {lr}, {eps}, {weight_decay}, {period}."
            )
        if not all(0 <= beta < 1 for beta in (*betas, beta3)):
            raise InputError(f"SOAP's betas must lie in [0, 1), got {betas} and {beta3}.")
        defaults = {
            "lr": lr, "betas": betas, "shampoo_beta": beta3, "eps": eps, "weight_decay": weight_decay,
            "period": period, "max_size": max_size, "merge": merge,
        }  # fmt: skip
        super().__init__(params, defaults)
        sharded = [p for group in self.param_groups for p in group["params"] if is_distributed(p)]
        if sharded:
            raise InputError(
                f"{len(sharded)} of the parameters are DTensors, the first of shape {tuple(sharded[0].shape)}, spread over "
                "processes: SOAP needs whole matrices. Train with DistributedDataParallel, whose processes hold whole copies."
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; the first one makes the bases and moves nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: Tensor, group: dict[str, Any]) -> None:
        assert p.grad is not None
        state, grad = self.state[p], _as_matrix(p.grad, group["merge"])
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(grad), torch.zeros_like(grad)
            state["moments"] = _moments(grad, group["max_size"])
            state["bases"] = [None if m is None else safe_eigh(m)[1].flip(-1) for m in state["moments"]]
            return
        state["step"] += 1
        (beta1, beta2), bases = group["betas"], state["bases"]
        rotated = _turn(grad, bases)
        state["mean"].lerp_(grad, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
        corrected = (state["square"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        direction = _turn(_turn(state["mean"], bases) / corrected, bases, back=True)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(direction.reshape(p.shape).to(p.dtype), alpha=-group["lr"] / (1 - beta1 ** state["step"]))
        self._follow(state, grad, group)

    def _follow(self, state: dict[str, Any], grad: Tensor, group: dict[str, Any]) -> None:
        """Moments of this gradient, and every `period` steps the bases."""
        for moment, fresh in zip(state["moments"], _moments(grad, group["max_size"]), strict=True):
            if moment is not None:
                moment.lerp_(fresh, 1 - group["shampoo_beta"])
        if state["step"] % group["period"] == 0:
            for axis, (moment, basis) in enumerate(zip(state["moments"], state["bases"], strict=True)):
                if moment is not None:
                    image = moment @ basis
                    order = (basis * image).sum(0).argsort(descending=True)
                    state["bases"][axis] = torch.linalg.qr(image[:, order])[0]
                    state["square"] = state["square"].index_select(axis, order)


def _as_matrix(grad: Tensor, merge: bool) -> Tensor:
    """The gradient in at least float32, with a kernel's axes after the first merged if wanted."""
    grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
    return grad.flatten(1) if merge and grad.ndim > 2 else grad


def _moments(grad: Tensor, max_size: int) -> list[Tensor | None]:
    """G_(axis) G_(axis)^T of every axis' unfolding; None for vectors and for axes that are too long."""
    moments: list[Tensor | None] = []
    for axis, size in enumerate(grad.shape):
        unfolded = grad.movedim(axis, 0).flatten(1) if grad.ndim > 1 and size <= max_size else None
        moments.append(None if unfolded is None else unfolded @ unfolded.T)
    return moments


def _turn(tensor: Tensor, bases: list[Tensor | None], back: bool = False) -> Tensor:
    """Every axis into its basis, or back."""
    for axis, basis in enumerate(bases):
        if basis is not None:
            tensor = torch.tensordot(tensor, basis.T if back else basis, dims=([axis], [0])).movedim(-1, axis)
    return tensor
