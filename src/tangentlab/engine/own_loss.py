"""A model's own loss, read from its output: `likelihood="model"`, as models of transformers give one for their labels.

The loss of an example is what the model says when it is asked about that example alone, `model(**example).loss`. Asking one
by one is the definition and the slow route. Most losses, though, are means over labelled entries of a known function of the
logits (`_FORMS`), and then per-example losses follow from the logits of the whole batch. A form is taken only after it was
proved on the batch and on one example alone: the loss leads to the parameters through the logits alone, and its gradient in
all logits, by the model's own graph, is that of the form. The proof is repeated on every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangentlab.engine.batches import Batches, common_length, labels_in, plain_batch, take_examples
from tangentlab.engine.feeding import Forward, call_by_name
from tangentlab.engine.graph import reaches
from tangentlab.engine.likelihood import OWN, Likelihood, likelihood_of, loss_of
from tangentlab.engine.losses import IGNORED, LossFunction
from tangentlab.engine.network import Network, grad_mode, main_tensor
from tangentlab.engine.snapshot import untouched
from tangentlab.errors import InputError, ModelError


@dataclass(frozen=True)
class _Form:
    """A mean over entries: (logits (N, ...), labels) -> losses of the entries (N, entries) and whether they count.

    None where logits and labels do not have the shapes of the form.
    """

    name: str
    entries: Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]

    def per_example(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of every example alone, (N): the mean over its own entries."""
        found = self.entries(logits, labels.to(logits.device))
        assert found is not None
        losses, counts = found[0], found[1].sum(1)
        if bool((counts == 0).any()):
            raise InputError(
                f"Example {int((counts == 0).nonzero()[0])} of a batch has no label that counts (all are {IGNORED}), so the "
                "model's loss on it alone is not a number: leave it out."
            )
        return losses.sum(1) / counts

    def is_of(self, network: Network, output: Any, batch: Any) -> bool:
        """Whether the loss in the output of a batch is this mean over its logits, by value and by gradient in all logits."""
        loss, logits, labels = _loss_in(output, network.model), _logits_in(output), labels_in(batch)
        if logits is None or labels is None or logits.grad_fn is None or loss.numel() != 1:
            return False
        if not loss.requires_grad or reaches(loss, network.parameters().values(), beyond=logits.grad_fn):
            return False
        leaf = logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).requires_grad_()
        found = self.entries(leaf, labels.to(leaf.device))
        (truth,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
        if found is None or truth is None or not bool(found[1].any()):
            return False
        mean = found[0].sum() / found[1].sum()
        (gradient,) = torch.autograd.grad(mean, leaf)
        rounding = torch.finfo(logits.dtype).eps ** 0.8
        return _near(gradient, truth, rounding) and _near(mean.detach(), loss.detach(), rounding)


def _near(one: Tensor, other: Tensor, rounding: float) -> bool:
    return float((one - other).abs().max()) <= rounding * float(other.abs().max())


def _next_token(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """Logits at position t against the label at t + 1."""
    return _classes(logits[:, :-1], labels[:, 1:]) if logits.ndim == 3 and labels.ndim == 2 else None


def _classes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    if labels.is_floating_point() or labels.shape != logits.shape[:-1] or logits.numel() == 0:
        return None
    if not bool(((labels == IGNORED) | ((labels >= 0) & (labels < logits.shape[-1]))).all()):
        return None
    losses = F.cross_entropy(logits.flatten(0, -2), labels.long().flatten(), reduction="none", ignore_index=IGNORED)
    return losses.reshape(len(labels), -1), (labels != IGNORED).reshape(len(labels), -1)


def _squares(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    if logits.numel() != labels.numel() or len(logits) != len(labels):
        return None
    losses = (logits.flatten(1) - labels.reshape(len(labels), -1).to(logits.dtype)).square()
    return losses, torch.ones_like(losses, dtype=torch.bool)


def _bernoulli(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    if logits.shape != labels.shape or not labels.is_floating_point():
        return None
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").flatten(1)
    return losses, torch.ones_like(losses, dtype=torch.bool)


_FORMS = (
    _Form("cross-entropy of the next token", _next_token),
    _Form("cross-entropy", _classes),
    _Form("mean squared error", _squares),
    _Form("binary cross-entropy", _bernoulli),
)


class ReadLoss:
    """The loss where the outputs of the network are the losses themselves; targets are not looked at."""

    needs_targets = False

    def __call__(self, outputs: Tensor, targets: Any) -> Tensor:
        """(N, 1) -> (N)."""
        return outputs[:, 0]


def with_loss(
    network: Network, data: Any, loss: str | Likelihood | LossFunction, *, of_outputs: bool = False
) -> tuple[Network, Batches, Likelihood | LossFunction]:
    """Network, batches and loss for any loss: a likelihood or its name, a function of (outputs, targets), or the model's own.

    `of_outputs`: the loss is needed as a function of the outputs, not only its value.
    """
    batches = Batches(data)
    if isinstance(loss, str) and loss == OWN:
        network, own = _own_loss(network, batches, of_outputs)
        return network, batches, own
    return network, batches, likelihood_of(loss) if isinstance(loss, str | Likelihood) else loss_of(loss)


def _own_loss(network: Network, data: Batches, of_outputs: bool) -> tuple[Network, LossFunction]:
    """The network whose outputs a model's own loss is about, and that loss per example, decided on the first batch.

    Either the logits with a form of the loss that was proved, or the losses themselves, one example at a time. Cost: one
    forward of the batch and one of an example.
    """
    if network.function is not None:
        raise InputError(f"{OWN!r} takes the loss from the model's output: leave function= out.")
    ask = network.forward or _call_with_labels
    asked, found = replace(network, forward=ask), list(_FORMS)

    def look(output: Any, batch: Any) -> Tensor:
        found[:] = [form for form in found if form.is_of(network, output, batch)]
        return _loss_in(output, network.model).reshape(-1)

    batch = next(iter(data))
    for part in (batch, _one_example(batch)):
        if found:
            with grad_mode(), untouched(network.model):
                replace(asked, function=look, n_output=None)(part)
    if found:
        return replace(asked, function=_Logits(network, found[0])), found[0].per_example
    if of_outputs:
        raise ModelError(
            f"A Gauss-Newton matrix needs the loss as a function of the outputs, and the own loss of "
            f"{type(network.model).__name__} is not a known mean over its logits: pass loss=callable(outputs, targets)."
        )
    return replace(network, forward=_OneByOne(ask)), ReadLoss()


@dataclass(frozen=True)
class _Logits:
    """Picks the logits of an output; wherever there is a graph, the form of the loss is proved again on the way."""

    network: Network
    form: _Form

    def __call__(self, output: Any, batch: Any) -> Tensor:
        """(N, ...)."""
        plain = torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None
        if plain and not self.form.is_of(self.network, output, batch):
            raise ModelError(
                f"The model's own loss was the {self.form.name} of its logits on the first batch and is not on another: "
                "pass loss=callable(outputs, targets), or batches of one kind."
            )
        return main_tensor(output)


@dataclass(frozen=True)
class _OneByOne:
    """A forward whose outputs (N,) are the losses of the examples, each of which is asked for alone."""

    ask: Forward

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """One forward pass per example."""
        count = common_length(batch)
        if count is None:
            raise InputError(
                f"{OWN!r} asks the model about one example at a time, and this batch cannot be cut: its tensors "
                "must have the examples on their first axis."
            )
        losses = [_loss_in(self.ask(model, take_examples(batch, [n])), model) for n in range(count)]
        if any(loss.numel() != 1 for loss in losses):
            raise InputError(f"The model's own loss of one example must be one number, not {tuple(losses[0].shape)}.")
        return torch.stack([loss.reshape(()) for loss in losses])


def _one_example(batch: Any) -> Any:
    """The example with the most labels that count, or the batch itself where it cannot be cut."""
    labels, count = labels_in(batch), common_length(batch)
    if labels is None or count is None:
        return batch
    return take_examples(batch, [int((labels != IGNORED).reshape(count, -1).sum(1).argmax())])


def _call_with_labels(model: nn.Module, batch: Any) -> Any:
    """The model on everything that is in the batch: its loss needs the labels."""
    batch = plain_batch(batch)
    if isinstance(batch, Mapping):
        return call_by_name(model, dict(batch), batch)
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return model(*batch)
    raise InputError(
        f"{OWN!r} needs the labels in the batch: a dict with all that the model takes, or a tuple of its arguments."
    )


def _loss_in(output: Any, model: nn.Module) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise InputError(
            f"{OWN!r} reads the loss from the model's output, and {type(model).__name__} returns a "
            f"{type(output).__name__} without one: put what it takes as labels into the batch, or pass "
            "loss=callable(outputs, targets)."
        )
    return loss


def _logits_in(output: Any) -> Tensor | None:
    try:
        return main_tensor(output)
    except InputError:
        return None
