"""Figures 5.2 (bottom), C.2, C.3 and C.6 (left): noisy labels, learnt lazily and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from tangentlab.experiments import Chapter, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments.lazy import _race_figures as figures
from tangentlab.experiments.lazy._race import METRICS, Array, at_levels, begun, column, levels_of
from tangentlab.experiments.lazy._setting import CLEAN, FULL, NOISY, SHORT, TEST, TwoAlphas


def measure_metrics(lab: Lab, prefix: str, rich: list[Row], lazy: list[Row]) -> None:
    """Decide the claims on linearity."""
    lab.measure(f"{prefix}-lazy-metrics", min(float(column(lazy, key).min()) for key in METRICS))
    lab.measure(f"{prefix}-rich-metrics", max(float(column(rich, key)[-1]) for key in METRICS))


@experiment
class LazyLabelNoise(TwoAlphas):
    """Losses on clean, noisy and test examples at equal clean loss, with linearity metrics."""

    name = "lazy-label-noise"
    title = "Feature learning postpones the noise"
    question = (
        "15 % of the training labels are wrong. A network learns the clean examples first and memorizes the noisy ones "
        "later. Does a linearized network, too? Trainings with alpha = 1 (the network) and alpha = 100 (nearly linear) start "
        "from the same weights and see the same minibatches; the loss on noisy examples (with their wrong labels) and on "
        "the test set are compared at equal loss on the clean examples."
    )
    chapter = Chapter.LAZY
    place = "§5.3.2, figures 5.2 (bottom), C.2 and C.6 (left)"
    prefix: ClassVar[str] = "5.2-noise"
    claims = claims_of("lazy-label-noise")
    scales = {"smoke": SHORT, "paper": FULL}
    seeds = {"desk": 3, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 40, "paper": 100_000}
    notes = {
        "desk": "ResNet18 with 16 to 128 channels without normalization on 2,500 CIFAR-10 images of 16 x 16 pixels; the seeds "
        "(start and order of minibatches) are those of figure C.2. Training ends at a loss of 0.05 on clean examples, and with "
        "alpha = 100 after 5 times as many updates at the latest.",
        "paper": "the paper gives neither image size nor augmentation (none here) nor the length of training.",
    }

    noise: float = 0.15

    def run(self, lab: Lab) -> None:
        """Both trainings, then the claims."""
        runs = self.both(lab, self.noisy_race(lab, self.noise))
        if lab.max_steps is None and not self.stuck(lab, runs, CLEAN):
            self._judge(lab, *runs)

    def _judge(self, lab: Lab, rich: list[Row], lazy: list[Row]) -> None:
        levels = levels_of([rich, lazy], CLEAN)
        lab.log("levels", first=float(levels[0]), last=float(levels[-1]))

        def gap(key: str) -> float:
            pair: list[Array] = [at_levels(rows, CLEAN, key, levels) for rows in (rich, lazy)]
            return float(np.mean(pair[0] - pair[1]))

        lab.measure(f"{self.prefix}-noisy-loss", gap(NOISY))
        lab.measure(f"{self.prefix}-noisy-accuracy", gap("accuracy train noisy"))
        measure_metrics(lab, self.prefix, rich, lazy)
        rich, lazy = (begun(rows, CLEAN) for rows in (rich, lazy))
        peaks = [int(column(rows, NOISY).argmax()) for rows in (rich, lazy)]
        rises = [float(column(rows, NOISY).max() - rows[0][NOISY]) for rows in (rich, lazy)]
        lab.measure(f"{self.prefix}-rise", min(rises))
        if peaks[1] == len(lazy) - 1:
            lab.not_tested(f"{self.prefix}-memorization", "the nearly linear training did not come to memorization")
        elif 0 in peaks:
            lab.not_tested(
                f"{self.prefix}-memorization", "the loss on noisy examples never rose in one of the trainings"
            )
        else:
            lab.measure(f"{self.prefix}-memorization", lazy[peaks[1]][CLEAN] - rich[peaks[0]][CLEAN])
        losses, rights = ([column(rows, key) for rows in (rich, lazy)] for key in (TEST, "accuracy test"))
        if int(losses[1].argmin()) == len(lazy) - 1:
            for kind in ("test-loss", "test-accuracy"):
                lab.not_tested(
                    f"{self.prefix}-{kind}", "the nearly linear training was still getting better at its end"
                )
        else:
            lab.measure(f"{self.prefix}-test-loss", float(losses[1].min() - losses[0].min()))
            lab.measure(f"{self.prefix}-test-accuracy", float(rights[0].max() - rights[1].max()))

    def draw(self, results: Results) -> Iterator[Picture]:
        """The losses and the accuracies over the clean loss, and the metrics."""
        runs = [f"alpha {alpha:g}" for alpha in self.alphas]
        lines = {"noisy": "noisy training examples", "test": "test examples"}
        keys = {"noisy": "train noisy", "test": "test"}
        for kind, unit in (("loss", "loss [nats]"), ("accuracy", "accuracy")):
            figure, ((left, right),) = figures.two_panels()
            for color, key in zip(figures.COLORS, keys, strict=False):
                figures.draw_runs(left, results, runs, CLEAN, f"{kind} {keys[key]}", lines[key], color)
            figures.finish(left, "loss on clean training examples [nats]", unit, "at equal progress")
            figures.draw_metrics(right, results, runs, CLEAN, "loss on clean training examples [nats]")
            yield Picture(
                "noise" if kind == "loss" else "noise-accuracy",
                figure,
                f"Left: {kind} on noisy training examples and on test examples over the loss on clean training examples, which "
                "falls to the right. Solid: alpha = 1; dashed: alpha = 100. Right: the three linearity metrics. Mean over "
                f"seeds, all seeds as a band; {figures.DOTS}.",
            )


@experiment
class LazyLabelNoiseVGG(LazyLabelNoise):
    """The same with VGG11."""

    name = "lazy-label-noise-vgg"
    title = "Feature learning postpones the noise: VGG11"
    place = "C.6, figure C.3"
    prefix: ClassVar[str] = "C.3-noise"
    claims = claims_of("lazy-label-noise-vgg")
    notes = {
        "desk": "VGG11 with 16 to 128 channels without normalization on 2,500 CIFAR-10 images of 16 x 16 pixels. Its initial "
        "outputs are large: trainings are compared from a loss of 2.42 on, 1.05 times that of equal probabilities.",
        "paper": LazyLabelNoise.notes["paper"],
    }

    network: Literal["resnet18", "vgg11"] = "vgg11"
