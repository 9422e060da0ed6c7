"""What a step really did: losses before and after it, on the same examples and under the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError
from tangentlab.optim.damping import AdaptiveDamping, Trial
from tangentlab.parallel.processes import Processes

if TYPE_CHECKING:
    from tangentlab.optim.preconditioner import Preconditioner

Evaluate = Callable[[], Tensor]
"""Losses of some examples under the model as it is: one per example, (N,), or their mean."""


def losses_now(model: nn.Module, evaluate: Evaluate) -> Tensor:
    """Losses in float64, flat; the model's buffers and the random state are left as they were."""
    with torch.no_grad(), untouched(model):
        losses = evaluate()
    if not isinstance(losses, Tensor):
        raise InputError(f"The argument evaluate must return a tensor of losses, got {type(losses).__name__}.")
    return losses.detach().to(torch.float64).flatten()


def compare(before: Tensor, after: Tensor, predicted: float, processes: Processes) -> Trial:
    """Mean change with its standard error, over the examples of all processes."""
    if before.shape != after.shape:
        raise InputError("The function evaluate must return losses of the same examples before and after the step.")
    change = after - before
    moments = torch.stack([torch.ones_like(change).sum(), change.sum(), change.square().sum()])
    processes.sum_(moments)
    count, first, second = moments.tolist()
    mean = first / count
    variance = max(0.0, second / count - mean**2) * count / max(count - 1, 1)
    return Trial(mean, (variance / count) ** 0.5, predicted)


@contextmanager
def adapt(precond: Preconditioner, evaluate: Evaluate) -> Iterator[None]:
    """Compare the step that the block makes with what the quadratic model promises, and adapt the damping if it is due.

    The step d is the difference of the weights, so that momentum, weight decay and clipping are in it; the promise is
    `<g, d> + 1/2 d^T F d` with the mean gradient g of all parameters and F where it is known.
    """
    damping = precond.damping
    if not isinstance(damping, AdaptiveDamping) or precond.steps % damping.period:
        yield
        return
    named = {name: p for name, p in precond.model.named_parameters() if p.grad is not None}
    weights = {name: p.detach().clone() for name, p in named.items()}
    grads = {name: p.grad.detach().clone() for name, p in named.items() if p.grad is not None}
    before, done = losses_now(precond.model, evaluate), precond.steps
    yield
    if precond.steps == done:
        return  # the step was skipped
    after = losses_now(precond.model, evaluate)
    step = {name: p.detach() - weights[name] for name, p in named.items()}
    linear = sum(float((step[name] * grad).sum(dtype=torch.float64)) for name, grad in grads.items())
    predicted = precond.mean_factor * linear + 0.5 * precond.quadratic(step)
    damping.update(compare(before, after, predicted, precond.processes))
