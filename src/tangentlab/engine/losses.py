"""Losses of the outputs, one value per example: by name, from a likelihood, or any function."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.engine.batches import targets_of
from tangentlab.engine.likelihood import Binary, Classification, Likelihood, LogSoftmax, Regression, likelihood_of
from tangentlab.engine.rows import LossFunction
from tangentlab.errors import InputError


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
        axis = likelihood.class_axis
        return lambda f, y: F.cross_entropy(f.movedim(axis, 1), y.long(), reduction="none")
    if isinstance(likelihood, LogSoftmax):
        return lambda f, y: F.nll_loss(f.movedim(-1, 1), y.long(), reduction="none")
    if isinstance(likelihood, Binary):
        return lambda f, y: F.binary_cross_entropy_with_logits(f, _probabilities(y, f), reduction="none")
    if isinstance(likelihood, Regression):

        def half_squared_distance(outputs: Tensor, targets: Tensor) -> Tensor:
            residual = (outputs - targets.to(outputs.dtype).reshape(outputs.shape)).flatten(1)
            return 0.5 * (residual @ likelihood._roots(outputs.detach())[0]).square().sum(1)

        return half_squared_distance
    raise InputError(f"No loss is known for the likelihood {likelihood.name!r}: pass loss=callable(outputs, targets).")


def _probabilities(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets of Bernoulli logits in the shape of the outputs; they lie in [0, 1]."""
    if targets.shape[:1] != outputs.shape[:1] or targets.numel() != outputs.numel():
        raise InputError(f"Targets of shape {tuple(targets.shape)} do not fit outputs {tuple(outputs.shape)}.")
    if not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InputError(
            f"Targets of the binary likelihood lie in [0, 1], these in [{float(targets.min()):g}, "
            f"{float(targets.max()):g}]: map two classes to 0 and 1, as with (targets > 0)."
        )
    return targets.to(outputs.dtype).reshape(outputs.shape)


def per_example(loss: LossFunction, outputs: Tensor, batch: Any) -> Tensor:
    """The loss of every example, (N); positions within an example are summed."""
    values = loss(outputs, targets_of(batch))
    if values.shape[:1] != outputs.shape[:1]:
        raise InputError("loss must return one value per example (reduction='none'), not a mean or a sum.")
    return values.flatten(1).sum(1) if values.ndim > 1 else values
