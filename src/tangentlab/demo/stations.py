"""The four stations of the tour, each a computation whose result the page shows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab import (
    FIM,
    NTK,
    PMat,
    PMatBlockDiag,
    PMatDense,
    PMatDiag,
    PMatEKFAC,
    PMatImplicit,
    PMatKFAC,
    PMatLowRank,
    PMatQuasiDiag,
    PVector,
    label_kernel,
)
from tangentlab.bench.callbacks import OnPeriod
from tangentlab.bench.minibatches import Minibatches
from tangentlab.bench.seeds import seeded
from tangentlab.bench.training import Training, train
from tangentlab.data import Dataset
from tangentlab.optim import NaturalSGD

Tick = Callable[[], None]
REPRESENTATIONS: dict[str, type[PMat]] = {
    "Dense": PMatDense,
    "Implicit": PMatImplicit,
    "LowRank": PMatLowRank,
    "BlockDiag": PMatBlockDiag,
    "EKFAC": PMatEKFAC,
    "KFAC": PMatKFAC,
    "QuasiDiag": PMatQuasiDiag,
    "Diag": PMatDiag,
}
DAMPING, VECTORS = 0.01, 20
RATES: Mapping[str, tuple[float, ...]] = {
    "SGD": (0.03, 0.1, 0.3),
    "EKFAC": (0.003, 0.01, 0.03),
    "EKFAC-ra": (0.003, 0.01, 0.03),
}


def small_cnn(width: int) -> nn.Sequential:
    """Three convolutions and a dense layer on 8 x 8 images; with `width` 8, 4,218 parameters.

    Small enough for its dense Fisher matrix, and the same weights whenever it is called.
    """
    with seeded(0, "demo"):
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * width, 10),
        )


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean cross-entropy of the logits, in nats."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset) -> float:
    """Share of right answers."""
    return (model(data.inputs).argmax(1) == data.targets).float().mean().item()


@dataclass(frozen=True)
class Trained:
    """The network before and after its training, and how well it does on images that it has not seen."""

    before: nn.Sequential
    after: nn.Sequential
    accuracy_before: float
    accuracy: float


def train_network(data: Dataset, test: Dataset, width: int, updates: int, batch: int, tick: Tick) -> Trained:
    """Train by SGD with momentum."""
    model = small_cnn(width)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    callbacks = [OnPeriod(1, lambda training: tick())]
    train(model, Minibatches(data, batch, 0), cross_entropy, optimizer, updates, callbacks=callbacks)
    return Trained(before, model, accuracy(before, test), accuracy(model, test))


@dataclass(frozen=True)
class FisherRow:
    """One representation: what it costs, and how far it is from the dense truth.

    `frobenius`: |F̂ - F| / |F|; `trace`: relative error; `product`: mean cosine with the exact F v over random
    vectors; `natural`: cosine with the exact natural gradient (F + damping I)^-1 g.
    """

    name: str
    stored: int
    seconds: float
    frobenius: float
    trace: float
    product: float
    natural: float


def compare_fisher(model: nn.Module, data: Dataset, tick: Tick) -> list[FisherRow]:
    """The Fisher matrix of `data` in every representation, against the dense one."""
    model.eval()
    model.zero_grad()
    cross_entropy(model, (data.inputs, data.targets)).backward()
    gradient = PVector.from_grad(model)
    noise = torch.randn(VECTORS, len(gradient.flat), generator=torch.Generator().manual_seed(0))
    v = PVector(gradient.layout, noise / noise.norm(dim=1, keepdim=True))
    truth = FIM(model, data.inputs, PMatDense, progress=False)
    dense, product, natural = truth.tensor(), truth @ v, truth.solve(gradient, DAMPING)
    rows = []
    for name, representation in REPRESENTATIONS.items():
        started = time.perf_counter()
        matrix = FIM(model, data.inputs, representation, progress=False)
        seconds = time.perf_counter() - started
        errors = {
            "frobenius": ((matrix.tensor() - dense).norm() / dense.norm()).item(),
            "trace": ((matrix.trace() - truth.trace()).abs() / truth.trace()).item(),
            "product": cosine(matrix @ v, product),
            "natural": cosine(matrix.solve(gradient, DAMPING), natural),
        }
        rows.append(FisherRow(name, matrix.nbytes(), seconds, **errors))
        tick()
    return rows


def cosine(a: PVector, b: PVector) -> float:
    """Cosine of two vectors, or mean cosine of two batches of them."""
    return nn.functional.cosine_similarity(a.flat, b.flat, dim=-1).mean().item()


@dataclass(frozen=True)
class Kernels:
    """Tangent kernels (examples, examples) before and after training, scaled to a diagonal of 1, and their alignments.

    `alignment` is the cosine of the centred kernel and the centred kernel of the labels.
    """

    before: Tensor
    after: Tensor
    alignment_before: float
    alignment: float
    per_class: int


def tangent_kernels(trained: Trained, test: Dataset, per_class: int, tick: Tick) -> Kernels:
    """The kernel summed over the ten outputs, on `per_class` test images of every digit, sorted by digit."""
    rows = torch.cat([(test.targets == digit).nonzero().squeeze(1)[:per_class] for digit in range(10)])
    inputs, labels = test.inputs[rows], test.targets[rows]
    target = label_kernel(labels, 10).trace_over_outputs()

    def kernel_of(model: nn.Module) -> tuple[Tensor, float]:
        kernel = NTK(model, inputs, outputs="trace", progress=False).matrix()
        scale = kernel.diagonal().rsqrt()
        tick()
        return kernel * scale[:, None] * scale, centred_cosine(kernel, target)

    before, alignment_before = kernel_of(trained.before)
    after, alignment = kernel_of(trained.after)
    return Kernels(before, after, alignment_before, alignment, per_class)


def centred_cosine(kernel: Tensor, other: Tensor) -> float:
    """Cosine of two centred kernels."""
    a, b = (k - k.mean(0) - k.mean(1, keepdim=True) + k.mean() for k in (kernel, other))
    return ((a * b).sum() / a.norm() / b.norm()).item()


@dataclass(frozen=True)
class Run:
    """Training loss of one optimizer after every epoch, and the seconds it took to get there."""

    name: str
    rate: float
    losses: list[float]
    seconds: list[float]


def race(data: Dataset, width: int, epochs: int, batch: int, tick: Tick) -> list[Run]:
    """Momentum SGD, EKFAC and EKFAC-ra from the same start, each with the best of its learning rates."""
    best: list[Run] = []
    for name, rates in RATES.items():
        runs = []
        for rate in rates:
            runs.append(_one_run(name, rate, data, width, epochs, batch))
            tick()
        best.append(min(runs, key=lambda run: run.losses[-1] if run.losses[-1] == run.losses[-1] else float("inf")))
    return best


def _one_run(name: str, rate: float, data: Dataset, width: int, epochs: int, batch: int) -> Run:
    model = small_cnn(width)
    batches = Minibatches(data, batch, 1)
    optimizer: torch.optim.Optimizer
    if name == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    else:
        options: dict[str, Any] = {"preconditioner": name.lower(), "damping": DAMPING, "period": 10}
        optimizer = NaturalSGD(model, lr=rate, momentum=0.9, **options)
    run = Run(name, rate, [], [])

    @torch.no_grad()
    def record(training: Training) -> None:
        run.losses.append(cross_entropy(model, tuple(data)).item())
        run.seconds.append(training.seconds)

    callbacks = [OnPeriod(batches.per_epoch, record)]
    train(model, batches, cross_entropy, optimizer, epochs * batches.per_epoch, callbacks=callbacks)
    return run
