"""The classifier of digits by which generated and reconstructed images are judged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset
from tangentlab.experiments import Lab, Minibatches, train
from tangentlab.experiments._images import cross_entropy, loss_and_accuracy
from tangentlab.models import LeNet5

STEPS = 1_500


def in_unit_range(data: Dataset, pixels: int = 28) -> Tensor:
    """Images `(n, 1, pixels, pixels)` with values in [-1, 1]; smaller ones are padded with the lowest value on all sides."""
    images = data.inputs - data.inputs.min()
    images = 2 * images / images.max() - 1
    missing = pixels - images.shape[-1]
    before, after = missing // 2, missing - missing // 2
    return nn.functional.pad(images, (before, after, before, after), value=-1.0)


def digit_classifier(lab: Lab, data: Dataset, test: Dataset, steps: int = STEPS) -> tuple[nn.Module, float]:
    """LeNet5 trained on all images in [-1, 1], in evaluation mode, and its accuracy on the test images."""
    inputs = [Dataset(in_unit_range(part), part.targets, part.name) for part in (data, test)]

    def fit() -> dict[str, Any]:
        with lab.seeded("classifier"):
            network = LeNet5(1, 28, 10, activation="relu")
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
        batches = Minibatches(inputs[0], min(128, len(data)), lab.seed)
        train(network, batches, cross_entropy, optimizer, steps, lab=lab, name="classifier")
        return {"weights": network.state_dict(), "accuracy": loss_and_accuracy(network.eval(), inputs[1])[1]}

    found = lab.stage("classifier", fit)
    network = LeNet5(1, 28, 10, activation="relu")
    network.load_state_dict(found["weights"])
    return network.eval(), found["accuracy"]


@torch.no_grad()
def predictions(classifier: nn.Module, images: Tensor) -> Tensor:
    """The class of every image, `(n,)`."""
    return torch.cat([classifier(part).argmax(1) for part in images.split(1000)])
