"""Waves along a flower as labels: data, loss, accuracy beyond the base rate, and maps of a network on a square."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Generator, Tensor, nn

from tangentlab.data import Dataset, flower, grid, sinusoids
from tangentlab.experiments import Lab, Minibatches, Training
from tangentlab.experiments._images import Row, follow

HALF_WIDTH = 1.6
"""Of the square on which maps are drawn; flowers reach out to 1.5."""


def labelled_flower(samples: int, frequency: int, petals: int, threshold: float, generator: Generator) -> Dataset:
    """Points of a flower with the labels `sin(2 pi k z + phi) > threshold`, `(n, 1)`, the phase drawn."""
    latent = torch.arange(samples) / samples
    phase = 2 * math.pi * torch.rand(1, generator=generator)
    signal = sinusoids(latent, [frequency], phases=phase)
    return Dataset(flower(latent, petals), (signal > threshold).float()[:, None], "flower", classes=2)


def logistic_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean binary cross-entropy of one logit, in nats."""
    inputs, targets = batch
    return nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)


def fit_labels(lab: Lab, model: nn.Module, data: Dataset, steps: int, rate: float, name: str, **facts: int) -> None:
    """Train on all points at once, with accuracies at ten steps in the table `accuracy`."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    at = range(0, steps + 1, max(1, steps // 10))
    batches = Minibatches(data, None, lab.seed)
    look = partial(_accuracies, data)
    follow(lab, "accuracy", model, batches, optimizer, steps, at, look, name=name, loss=logistic_loss, **facts)


@torch.no_grad()
def _accuracies(data: Dataset, training: Training) -> Row:
    right = (training.model(data.inputs) > 0) == (data.targets > 0.5)
    return {"accuracy": float(right.double().mean()), "base": base_rate(data.targets)}


def base_rate(labels: Tensor) -> float:
    """The accuracy of the more frequent label."""
    share = float(labels.double().mean())
    return max(share, 1 - share)


def beyond_base(accuracy: float, base: float) -> float:
    """0 at the base rate and 1 without a mistake."""
    return (accuracy - base) / (1 - base) if base < 1 else 0.0


@torch.no_grad()
def logits_on_square(model: nn.Module, side: int) -> Tensor:
    """`(side, side)`, rows from the bottom up."""
    return torch.cat([model(part) for part in grid(side, HALF_WIDTH).split(10_000)]).view(side, side)
