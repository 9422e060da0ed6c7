"""Adaptive clipping (C.1.1): the gradient of an information term is at most as long as that of the loss it joins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def adaptive_clip(main: Sequence[Tensor], extra: Sequence[Tensor]) -> list[Tensor]:
    """`g_a = min(|g_u|, |g_m|) g_m / |g_m|`: `extra` at its own length or that of `main`, whichever is less.

    Norms are Frobenius norms over all tensors together; an extra gradient of norm 0 stays 0.
    """
    limit, length = _norm(main), _norm(extra)
    factor = torch.where(length > limit, limit / length, torch.ones_like(length))
    return [factor.to(part) * part for part in extra]


def clipped_backward(main: Tensor, extra: Tensor, parameters: Iterable[Tensor], beta: float = 1.0) -> None:
    """In place of `(main + beta * extra).backward()`: adds the gradient of `main` and beta times the clipped one of `extra`.

        information = MINE()(score_pairs(critic, generator(noise), codes))
        clipped_backward(adversarial_loss, -information, generator.parameters())
        optimizer.step()

    Only `parameters` get gradients; the critic's are left alone. Cost: two backward passes.
    """
    targets = [parameter for parameter in parameters if parameter.requires_grad]
    of_main = torch.autograd.grad(main, targets, retain_graph=True, allow_unused=True)
    of_extra = torch.autograd.grad(extra, targets, allow_unused=True)
    zeros = [torch.zeros_like(parameter) for parameter in targets]
    first = [zero if grad is None else grad for grad, zero in zip(of_main, zeros, strict=True)]
    second = adaptive_clip(first, [zero if grad is None else grad for grad, zero in zip(of_extra, zeros, strict=True)])
    for parameter, one, two in zip(targets, first, second, strict=True):
        total = one + beta * two
        parameter.grad = total if parameter.grad is None else parameter.grad + total


def _norm(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.detach().double().norm() for part in parts]).norm()
