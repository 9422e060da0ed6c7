"""The setting of figures 3.3 to 3.7: a residual network that learns images, in place of ResNet50 on TinyImageNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tangentlab.data import Dataset
from tangentlab.experiments import Experiment, Lab
from tangentlab.models import ResNet

SMALL: dict[str, Any] = {"data": "digits", "pixels": 8, "images": 400, "depths": (1, 1), "base": 4, "batch": 50}
"""What it is at smoke scale."""
FULL: dict[str, Any] = {
    "data": "tiny-imagenet", "pixels": 64, "images": 100_000, "depths": (3, 4, 6, 3), "bottleneck": True, "base": 64,
    "stem": "imagenet", "batch": 128, "updates": 39_000,
}  # fmt: skip
"""What it is at paper scale."""


@dataclass(frozen=True)
class ResidualSetting(Experiment):
    """An experiment that looks at a residual network along its training."""

    data: Literal["digits", "cifar10", "tiny-imagenet"] = "cifar10"
    pixels: int = 16
    images: int = 10_000
    depths: tuple[int, ...] = (1, 1, 1)
    bottleneck: bool = False
    base: int = 16
    stem: Literal["cifar", "imagenet"] = "cifar"
    batch: int = 100
    updates: int = 400
    rate: float = 0.05
    momentum: float = 0.9

    def network(self, lab: Lab, data: Dataset, norm: bool) -> ResNet:
        """The seed's initial network for the images, with batch norm or without."""
        options: dict[str, Any] = {"base": self.base, "stem": self.stem, "norm": norm}
        with lab.seeded("model"):
            return ResNet(self.depths, data.classes or 10, self.bottleneck, in_channels=data.inputs.shape[1], **options)
