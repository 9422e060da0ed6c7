"""What experiments on image networks share: data at the size of the scale, the loss, measurements along a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tangentlab.bench.callbacks import Points as Points
from tangentlab.data import Dataset, downscale, standardize
from tangentlab.experiments import Lab, Minibatches, Training, train
from tangentlab.lines import Row as Row
from tangentlab.temporary import changed


def image_data(lab: Lab, name: str, pixels: int, images: int) -> tuple[Dataset, Dataset]:
    """The first `images` training images (all, when there are fewer) and the test images.

    Averaged down to `pixels` where they are larger, every channel standardized on the training images.
    """
    parts = []
    for split in ("train", "test"):
        data = lab.dataset(name, split)
        data = data.first(min(images, len(data))) if split == "train" else data
        parts.append(downscale(data, pixels) if pixels < data.inputs.shape[-1] else data)
    train, test = standardize(*parts)
    return train, test


def image_pool(lab: Lab, name: str, pixels: int, images: int) -> Dataset:
    """The first `images` of the training images followed by the test images; an error when there are fewer.

    As `image_data` makes them, standardized on those that are training images.
    """
    train, test = image_data(lab, name, pixels, images)
    inputs, targets = (torch.cat(pair) for pair in zip(train, test, strict=True))
    return replace(train, inputs=inputs, targets=targets, split="train and test").first(images)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean cross-entropy of the logits, in nats."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


@torch.no_grad()
def loss_and_accuracy(model: nn.Module, data: Dataset, batch: int = 500) -> tuple[float, float]:
    """Mean cross-entropy and share of right answers on `data`, for the network in the mode in which it is."""
    logits = torch.cat([model(inputs) for inputs in data.inputs.split(batch)])
    right = (logits.argmax(1) == data.targets).float().mean()
    return nn.functional.cross_entropy(logits, data.targets).item(), right.item()


def some_of(data: Dataset, count: int) -> Dataset:
    """The first `count` examples, or all when there are fewer."""
    return data.first(min(count, len(data)))


def batched(inputs: Tensor, size: int) -> list[tuple[Tensor]]:
    """Batches of `size` inputs without targets."""
    return [(part,) for part in inputs.split(size)]


@contextmanager
def evaluation(model: nn.Module, batches: Minibatches, passes: int) -> Iterator[None]:
    """Inside, the network is in evaluation mode, with batch norms that use the statistics of the present weights.

    These are averaged over `passes` minibatches. The running averages that a training leaves behind lag, and at the
    start they are those of no network at all.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    saved = [{key: value.clone() for key, value in norm.named_buffers()} for norm in norms]
    momenta = [norm.momentum for norm in norms]

    def measure() -> None:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain average over minibatches
        if norms:
            model.train()
            with torch.no_grad():
                for step in range(passes):
                    model(batches.at(step)[0])
        model.eval()

    def back() -> None:
        model.train()
        for norm, buffers, momentum in zip(norms, saved, momenta, strict=True):
            norm.momentum = momentum
            for key, value in norm.named_buffers():
                value.copy_(buffers[key])

    yield from changed(measure, back)


def for_trial(lab: Lab, count: int, most: int = 32) -> int:
    """`count`, or at most `most` when the run is cut short: a trial only shows that things work."""
    return count if lab.max_steps is None else min(count, most)


def follow(
    lab: Lab,
    table: str,
    model: nn.Module,
    batches: Minibatches,
    optimizer: torch.optim.Optimizer,
    steps: int,
    at: Iterable[int],
    measure: Callable[[Training], Row],
    *,
    name: str = "train",
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor] = cross_entropy,
    **facts: Any,
) -> list[Row]:
    """Train, and log a row of `table` at the steps `at` and at the last one: facts, step and what `measure` finds."""

    def record(training: Training) -> list[Row]:
        row = {**facts, "step": training.step, **measure(training)}
        lab.log(table, **row)
        return [row]

    points = Points(at, record)
    train(model, batches, loss, optimizer, steps, lab=lab, name=name, callbacks=[points])
    return points.rows
