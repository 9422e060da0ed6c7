"""Figure 5.3 on its own images, CelebA and Waterbirds, which the user brings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from tangentlab.data import Dataset, group_images
from tangentlab.engine.memory import require_memory
from tangentlab.errors import DataFileError
from tangentlab.experiments import Chapter, Cost, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row, for_trial
from tangentlab.experiments.lazy._cue_race import (
    CueSetting,
    Task,
    balanced_rows,
    draw_start,
    judge_early,
    judge_ends,
    spread,
)
from tangentlab.experiments.lazy._race import Watched
from tangentlab.figures.style import panels
from tangentlab.models import ResNet, ResNet18, imagenet_resnet18

TRIAL_IMAGES, TRIAL_GROUP, NOISE_IMAGES = 24, 2, 200
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's channels."""
SMOKE = {
    "source": "noise",
    "images": 60,
    "pixels": 16,
    "per_group": 4,
    "updates": 4,
    "slow": 1,
    "batch": 20,
    "base": 2,
    "records": 3,
}


class FromBytes(nn.Module):
    """Bytes `(n, 3, height, width)` as floats with the channels standardized as for ImageNet's networks."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, values in zip(("mean", "deviation"), IMAGENET, strict=True):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """`(x / 255 - mean) / deviation`."""
        return (x / 255 - self.mean) / self.deviation


@dataclass(frozen=True)
class SpuriousFiles(CueSetting):
    """Accuracies with and without the cue, for alpha = 0.5, 1 and 100, on images from files."""

    chapter = Chapter.LAZY
    scales = {"smoke": SMOKE, "paper": {"images": 20_000, "pixels": 224, "updates": 10_000, "records": 100}}
    seeds = {"smoke": 1, "desk": 1, "paper": 3}
    files: ClassVar[str]
    start: ClassVar[str]

    source: Literal["files", "noise"] = "files"
    pixels: int = 64
    base: int = 64

    def needed_bytes(self) -> int:
        """Of all images, as bytes: the training images and two balanced sets."""
        return (self.images + 2 * 4 * self.per_group) * 3 * self.pixels**2

    def cost(self) -> Cost:
        """One step per update."""
        seconds = 20.0 * (self.pixels / 224) ** 2
        return Cost(sum(self.lengths), seconds, 2_000 + self.needed_bytes() / 1e6)

    def run(self, lab: Lab) -> None:
        """One training per alpha from the same start."""
        if lab.max_steps is None:
            what = f"{self.files}, {self.images:,} images of {self.pixels} x {self.pixels} pixels,"
            require_memory(self.needed_bytes(), what, "Use fewer or smaller images: --set images=..., --set pixels=...")
        model = nn.Sequential(FromBytes(), self.network(lab)).eval()
        low, middle, high = self.follow(lab, self._task(lab), 50, self.start, model, self.rate)
        judge_early(lab, f"5.3-{self.files}", low, middle, high)
        self.judge_ends(lab, low, middle, high)

    def judge_ends(self, lab: Lab, low: list[Row], middle: list[Row], high: list[Row]) -> None:
        """The claim on the balanced accuracies at the end."""
        judge_ends(lab, f"5.3-{self.files}-end", spread, low, middle, high)

    @abstractmethod
    def network(self, lab: Lab) -> nn.Module:
        """The network at its start, two outputs."""

    def _task(self, lab: Lab) -> Task:
        """Some of the training images, and balanced sets of these and of the test images."""
        generator = lab.generator("task")
        per_group = for_trial(lab, self.per_group, TRIAL_GROUP)
        watched: Watched = {}
        made = {}
        for split in ("train", "test"):
            data, cue = self._images(lab, split, generator, per_group)
            rows, groups = balanced_rows(data.targets, cue, per_group, generator)
            watched[split], made[split] = (data.take(rows), groups), data
        return made["train"], watched

    def _images(self, lab: Lab, split: str, generator: torch.Generator, per_group: int) -> tuple[Dataset, Tensor]:
        """Images and their cue; where not all are trained on, only those that will be watched are decoded."""
        try:
            found = group_images(self.files, split) if self.source == "files" else None
        except DataFileError:
            if lab.max_steps is None:
                raise
            found = None
        if found is None:
            return self._noise(lab, split, generator)
        if split == "train" and lab.max_steps is None:
            chosen = found.take(torch.randperm(len(found), generator=generator)[: self.images])
        else:
            chosen = found.take(balanced_rows(found.labels, found.cue, per_group, generator)[0])

        def track(files: Iterable[Path]) -> Iterator[Path]:
            for number, file in enumerate(files):
                lab.progress(f"images, {split}", number, len(chosen))
                yield file

        return lab.uses(chosen.decoded(self.pixels, track)), chosen.cue

    def _noise(self, lab: Lab, split: str, generator: torch.Generator) -> tuple[Dataset, Tensor]:
        """Noise of the right shape with a cue that agrees with nine labels of ten, marked as standing in."""
        count = for_trial(lab, min(self.images, NOISE_IMAGES), TRIAL_IMAGES)
        shape = (count, 3, self.pixels, self.pixels)
        inputs = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        labels = torch.arange(count) % 2
        cue = torch.where(torch.arange(count) % 20 < 2, 1 - labels, labels)
        note = f"noise stands in for {self.files}"
        return lab.uses(Dataset(inputs, labels, self.files, split, classes=2, note=note, stand_in=True)), cue

    def draw(self, results: Results) -> Iterator[Picture]:
        """One row of the figure."""
        figure, axes = panels(3, height=3.0)
        draw_start(axes[0], results, self.start, self.start, self.alphas)
        yield Picture(
            f"figure-5.3-{self.files}",
            figure,
            "Left: balanced test accuracy against accuracy on training images with the cue. Middle and right: accuracy on "
            "images on which the cue is wrong against accuracy on those on which it is right, for training and test "
            "images. One line per seed.",
        )


@experiment
class SpuriousCelebA(SpuriousFiles):
    """Blond or not, where women are blond more often."""

    name = "spurious-celeba"
    title = "Blond, or a woman? CelebA, learnt lazily and not"
    question = (
        "Photographs of faces: is the person blond? Of the women 24 % are, of the men 2 %, so that a network can learn the "
        "hair or the gender. Which one first, and does it depend on whether the network learns features?\n\nAccuracy on "
        "blond men and other women is compared at equal accuracy on blond women and other men. The images are the user's own."
    )
    place = "§5.3.3, figures 5.3 (top) and C.7"
    claims = claims_of("spurious-celeba")
    minutes = {"smoke": 0.2, "desk": 30, "paper": 50_000}
    notes = {
        "smoke": "noise in place of the images.",
        "desk": "2,000 images of 64 x 64 pixels; one seed.",
        "paper": "20,000 of the training images, squares of 178 pixels brought to 224; as many images per group as the "
        "smallest one has, 180 at most; the length of the trainings is a choice.",
    }
    files = "celeba"
    start = "random start, no norms"

    def network(self, lab: Lab) -> nn.Module:
        """ResNet18 without norms."""
        with lab.seeded("model"):
            return ResNet18(2, norm=False, stem="imagenet", base=self.base)


@experiment
class SpuriousWaterbirds(SpuriousFiles):
    """Water or land birds, where the background mostly tells."""

    name = "spurious-waterbirds"
    title = "The bird, or the water? Waterbirds, learnt lazily and not"
    question = (
        "Pictures of birds: does it live on the water? Behind 95 % of the training birds is the background that fits. Does a "
        "network that knows ImageNet learn the bird or the background first, and does it depend on whether it learns "
        "features?\n\nAccuracy on birds before the wrong background is compared at equal accuracy on the others. Images and "
        "ImageNet weights are the user's own."
    )
    place = "§5.3.3, figures 5.3 (bottom) and C.8"
    claims = claims_of("spurious-waterbirds")
    scales = {"smoke": SMOKE, "paper": {"images": 4_795, "pixels": 224, "updates": 5_000, "records": 100}}
    minutes = {"smoke": 0.2, "desk": 30, "paper": 25_000}
    notes = {
        "smoke": "noise in place of the images, and random weights.",
        "desk": "2,000 images of 64 x 64 pixels; one seed.",
        "paper": "as many images per group as the smallest one has, which are 56 of the training images; the length of the "
        "trainings is a choice.",
    }
    files = "waterbirds"
    start = "pretrained, frozen norms"

    rate: float = 0.001
    weights: str = ""

    def network(self, lab: Lab) -> nn.Module:
        """ResNet18 trained on ImageNet with a new last layer; its norms stay at their statistics."""
        with lab.seeded("model"):
            model = self._pretrained(lab)
            model.fc = nn.Linear(model.fc.in_features, 2)
        return model.eval()

    def _pretrained(self, lab: Lab) -> ResNet:
        """From the file `weights` or the data folder, whose width is ImageNet's and not `base`.

        Random weights of width `base` for noise, and in a trial without the file.
        """
        if self.source == "files":
            try:
                return imagenet_resnet18(self.weights or None)
            except DataFileError:
                if lab.max_steps is None:
                    raise
        return ResNet18(1000, stem="imagenet", base=self.base)

    def judge_ends(self, lab: Lab, low: list[Row], middle: list[Row], high: list[Row]) -> None:
        """One more claim."""
        super().judge_ends(lab, low, middle, high)
        judge_ends(lab, "5.3-waterbirds-advantage", sub, middle, high)
