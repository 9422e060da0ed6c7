"""What the experiments on lazy training of image classifiers share: data, network, and how a race is run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tangentlab.data import Dataset, label_noise
from tangentlab.experiments import Cost, Experiment, Lab
from tangentlab.experiments._images import Row, for_trial, image_data, some_of
from tangentlab.experiments.lazy._race import BEGUN, TRIAL_IMAGES, TRIAL_PROBE, ImageRace, Watched, begun, make_network
from tangentlab.linearized import Groups, noise_groups

SMALL: dict[str, Any] = {
    "data": "digits",
    "pixels": 8,
    "images": 120,
    "tests": 60,
    "base": 2,
    "batch": 40,
    "probe": 6,
    "ratio": 1.6,
}
"""What a race is at smoke scale."""
LARGE: dict[str, Any] = {"pixels": 32, "images": 50_000, "tests": 10_000, "base": 64, "probe": 100}
"""What a race is at paper scale."""
SHORT: dict[str, Any] = {**SMALL, "updates": 12, "longer": 2, "rate": 0.05}
FULL: dict[str, Any] = {**LARGE, "updates": 64_000, "stop": 0.0}
"""The same for two alphas."""
CLEAN, NOISY, TEST = "loss train clean", "loss train noisy", "loss test"


@dataclass(frozen=True)
class RaceSetting(Experiment):
    """An experiment whose trainings of one image classifier make an `ImageRace`."""

    data: Literal["digits", "cifar10"] = "cifar10"
    pixels: int = 16
    images: int = 2_500
    tests: int = 1_000
    network: Literal["resnet18", "vgg11"] = "resnet18"
    base: int = 16
    momentum: float = 0.9
    batch: int = 125
    stop: float = 0.05
    probe: int = 50
    ratio: float = 1.35

    def race(self, lab: Lab, train: Dataset, watched: Watched, progress: str) -> ImageRace:
        """The race from the seed's initial network."""
        with lab.seeded("model"):
            pixels, channels = train.inputs.shape[-1], train.inputs.shape[1]
            network = make_network(self.network, self.base, channels, train.classes or 10, pixels).eval()
        shared, probe = (train, watched, self.batch, self.momentum, 500), for_trial(lab, self.probe, TRIAL_PROBE)
        return ImageRace(*shared, network, progress, probe, self.ratio, self.stop)

    def noisy_race(self, lab: Lab, noise: float) -> ImageRace:
        """The race on a fraction of wrong labels, in which the loss on clean examples is progress."""
        train, test = image_data(lab, self.data, self.pixels, for_trial(lab, self.images, TRIAL_IMAGES))
        test = some_of(test, for_trial(lab, self.tests, TRIAL_IMAGES))
        train, mask = label_noise(train, noise, lab.generator("noise"))
        watched = {"train": (train, noise_groups(mask)), "test": (test, Groups({"all": torch.arange(len(test))}))}
        return self.race(lab, train, watched, CLEAN)


@dataclass(frozen=True)
class TwoAlphas(RaceSetting):
    """The network itself, at most `updates` long, against its nearly linear version, `longer` times as long."""

    alphas: tuple[float, float] = (1.0, 100.0)
    rate: float = 0.01
    updates: int = 1_500
    longer: int = 5

    def cost(self) -> Cost:
        """One step is one update; a training may end sooner, where its progress comes to `stop`."""
        return Cost(self.updates * (1 + self.longer), 0.12, 1_000)

    def both(self, lab: Lab, race: ImageRace) -> tuple[list[Row], list[Row]]:
        """Rows of the two trainings."""
        rich, lazy = self.alphas
        own = race.follow(lab, f"alpha {rich:g}", rich, self.rate, self.updates)
        taken = own[-1]["step"] if lab.max_steps is None else self.updates
        length = self.longer * max(1, taken)
        return own, race.follow(lab, f"alpha {lazy:g}", lazy, self.rate, length)

    def stuck(self, lab: Lab, runs: Iterable[list[Row]], progress: str) -> bool:
        """Whether a training learnt nothing, so that there is nothing to compare; no claim is tested then."""
        if all(begun(rows, progress) for rows in runs):
            return False
        for claim in self.claims:
            lab.not_tested(claim.id, f"a training never came to a loss of {BEGUN:.2f}")
        return True
