"""Losses of the outputs, one value per example: by name, from a likelihood, or any function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.engine.batches import targets_of
from tangentlab.engine.feeding import moved
from tangentlab.engine.labels import IGNORED, class_indices, like_outputs, probabilities, require_classes
from tangentlab.engine.likelihood import Binary, Classification, Likelihood, LogSoftmax, Regression, likelihood_of
from tangentlab.errors import InputError, ModelError

LossFunction = Callable[[Tensor, Any], Tensor]
"""(outputs (N, ...), targets) -> the loss of every example (N), or of every position of it (N, ...)."""


def loss_of(loss: str | Likelihood | LossFunction) -> LossFunction:
    """The loss itself, or the negative log-likelihood (without constants) of a likelihood or its name."""
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        raise InputError(
            f"{type(loss).__name__} reduces over examples: pass {type(loss).__name__}(reduction='none'), "
            "the mean over examples is taken here."
        )
    return negative_log_likelihood(likelihood_of(loss)) if isinstance(loss, str | Likelihood) else loss


def negative_log_likelihood(likelihood: Likelihood) -> LossFunction:
    """(outputs (N, ...), targets) -> -log p, (N) or (N, positions), up to a constant."""
    if isinstance(likelihood, Classification):
        return partial(_cross_entropy, F.cross_entropy, likelihood.class_axis, likelihood.ignore_index)
    if isinstance(likelihood, LogSoftmax):
        return partial(_cross_entropy, F.nll_loss, -1, likelihood.ignore_index)
    if isinstance(likelihood, Binary):
        return lambda f, y: F.binary_cross_entropy_with_logits(f, probabilities(y, f), reduction="none")
    if isinstance(likelihood, Regression):

        def half_squared_distance(outputs: Tensor, targets: Tensor) -> Tensor:
            residual = (outputs - like_outputs(targets[None], outputs)[0]).flatten(1)
            return 0.5 * likelihood.whitened(residual, outputs.detach()).square().sum(1)

        return half_squared_distance
    raise InputError(f"No loss is known for the likelihood {likelihood.name!r}: pass loss=callable(outputs, targets).")


def _cross_entropy(
    loss: Callable[..., Tensor], axis: int, ignore_index: int | None, outputs: Tensor, targets: Tensor
) -> Tensor:
    """Cross-entropy of classes on an axis, (N) or (N, positions), zero where the label is to be ignored."""
    require_classes(outputs, axis)
    logits = outputs.movedim(axis, -1)
    indices = class_indices(targets[None], logits, ignore_index)[0]
    ignored = IGNORED if ignore_index is None else ignore_index
    return loss(logits.movedim(-1, 1).contiguous(), indices, reduction="none", ignore_index=ignored)


def per_example(loss: LossFunction, outputs: Tensor, batch: Any) -> Tensor:
    """The loss of every example, (N); positions within an example are summed."""
    targets = moved(targets_of(batch), outputs.device) if getattr(loss, "needs_targets", True) else None
    values = loss(outputs, targets)
    if values.shape[:1] != outputs.shape[:1]:
        raise InputError("loss must return one value per example (reduction='none'), not a mean or a sum.")
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def output_gradient(loss: LossFunction, outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """Outputs cut off from their graph, and the gradient of the summed loss in them, with a graph."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = per_example(loss, leaf, batch)
        if not losses.requires_grad:
            raise ModelError("The loss does not depend on the outputs through the autograd graph.")
        return leaf, torch.autograd.grad(losses.sum(), leaf, create_graph=True)[0]
