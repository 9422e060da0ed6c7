"""What the experiments on linearized networks share: networks, binary tasks, and the training recipe of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset
from tangentlab.experiments import Callback, Lab, Minibatches, Training, train
from tangentlab.experiments._images import batched, for_trial
from tangentlab.linearized import eigenfunctions, linearize
from tangentlab.models import MLP, LeNet5, ResNet18, fan_in_normal_

Kind = Literal["mlp", "lenet", "resnet18"]
NAMES = {"mlp": "MLP", "lenet": "LeNet", "resnet18": "ResNet18"}
PLACE = "linearized networks"


@dataclass(frozen=True)
class Recipe:
    """Binary cross-entropy on one logit, SGD with momentum (or Adam), a rate that falls linearly to 0."""

    epochs: int
    batch: int = 128
    rate: float = 0.05
    momentum: float = 0.9
    optimizer: Literal["sgd", "adam"] = "sgd"

    def steps(self, examples: int) -> int:
        """Updates; the last partial batch of an epoch is dropped."""
        return self.epochs * (examples // min(self.batch, examples))

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """For the parameters that the model trains."""
        if self.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=self.rate)
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)


def build(
    kind: str, image: Sequence[int], *, base: int = 16, activation: str = "relu", zero_init: bool = False
) -> nn.Module:
    """One logit on images (channels, side, side): the paper's networks with LeCun-normal weights and zero biases.

    `base` are the channels of the residual network's first stage, `zero_init` starts its branches silent.
    """
    channels, side = image[0], image[-1]
    model: nn.Module
    if kind == "mlp":
        model = MLP((channels * side**2, 100, 100, 1), activation)
    elif kind == "lenet":
        model = LeNet5(channels, side, 1, activation)
    else:
        options: dict[str, Any] = {"base": base, "in_channels": channels, "activation": activation}
        model = ResNet18(1, zero_init_residual=zero_init, **options)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in_normal_(module, 1.0)
    return model


def fresh(lab: Lab, kind: str, data: Dataset, **options: Any) -> nn.Module:
    """A network for the images, the same at every call (see `build`)."""
    with lab.seeded("model", kind):
        return build(kind, data.inputs.shape[1:], **options)


def twins(make: Callable[[], nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """A network and the linearization of another from the same start, by name."""
    yield "network", make()
    yield "linearized", linearize(make().eval())


def logistic_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean binary cross-entropy of the logit, in nats."""
    inputs, targets = batch
    return nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], targets.to(inputs.dtype))


@torch.no_grad()
def binary_accuracy(model: nn.Module, data: Dataset, batch: int = 500) -> float:
    """Share of right signs; batch norms use their running averages meanwhile."""
    mode = model.training
    model.eval()
    right = [(model(x)[:, 0] > 0) == y.bool() for x, y in zip(*(t.split(batch) for t in data), strict=True)]
    model.train(mode)
    return float(torch.cat(right).float().mean())


class EpochLoss(Callback):
    """Mean minibatch loss of every epoch, and the first step at which it was below `target`."""

    def __init__(self, target: float) -> None:
        self.target, self.total, self.count = target, 0.0, 0
        self.losses: list[float] = []
        self.reached: int | None = None

    def __call__(self, training: Training) -> None:
        if training.step:
            self.total, self.count = self.total + training.loss, self.count + 1
        if self.count == training.batches.per_epoch:
            self.losses.append(self.total / self.count)
            self.total, self.count = 0.0, 0
            if self.reached is None and self.losses[-1] <= self.target:
                self.reached = training.step

    def state_dict(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("total", "count", "losses", "reached")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)


def train_task(
    lab: Lab, model: nn.Module, data: Dataset, recipe: Recipe, name: str, callbacks: Sequence[Callback] = ()
) -> Training:
    """Train by the recipe; a linearized network keeps its base in evaluation mode by itself."""
    batches = Minibatches(data, min(recipe.batch, len(data)), lab.seed)
    steps = recipe.steps(len(data))
    optimizer = recipe.make_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    return train(
        model.train(),
        batches,
        logistic_loss,
        optimizer,
        steps,
        lab=lab,
        name=name,
        callbacks=callbacks,
        parts={"schedule": schedule},
        after_update=lambda training: schedule.step(),
    )


def eigenfunction_task(lab: Lab, stage: str, model: nn.Module, data: Dataset, index: int) -> Dataset:
    """The images with the signs of an eigenfunction of the kernel on them as labels; computed once per `stage`."""

    def signs() -> Tensor:
        batches = batched(data.inputs, 250)
        return eigenfunctions(model, batches, index + 1, method="gram", progress=False).labels(index)

    return relabelled(data, lab.stage(stage, signs))


def held_out(lab: Lab, data: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """The first images, and the last `count` for validation, at most half of them in a trial."""
    split = len(data) - for_trial(lab, count, len(data) // 2)
    return data.first(split), data.take(torch.arange(split, len(data)))


def two_classes(data: Dataset) -> Dataset:
    """CIFAR2: 1 for the first five classes, 0 for the others."""
    return replace(data, targets=(data.targets <= 4).long(), classes=2)


def relabelled(data: Dataset, labels: Tensor) -> Dataset:
    """The same images with binary labels."""
    return replace(data, targets=labels, classes=2)
