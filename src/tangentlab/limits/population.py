"""Exact population gradients: means over all 2^n inputs, or over a large sample where 2^n is too many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from tangentlab.engine.network import require_module
from tangentlab.errors import InputError, ModelError
from tangentlab.limits.cube import Inputs, UniformInputs, all_inputs, chosen_inputs
from tangentlab.metrics import per_example_grad_norms

EXACT_LIMIT = 16
"""Largest n whose inputs are enumerated unless a sample is asked for."""
PIECE = 1 << 13
Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (m,), labels (m,)) -> losses (m,)."""


def squared_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """`(f - y)^2 / 2` of every example."""
    return (outputs - labels).square() / 2


def logistic_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """`log(1 + exp(-y f))` of every example."""
    return nn.functional.softplus(-labels * outputs)


@dataclass(frozen=True)
class Population:
    """Inputs that stand for P_X, with their probabilities.

    Attributes:
        inputs: `(m, n)`, all inputs of the cube or a sample.
        weights: `(m,)`, adding up to 1.
        exact: whether means are those of P_X itself.
    """

    inputs: Tensor
    weights: Tensor
    exact: bool

    @classmethod
    def of(
        cls, n: int, inputs: Inputs | None = None, *, draws: int | None = None, generator: Generator | None = None
    ) -> Population:
        """All 2^n inputs, or `draws` of them.

        Raises:
            InputError: n is above 16 and no number of draws is given, or P_X has no table of probabilities.
        """
        chosen = chosen_inputs(n, inputs)
        if draws is not None:
            return cls(chosen.sample(draws, generator), torch.full((draws,), 1 / draws), False)
        if n > EXACT_LIMIT:
            raise InputError(
                f"Exact population gradients visit all 2^{n} inputs; beyond n = {EXACT_LIMIT} give draws=, a number of samples."
            )
        x = all_inputs(n)
        weights = (
            torch.full((len(x),), 2.0**-n) if isinstance(chosen, UniformInputs) else chosen.probabilities().float()
        )
        return cls(x, weights, True)

    def pieces(self, labels: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Inputs, weights and labels, some thousand at a time."""
        for start in range(0, len(self.inputs), PIECE):
            part = slice(start, start + PIECE)
            yield self.inputs[part], self.weights[part], None if labels is None else labels[part]

    @torch.no_grad()
    def accuracy(self, model: nn.Module, labels: Tensor) -> float:
        """The probability that the output has the sign of the label; an output of 0 counts 1/2."""
        total = 0.0
        for x, w, y in self.pieces(labels):
            outputs = scalar_outputs(model, x)
            total += float((w.double() * (1 + torch.sign(outputs) * y).double()).sum()) / 2  # type: ignore[operator]
        return total


def as_parameters(model: nn.Module, inputs: Tensor) -> Tensor:
    """Inputs in the type of the model's parameters."""
    return inputs.to(next((p.dtype for p in model.parameters()), inputs.dtype))


def scalar_outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs `(m,)` of a model with one output, in the type of its parameters."""
    outputs = model(as_parameters(model, inputs))
    if outputs.numel() != len(inputs) or outputs.shape[:1] != inputs.shape[:1]:
        raise ModelError(
            f"The limits are about models with one output per example; this one gives shape {tuple(outputs.shape)} for "
            f"{len(inputs)} examples: take one output, or the difference of two."
        )
    found: Tensor = outputs.view(-1)
    return found


def population_gradient(
    model: nn.Module, population: Population, labels: Tensor | None, loss: Loss = squared_loss
) -> list[Tensor]:
    """`E_X grad L(f(X), F(X))` for every trainable parameter; with `labels=None` that of junk, Y a fair coin.

    Args:
        model: any network with one output.
        population: inputs and probabilities.
        labels: F at the inputs of the population, `(m,)`.
        loss: elementwise.
    """
    require_module(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for x, w, y in population.pieces(labels):
        outputs = scalar_outputs(model, x)
        values = loss(outputs, y.to(outputs)) if y is not None else _coin(outputs, loss)[0]
        found = torch.autograd.grad((w.to(outputs) * values).sum(), parameters, allow_unused=True)
        total = [t if g is None else t + g for t, g in zip(total, found, strict=True)]
    return total


def gradient_norms(model: nn.Module, population: Population, loss: Loss = squared_loss) -> tuple[float, float]:
    """`sqrt E |grad L|^2` on junk, and `sqrt E |g|^2` of the part of the gradient that sees labels.

    `g = (grad L(., 1) - grad L(., -1)) / 2`.

    Both are means of `|df/dw|^2` with weights from the loss; for the squared loss g is the gradient of f itself.
    """
    junk = signal = 0.0
    for x, w, _ in population.pieces():
        norms = per_example_grad_norms(
            model,
            as_parameters(model, x),
            _itself,
            function=lambda output, batch: output.view(len(output), 1),
            verify=False,
        )
        with torch.no_grad():
            outputs = scalar_outputs(model, x)
        up, down = _coin(outputs, loss)[1]
        squares = norms.double().square() * w.double()
        junk += float((squares * (up.square() + down.square()) / 2).sum())
        signal += float((squares * ((up - down) / 2).square()).sum())
    return math.sqrt(junk), math.sqrt(signal)


def _itself(outputs: Tensor, targets: object) -> Tensor:
    return outputs[:, 0]


_itself.needs_targets = False  # type: ignore[attr-defined]


def _coin(outputs: Tensor, loss: Loss) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The mean loss over both labels, and the derivatives of the loss in the output at each."""
    ones = torch.ones_like(outputs)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        slopes = tuple(torch.autograd.grad(loss(leaf, y * ones).sum(), leaf)[0].double() for y in (1, -1))
    return (loss(outputs, ones) + loss(outputs, -ones)) / 2, (slopes[0], slopes[1])


@torch.no_grad()
def noisy_step(
    model: nn.Module, gradient: list[Tensor], rate: float, noise: float = 0.0, generator: Generator | None = None
) -> None:
    """`W <- W - gamma gradient + sigma Z` on the trainable parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter, direction in zip(parameters, gradient, strict=True):
        parameter.sub_(direction, alpha=rate)
        if noise:
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=noise)
