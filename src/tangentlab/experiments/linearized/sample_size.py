"""Who wins, the network or its linearization, over the number of training images."""

from __future__ import annotations

from collections.abc import Iterator

from tangentlab.data import Dataset, stratified_subset
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import for_trial, image_pool
from tangentlab.experiments.linearized._recipe import (
    NAMES,
    PLACE,
    Recipe,
    binary_accuracy,
    eigenfunction_task,
    fresh,
    held_out,
    train_task,
    twins,
    two_classes,
)
from tangentlab.figures.style import PALETTE, band, label, legend_outside, panels

TASKS = ("eigenfunction", "CIFAR2")
MODELS = ("network", "linearized")


@experiment
class SampleSize(Experiment):
    """Accuracy of networks and linearizations on two tasks, from few to many training images."""

    name = "sample-size"
    title = "Network or linearization: it depends on the number of images"
    question = (
        "A linearized network can be better than the network, or worse. Is that a property of the network? Two tasks on the "
        "same images, an eigenfunction of the initial kernel and CIFAR2, are learnt from growing subsets by two networks "
        "and by their linearizations, with the same number of updates."
    )
    chapter = Chapter.LINEARIZED
    place = f"{PLACE}, E.1"
    claims = claims_of("sample-size")
    scales = {
        "smoke": {
            "data": "digits",
            "pixels": 8,
            "sizes": (50, 100),
            "valid": 50,
            "index": 4,
            "updates": 4,
            "batch": 25,
        },
        "paper": {
            "pixels": 32,
            "sizes": (500, 2_000, 10_000, 50_000),
            "valid": 10_000,
            "index": 100,
            "updates": 39_000,
        },
    }
    seeds = {"smoke": 1, "desk": 2, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 7, "paper": 5_000}
    notes = {
        "desk": "images of 16 x 16 pixels, 500 updates, eigenfunction 20 of the kernel of 5,000 images; subsets are stratified "
        "and contain each other."
    }

    nets: tuple[str, ...] = ("mlp", "lenet")
    data: str = "cifar10"
    pixels: int = 16
    sizes: tuple[int, ...] = (250, 1_000, 4_000)
    valid: int = 1_000
    index: int = 20
    updates: int = 500
    batch: int = 125
    rate: float = 0.05

    def recipe(self, size: int) -> Recipe:
        """As many epochs as give the same number of updates."""
        return Recipe(max(1, self.updates // (size // min(self.batch, size))), self.batch, self.rate)

    def cost(self) -> Cost:
        """One step per update."""
        each = sum(self.recipe(size).steps(size) for size in self.sizes)
        return Cost(len(self.nets) * len(TASKS) * len(MODELS) * each, 0.03, 2000)

    def run(self, lab: Lab) -> None:
        """All pairs of tasks, networks and sizes."""
        data = image_pool(lab, self.data, self.pixels, for_trial(lab, max(self.sizes) + self.valid, 1000))
        gaps: dict[tuple[str, str, int], float] = {}
        for kind in self.nets:
            for task, labelled in self._tasks(lab, kind, data).items():
                for size in self.sizes:
                    gaps[task, kind, size] = self._gap(lab, kind, task, labelled, size)
        ranges, between = [], []
        for task in TASKS:
            lines = [[gaps[task, kind, size] for size in self.sizes] for kind in self.nets]
            ranges += [max(line) - min(line) for line in lines]
            between += [max(column) - min(column) for column in zip(*lines, strict=True)]
        means = [sum(gap for key, gap in gaps.items() if key[0] == task) / (len(gaps) / 2) for task in TASKS]
        lab.measure("S3-E9-size", max(ranges))
        lab.measure("S3-E9-task", means[0] - means[1])
        lab.measure("S3-E9-network", max(between))

    def _tasks(self, lab: Lab, kind: str, data: Dataset) -> dict[str, Dataset]:
        model = fresh(lab, kind, data).eval()
        own = eigenfunction_task(lab, f"labels {kind}", model, data, self.index)
        return {"eigenfunction": own, "CIFAR2": two_classes(data)}

    def _gap(self, lab: Lab, kind: str, task: str, data: Dataset, size: int) -> float:
        """Validation accuracy, linearized minus network."""
        known, valid = held_out(lab, data, self.valid)
        train = stratified_subset(known, min(size, len(known)), lab.generator("subset", task))
        found = {}
        for name, model in twins(lambda: fresh(lab, kind, data)):
            train_task(lab, model, train, self.recipe(len(train)), f"{kind} {name}, {task}, {size}")
            found[name] = binary_accuracy(model, valid)
            lab.log("accuracy", net=kind, task=task, model=name, size=len(train), accuracy=found[name])
        return found["linearized"] - found["network"]

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracy over size, one panel per task."""
        figure, axes = panels(len(TASKS))
        for panel, task in zip(axes[0], TASKS, strict=True):
            for place, kind in enumerate(self.nets):
                for model, style in zip(MODELS, ("-", "--"), strict=True):
                    curves = results.curves("accuracy", "size", "accuracy", net=kind, task=task, model=model)
                    name = f"{NAMES[kind]}, {model}"
                    band(panel, curves, name, color=PALETTE[place], linestyle=style, marker="o")
            panel.set_xscale("log")
            panel.set_xticks(self.sizes, [f"{size:,}" for size in self.sizes])
            panel.minorticks_off()
            label(panel, "training images", "validation accuracy", task)
        legend_outside(figure, axes[0, 0], 4, handlelength=3.2)
        yield Picture(
            "accuracy",
            figure,
            "Validation accuracy of networks and of their linearizations over the number of training images, at an equal "
            "number of updates. Mean over seeds, all seeds as a band.",
        )
