"""Two classes of digits as targets of +1 and -1, and what noise on the targets does to a training on them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset, only_classes, shuffled
from tangentlab.experiments import Lab
from tangentlab.experiments.spectral._waves import squared_error

CLASSES = (3, 8)


def two_digits(lab: Lab, name: str, count: int) -> Dataset:
    """At most `count` images of 3 and 8 in random order, flattened, with targets -1 and +1, `(n, 1)`."""
    data = shuffled(only_classes(lab.dataset(name), *CLASSES), lab.generator("images"))
    data = data.first(min(count, len(data)))
    return replace(data, inputs=data.inputs.flatten(1), targets=2 * data.targets.float()[:, None] - 1)


@torch.no_grad()
def error_on(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """The mean squared error as a number."""
    return float(squared_error(model, (inputs, targets)))
