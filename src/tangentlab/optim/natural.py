"""`NaturalSGD`: momentum SGD on natural gradients, one line in a training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.optim.cg import ConjugateGradient
from tangentlab.optim.options import option_names, refuse_unknown, require_model
from tangentlab.optim.preconditioner import Preconditioner
from tangentlab.optim.trial import Evaluate
from tangentlab.optim.variants import EKFAC, KFAC, BlockDiagonal, Diagonal, EKFACra
from tangentlab.parallel.processes import unwrap

PRECONDITIONERS: dict[str, Callable[..., Preconditioner]] = {
    "diagonal": Diagonal,
    "diagonal-ra": partial(Diagonal, running=True),
    "block-diagonal": BlockDiagonal,
    "kfac": KFAC,
    "ekfac": EKFAC,
    "ekfac-ra": EKFACra,
    "cg": ConjugateGradient,
}


def make_preconditioner(name: str, model: nn.Module, **options: Any) -> Preconditioner:
    """A preconditioner by name: diagonal, diagonal-ra, block-diagonal, kfac, ekfac, ekfac-ra, cg."""
    if name not in PRECONDITIONERS:
        near = get_close_matches(str(name), PRECONDITIONERS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"Unknown preconditioner {name!r}{hint}; known are: {', '.join(PRECONDITIONERS)}.")
    return PRECONDITIONERS[name](model, **options)


class NaturalSGD(torch.optim.Optimizer):
    """v <- mu v + (F + eps)^-1 g + lambda w;   w <- w - eta v.

        optimizer = NaturalSGD(model, lr=0.1, preconditioner="ekfac-ra", damping=1e-2)
        loss.backward(); optimizer.step()

    Weight decay is added behind the preconditioner, so it never enters the curvature. A step whose gradients are not
    finite changes nothing. Learning-rate schedulers, parameter groups (lr, momentum, weight_decay, nesterov per group) and
    gradient clipping before `step` work as for any optimizer; `state_dict` contains the preconditioner's.

    Args:
        model: the network, or its DistributedDataParallel wrapper.
        params: parameters or parameter groups; by default all trainable parameters of the model.
        lr: eta.
        momentum: mu.
        weight_decay: lambda.
        nesterov: look ahead along the momentum.
        preconditioner: a name (see `make_preconditioner`) or a ready `Preconditioner` of this model.
        options: of the preconditioner: damping, period, curvature, kl_clip, ...
    """

    def __init__(
        self,
        model: nn.Module,
        params: Iterable[Any] | None = None,
        *,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        preconditioner: str | Preconditioner = "ekfac-ra",
        **options: Any,
    ) -> None:
        require_model("NaturalSGD", model)
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not isinstance(value, int | float | Tensor) or isinstance(value, bool) or not value >= 0:
                raise InputError(f"{name} must be a number that is not negative, got {value!r}.")
        if nesterov and momentum == 0:
            raise InputError("The argument nesterov=True looks ahead along the momentum: it needs momentum > 0.")
        if not isinstance(params, Iterable | None):
            raise InputError(
                f"The second argument is for parameters or their groups, got {params!r}; is it lr={params!r}?"
            )
        self._check_options(model, preconditioner, options)
        trainable = [p for p in model.parameters() if p.requires_grad] if params is None else params
        if not (trainable := list(trainable)):
            raise InputError("There is no trainable parameter (all have requires_grad=False, or there is none).")
        super().__init__(
            trainable, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        )
        if isinstance(preconditioner, str):
            if options.get("kl_clip") is not None:
                options.setdefault("lr", self)
            preconditioner = make_preconditioner(preconditioner, model, **options)
        self.preconditioner = preconditioner
        self.preconditioner.watch.driven(self)

    @staticmethod
    def _check_options(model: nn.Module, preconditioner: str | Preconditioner, options: Mapping[str, Any]) -> None:
        """Options that nobody has, and a ready preconditioner that has its own or another model."""
        if isinstance(preconditioner, Preconditioner):
            if options:
                raise InputError(
                    f"A ready preconditioner has its options already: {', '.join(options)} would be ignored."
                )
            if preconditioner.model is not unwrap(model)[0]:
                raise InputError(
                    "This preconditioner belongs to another model: make it with the model of the optimizer."
                )
        elif preconditioner in PRECONDITIONERS:
            kind: Any = PRECONDITIONERS[preconditioner]
            refuse_unknown(
                "NaturalSGD", options, [*option_names(NaturalSGD), *option_names(getattr(kind, "func", kind))]
            )

    def step(self, closure: Callable[[], Any] | None = None, *, evaluate: Evaluate | None = None) -> Any:
        """One update.

        Args:
            closure: clears gradients, computes the loss, calls backward and returns the loss.
            evaluate: losses for an adaptive damping; see `Preconditioner.trial`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with nullcontext() if evaluate is None else self.preconditioner.trial(evaluate):
            if self.preconditioner.step():
                self._descend()
        return loss

    @torch.no_grad()
    def _descend(self) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            updates: list[Tensor] = [p.grad for p in params]  # type: ignore[misc]
            if group["weight_decay"] or group["momentum"]:  # which reach rows that a sparse gradient does not name
                updates = [update.to_dense() for update in updates]
            if group["weight_decay"]:
                updates = list(torch._foreach_add(updates, params, alpha=group["weight_decay"]))
            if group["momentum"]:
                updates = self._with_momentum(params, updates, group["momentum"], group["nesterov"])
            torch._foreach_add_(params, updates, alpha=-float(group["lr"]))

    def _with_momentum(
        self, params: list[nn.Parameter], updates: list[Tensor], momentum: float, nesterov: bool
    ) -> list[Tensor]:
        for p, update in zip(params, updates, strict=True):
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(update)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, updates)
        return list(torch._foreach_add(updates, buffers, alpha=momentum)) if nesterov else buffers

    def state_dict(self) -> dict[str, Any]:
        """Momentum, parameter groups and the preconditioner."""
        return {**super().state_dict(), "preconditioner": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue bit for bit from a state of the same optimizer."""
        if "preconditioner" not in state_dict:
            raise InputError("This state has no preconditioner: it was not saved by NaturalSGD.")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "preconditioner"})
        self.preconditioner.load_state_dict(state_dict["preconditioner"])
