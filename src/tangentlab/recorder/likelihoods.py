"""What the labels of probes are to the outputs: a likelihood, given or guessed, its loss, and targets as outputs have them."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import torch
from torch import Tensor

from tangentlab.engine.likelihood import Binary, Classification, Likelihood, Regression, likelihood_of, loss_of
from tangentlab.engine.losses import LossFunction
from tangentlab.engine.network import OutputFunction, main_tensor
from tangentlab.errors import InputError


def classes_last(
    likelihood: str | Likelihood | None, function: OutputFunction | None
) -> tuple[Likelihood | None, OutputFunction | None]:
    """The likelihood with its classes on the last axis, and the function of the outputs that moves them there."""
    kind = None if likelihood is None else likelihood_of(likelihood)
    if not isinstance(kind, Classification) or kind.class_axis == -1:
        return kind, function
    axis, moved = kind.class_axis, copy(kind)
    moved.class_axis = -1

    def with_classes_last(output: Any, batch: Any) -> Tensor:
        found = main_tensor(output if function is None else function(output, batch))
        if axis in (0, -found.ndim) or not -found.ndim <= axis < found.ndim:
            raise InputError(
                f"The argument likelihood= has its classes on axis {axis}, and the outputs have the shape "
                f"{tuple(found.shape)}: take Classification(class_axis=...) of an axis behind the examples."
            )
        return found.movedim(axis, -1)

    return moved, with_classes_last


def guessed(labels: Iterable[Tensor], shape: torch.Size) -> Likelihood | None:
    """What the labels `(n, ...)` of all probes suggest for outputs `(n, *shape)`; None without labels.

    Two classes where every output has a label that is 0 or 1, of whatever type, or where integers belong to a single output;
    real targets where labels are floating point otherwise; else classes.
    """
    found = list(labels)
    if not found:
        return None
    one_each = all(label[:1].numel() == shape.numel() for label in found)
    if one_each and all(bool(((label == 0) | (label == 1)).all()) for label in found):
        return likelihood_of("binary")
    if any(label.is_floating_point() for label in found):
        return likelihood_of("regression")
    return likelihood_of("binary" if shape.numel() == 1 else "classification")


def loss_for(likelihood: Likelihood) -> LossFunction | None:
    """(outputs, labels) -> the loss of every example; None where no loss is known."""
    try:
        loss = loss_of(likelihood)
    except InputError:
        return None
    if isinstance(likelihood, Binary):
        return lambda outputs, labels: loss(outputs, probabilities(labels))
    return loss


def loss_slopes(likelihood: Likelihood | None, outputs: Tensor, labels: Tensor) -> Tensor | None:
    """dl/df of every example, `(n, outputs)` on the CPU in float64.

    `f - y` for real targets, probability minus label for classes; None where there is no likelihood, or none with a loss.
    """
    loss = None if likelihood is None else loss_for(likelihood)
    if loss is None:
        return None
    with torch.enable_grad():
        leaves = outputs.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(loss(leaves, labels).sum(), leaves)
    return slopes.flatten(1).double().cpu()


def probabilities(labels: Tensor) -> Tensor:
    """Labels of two classes as probabilities of the second: integers (0 and 1, -1 and 1) by their sign, others as they are."""
    return labels if labels.is_floating_point() else (labels > 0).double()


def are_classes(labels: Tensor, shape: torch.Size, likelihood: Likelihood | None) -> bool:
    """Whether labels `(n, ...)` are indices of the last axis of outputs `(n, ..., classes)`."""
    fit = not labels.is_floating_point() and labels.shape[1:] == shape[:-1] and shape[-1] > 1
    return fit and not isinstance(likelihood, Binary | Regression)


def target_columns(labels: Tensor, shape: torch.Size, outputs: list[int], likelihood: Likelihood | None) -> Tensor:
    """What the flattened outputs of the given shape should be, for some of them: `(n, len(outputs))` in float64.

    Class labels `(n, ...)` of outputs `(n, ..., classes)` are 1 at their class and 0 elsewhere (negative labels, which
    losses ignore, are 0 everywhere); the two classes of the binary likelihood are -1 and 1; real targets are as they are.
    """
    if are_classes(labels, shape, likelihood):
        flat, index = labels.reshape(len(labels), -1), torch.tensor(outputs, device=labels.device)
        return (flat[:, index // shape[-1]] == index % shape[-1]).double()
    size = shape.numel()
    if labels[0].numel() != size:
        raise InputError(f"Labels of shape {tuple(labels.shape)} do not fit outputs of shape (n, {tuple(shape)}).")
    values = labels.reshape(len(labels), size)
    values = 2 * probabilities(values).double() - 1 if isinstance(likelihood, Binary) else values.double()
    return values[:, outputs]
