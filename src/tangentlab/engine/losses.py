"""Losses of the outputs, one value per example, and targets as losses and likelihoods take them: checked, where the outputs
are, and in the shape of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.batches import targets_of
from tangentlab.engine.feeding import moved
from tangentlab.errors import InputError, ModelError

LossFunction = Callable[[Tensor, Any], Tensor]
"""(outputs (N, ...), targets) -> the loss of every example (N), or of every position of it (N, ...)."""


def per_example(loss: LossFunction, outputs: Tensor, batch: Any) -> Tensor:
    """The loss of every example, (N); positions within an example are summed."""
    targets = moved(targets_of(batch), outputs.device) if getattr(loss, "needs_targets", True) else None
    values = loss(outputs, targets)
    if values.shape[:1] != outputs.shape[:1]:
        raise InputError("The argument loss must return one value per example (reduction='none'), not a mean or a sum.")
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def output_gradient(loss: LossFunction, outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """Outputs cut off from their graph, and the gradient of the summed loss in them, with a graph."""
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = per_example(loss, leaf, batch)
        if not losses.requires_grad:
            raise ModelError("The loss does not depend on the outputs through the autograd graph.")
        return leaf, torch.autograd.grad(losses.sum(), leaf, create_graph=True)[0]


IGNORED = -100
"""The class label that stands for no label, as in torch and transformers."""


def require_classes(outputs: Tensor, axis: int) -> int:
    """Number of classes on an axis of outputs (N, ...); a softmax over one of them is 1 whatever the model says."""
    if not -outputs.ndim < axis < outputs.ndim or axis == 0:
        raise InputError(f"The classes are on axis {axis} and the outputs have the shape {tuple(outputs.shape)}.")
    classes = outputs.shape[axis]
    if classes < 2:
        raise InputError(
            f"A softmax over one output is always 1, so its Fisher matrix and gradients are zero: outputs of shape "
            f"{tuple(outputs.shape)} have one class on axis {axis}. Take likelihood='regression' if the output is a mean, "
            "'binary' if it is the logit of two classes."
        )
    return classes


def class_indices(labels: Tensor, outputs: Tensor, ignore_index: int | None) -> Tensor:
    """Labels (samples, N, ...) as long integers for outputs (N, ..., C), those to ignore among them."""
    classes = require_classes(outputs, -1)
    if labels.is_floating_point() or labels.is_complex() or labels.shape[1:] != outputs.shape[:-1]:
        raise InputError(
            f"Class labels must be integers of shape {tuple(outputs.shape[:-1])}, one per position; these are "
            f"{labels.dtype} of shape {tuple(labels.shape[1:])}: pass likelihood='segmentation' for classes on axis 1, "
            "'binary' for several labels per example, 'regression' for real targets, function=lambda out, batch: ..., or "
            "y.argmax(-1) in place of one-hot labels."
        )
    indices = labels.to(outputs.device).long()
    counted = indices if ignore_index is None else indices[indices != ignore_index]
    if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < classes:
        also = "" if ignore_index is None else f" (or be {ignore_index}, to be ignored)"
        raise InputError(
            f"Labels must lie in 0..{classes - 1}{also}, found {int(counted.min())}..{int(counted.max())}: number the "
            "classes from 0, name a label without meaning by Classification(ignore_index=...), or check the outputs."
        )
    return indices


def label_places(labels: Tensor, outputs: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Labels (samples, N, ...) as places (samples, N, ..., 1) on the last axis of outputs (N, ..., C), and which count.

    Those that do not count have the place 0.
    """
    places = class_indices(labels, outputs, ignore_index)[..., None]
    counts = torch.ones_like(places, dtype=torch.bool) if ignore_index is None else places != ignore_index
    return places.where(counts, 0), counts


def one_hot(labels: Tensor, outputs: Tensor, ignore_index: int | None) -> Tensor:
    """Labels (samples, N, ...) as vectors (samples, N, ..., C) for outputs (N, ..., C); zero where they do not count."""
    places, counts = label_places(labels, outputs, ignore_index)
    vectors = outputs.new_zeros((*labels.shape, outputs.shape[-1]))
    return vectors.scatter_(-1, places, counts.to(outputs.dtype))


def like_outputs(labels: Tensor, outputs: Tensor) -> Tensor:
    """Real targets (samples, N, ...) in the shape (samples, *outputs.shape)."""
    if labels.shape[1:2] != outputs.shape[:1] or labels[0].numel() != outputs.numel():
        raise InputError(f"Targets of shape {tuple(labels.shape[1:])} do not fit outputs {tuple(outputs.shape)}.")
    return labels.to(outputs).reshape(-1, *outputs.shape)


def probabilities(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets (N, ...) of Bernoulli logits in the shape of the outputs; they lie in [0, 1]."""
    shaped = like_outputs(targets[None], outputs)[0]
    if not bool(((shaped >= 0) & (shaped <= 1)).all()):
        raise InputError(
            f"Targets of the binary likelihood lie in [0, 1], these in [{float(targets.min()):g}, "
            f"{float(targets.max()):g}]: map two classes to 0 and 1, as with (targets > 0)."
        )
    return shaped


def exponentials(outputs: Tensor) -> Tensor:
    """exp(outputs) of log-probabilities over the last axis; they sum to one as far as the outputs were computed precisely."""
    require_classes(outputs, -1)
    p = outputs.exp()
    tolerance = min(100 * _precision(outputs) ** 0.75, 0.1)
    if not torch.allclose(p.sum(-1), torch.ones_like(p.sum(-1)), rtol=0, atol=tolerance):
        raise InputError(
            "The argument likelihood='log_softmax' needs outputs whose exponentials sum to one over the last axis."
        )
    return p


def _precision(values: Tensor) -> float:
    """That of the coarsest type that holds all of them: a network may compute in half precision and return single."""
    coarser = (torch.bfloat16, torch.float16, torch.float32)
    holding = (dtype for dtype in coarser if torch.equal(values.to(dtype).to(values.dtype), values))
    return torch.finfo(next(holding, values.dtype)).eps


def cross_entropy(
    loss: Callable[..., Tensor], outputs: Tensor, targets: Tensor, axis: int, ignore_index: int | None
) -> Tensor:
    """Cross-entropy of classes on an axis, (N) or (N, positions), zero where the label is to be ignored."""
    require_classes(outputs, axis)
    logits = outputs.movedim(axis, -1)
    indices = class_indices(targets[None], logits, ignore_index)[0]
    ignored = IGNORED if ignore_index is None else ignore_index
    return loss(logits.movedim(-1, 1).contiguous(), indices, reduction="none", ignore_index=ignored)
