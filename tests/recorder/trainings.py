"""Small trainings to record: networks with all that a careless look would disturb."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.recorder import TangentRecorder

STEADY: dict[str, Any] = {"max_overhead": math.inf, "verbose": False}
"""No limit of time: what is recorded does not depend on the machine."""
Batch = tuple[Tensor, Tensor]


def digits_like(count: int = 60, seed: int = 0, classes: int = 3) -> Batch:
    """Images 1 x 6 x 6 of a few classes that can be learned."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    centres = torch.randn(classes, 1, 6, 6, generator=torch.Generator().manual_seed(99))
    return centres[labels] + 0.5 * torch.randn(count, 1, 6, 6, generator=generator), labels


def convolutional(seed: int = 0) -> nn.Sequential:
    """Batch norm, dropout, an in-place ReLU, one frozen layer and one module in eval mode of its own."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 5, 3),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20, 3),
    )
    net[3].bias.requires_grad_(False)
    return net


def dense(seed: int = 0, classes: int = 3) -> nn.Sequential:
    """A float64 network without any state."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, classes)).double()


def probes(count: int = 24) -> dict[str, Batch]:
    return {"train": digits_like(count, 1), "test": digits_like(count, 2)}


def train(
    model: nn.Module,
    steps: int,
    recorder: TangentRecorder | None = None,
    *,
    begin: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    lr: float = 0.1,
) -> torch.optim.Optimizer:
    """Updates begin + 1 ... steps, with momentum; batches by numpy's, Python's and torch's global random numbers."""
    x, y = digits_like(60, 0)
    x = x.to(next(model.parameters()).dtype)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(begin, steps):
        chosen = torch.randint(0, 60, (16,))
        value = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if recorder is not None:
            recorder.step(loss=value)
    return optimizer
