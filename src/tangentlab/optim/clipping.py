"""Limits on the length of a natural step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.optim.hyperparameters import Schedule, check_schedule, value_at


class Clipping:
    """KL and norm clipping of the preconditioned gradients.

    kl_clip: kappa. The step d = lr v, v = F^-1 g, changes the model's distribution by KL ~ 1/2 d^T F d; all of it is
        multiplied by `min(1, sqrt(kappa / sum lr^2 <v, g>))`, where <v, g> stands for v^T F v (Ba et al. 2017).
    norm_clip: largest Euclidean norm of all preconditioned gradients together.
    lr: learning rate for kl_clip: a number, a function of the step, or the optimizer that makes the step.
    """

    def __init__(self, kl: Schedule | None, norm: Schedule | None, lr: Schedule | torch.optim.Optimizer | None) -> None:
        if kl is not None:
            check_schedule("kl_clip", kl, low=1e-30)
            if lr is None:
                raise InputError(
                    "The argument kl_clip limits the size of the step, so it needs the learning rate: "
                    "pass lr=optimizer (or a number)."
                )
        if norm is not None:
            check_schedule("norm_clip", norm, low=1e-30)
        if lr is not None and not isinstance(lr, torch.optim.Optimizer):
            check_schedule("lr", lr)
        self.kl, self.norm, self.lr = kl, norm, lr

    def factor(self, pairs: Sequence[tuple[nn.Parameter, Tensor, Tensor]], step: int) -> float:
        """What to multiply with, given (parameter, gradient, natural gradient) of everything preconditioned."""
        factor = 1.0
        if self.kl is not None and pairs:
            rates = self._rates(pairs, step)
            size = sum(
                rates[id(p)] ** 2 * float((grad * natural).sum(dtype=torch.float64)) for p, grad, natural in pairs
            )
            if size > 0:
                factor = min(1.0, (value_at(self.kl, step) / size) ** 0.5)
        if self.norm is not None and pairs:
            norm = factor * float(torch.stack([natural.norm() for _, _, natural in pairs]).norm())
            limit = value_at(self.norm, step)
            factor *= min(1.0, limit / norm) if norm > 0 else 1.0
        return factor

    def _rates(self, pairs: Sequence[tuple[nn.Parameter, Tensor, Tensor]], step: int) -> Mapping[int, float]:
        if isinstance(self.lr, torch.optim.Optimizer):
            rates = {id(p): float(group["lr"]) for group in self.lr.param_groups for p in group["params"]}
            return {id(p): rates.get(id(p), 0.0) for p, _, _ in pairs}
        assert self.lr is not None
        return dict.fromkeys((id(p) for p, _, _ in pairs), value_at(self.lr, step))
