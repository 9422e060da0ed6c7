"""Table 1: how much of the labels lies in the leading eigenfunctions of the kernel, before and after training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from tangentlab.data import Dataset
from tangentlab.experiments import (
    Chapter,
    Cost,
    Experiment,
    Lab,
    Minibatches,
    Picture,
    Results,
    Training,
    experiment,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Points, Row, batched, evaluation, for_trial, image_data
from tangentlab.experiments._statistics import rank_correlation
from tangentlab.experiments.linearized._recipe import (
    NAMES,
    PLACE,
    Recipe,
    binary_accuracy,
    fresh,
    train_task,
    two_classes,
)
from tangentlab.figures.style import GRAY, PALETTE, band, label, panels
from tangentlab.linearized import chance_concentration, eigenfunctions

PUBLISHED = {
    "mlp": {"start": 0.260, "end": 0.636, "accuracy": 0.676},
    "lenet": {"start": 0.258, "end": 0.830, "accuracy": 0.750},
    "resnet18": {"start": 0.227, "end": 0.967, "accuracy": 0.814},
}
NORM_PASSES = 20
TABLE = f"{PLACE}, E.2, table 1"


@experiment
class EnergyConcentration(Experiment):
    """|Phi y| / |y| of CIFAR2 labels at the start and at the end of training, and along it."""

    name = "energy-concentration"
    title = "Training turns the kernel towards the labels"
    question = (
        "The labels of a task, as a vector over the training images, have some part in the 50 leading eigenvectors of the "
        "tangent kernel: at initialization little more than chance, if the kernel knows nothing of the task. What does "
        "training do to it?\n\nThe task is CIFAR2 (five classes against five). Random labels would have the share "
        "sqrt(k/n), which is drawn as a line."
    )
    chapter = Chapter.LINEARIZED
    place = TABLE
    claims = claims_of("energy-concentration")
    scales = {
        "smoke": {
            "nets": ("mlp", "lenet"),
            "data": "digits",
            "images": 300,
            "resnet_images": 100,
            "along_images": 100,
            "k": 50,
            "epochs": 4,
            "points": (0.25, 0.5),
            "pixels": 8,
            "resnet_pixels": 8,
            "batch": 50,
        },
        "paper": {
            "epochs": 200,
            "resnet_epochs": 200,
            "resnet_images": 12_000,
            "along_images": 12_000,
            "resnet_pixels": 32,
            "base": 64,
            "zero_init": True,
        },
    }
    seeds = {"smoke": 1, "desk": 1, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 14, "paper": 4_000}
    notes = {
        "desk": "60 epochs (ResNet18: 40) in place of 200; ResNet18 has 16 channels in its first stage and sees 4,000 images "
        "of 16 x 16 pixels, with k scaled to 17 so that chance stays at 6.5 %. One seed. Batch norms have fresh averages over "
        "20 batches when a kernel is computed: those of training lag behind the weights.",
        "paper": "the paper does not say on how many images it trained; here on those of the kernel, or on more: --set "
        "train_images=50000.",
    }

    nets: tuple[str, ...] = ("mlp", "lenet", "resnet18")
    data: str = "cifar10"
    pixels: int = 32
    resnet_pixels: int = 16
    images: int = 12_000
    resnet_images: int = 4_000
    along_images: int = 4_000
    train_images: int = 0
    k: int = 50
    base: int = 16
    zero_init: bool = False
    epochs: int = 60
    resnet_epochs: int = 40
    batch: int = 128
    rate: float = 0.05
    points: tuple[float, ...] = (0.02, 0.07, 0.2, 0.5)

    def recipe(self, kind: str) -> Recipe:
        """Epochs per network."""
        return Recipe(self.resnet_epochs if kind == "resnet18" else self.epochs, self.batch, self.rate)

    def examples(self, kind: str) -> int:
        """Images of the kernel, per network."""
        return self.resnet_images if kind == "resnet18" else self.images

    def trained(self, kind: str) -> int:
        """Images of the training: those of the kernel and, where `train_images` asks for more, others."""
        return max(self.examples(kind), self.train_images)

    def scaled(self, examples: int) -> int:
        """k for fewer images, with the same chance level."""
        return max(1, round(self.k * examples / self.images))

    def cost(self) -> Cost:
        """One step per update of every network."""
        return Cost(sum(self.recipe(kind).steps(self.trained(kind)) for kind in self.nets), 0.05, 4000)

    def run(self, lab: Lab) -> None:
        """Kernel, training, kernel, for every network."""
        found = {kind: self._network(lab, kind) for kind in self.nets}
        chances = {kind: self._chance(self.examples(kind)) for kind in self.nets}
        ends = [found[kind]["end"] for kind in self.nets]
        lab.measure("S3-E3-growth", min(one["end"] / one["start"] for one in found.values()))
        lab.measure("S3-E3-order", min(after - before for before, after in zip(ends, ends[1:], strict=False)))
        lab.measure("S3-E3-accuracy", rank_correlation(ends, [one["accuracy"] for one in found.values()]))
        lab.measure("S3-E3-start", min(found[kind]["start"] / chances[kind] for kind in self.nets))
        lab.measure("S3-E4-along", found["lenet"]["along"])

    def _chance(self, examples: int) -> float:
        return chance_concentration(self.scaled(examples), examples)

    def _network(self, lab: Lab, kind: str) -> dict[str, float]:
        """Concentrations at both ends, test accuracy, and rank correlation along the training (LeNet)."""
        side = self.resnet_pixels if kind == "resnet18" else self.pixels
        train, test = (
            two_classes(part) for part in image_data(lab, self.data, side, for_trial(lab, self.trained(kind)))
        )
        seen = for_trial(lab, self.examples(kind))
        test = test.first(for_trial(lab, len(test)))
        model = fresh(lab, kind, train, base=self.base, zero_init=self.zero_init)
        recipe = self.recipe(kind)
        batches = Minibatches(train, min(recipe.batch, len(train)), lab.seed)
        steps = lab.capped(recipe.steps(len(train)))

        def energy(examples: int) -> float:
            with evaluation(model, batches, lab.capped(NORM_PASSES)):
                return _concentration(model, train.first(examples), self.scaled(examples))

        def numbers(epoch: float, examples: int, value: float) -> Row:
            facts = {"concentration": value, "squared": value**2, "chance": self._chance(examples)}
            return {"net": kind, "epoch": epoch, "examples": examples, "k": self.scaled(examples), **facts}

        def record(training: Training) -> list[Row]:
            row = numbers(training.epoch, min(self.along_images, seen), energy(min(self.along_images, seen)))
            lab.log("along", **row)
            return [row]

        start = lab.stage(f"{kind} start", lambda: energy(seen))
        along = Points([round(share * steps) for share in (0.0, *self.points)], record)
        train_task(lab, model, train, recipe, kind, [along] if kind == "lenet" else [])
        end = lab.stage(f"{kind} end", lambda: energy(seen))
        accuracy = binary_accuracy(model, test)
        for when, epoch, value in (("start", 0.0, start), ("end", float(recipe.epochs), end)):
            row = numbers(epoch, seen, value)
            lab.log("table-1", when=when, accuracy=accuracy, published=PUBLISHED[kind][when], **row)
        lab.log("accuracy", net=kind, accuracy=accuracy, published=PUBLISHED[kind]["accuracy"])
        places, shares = ([row[key] for row in along.rows] for key in ("epoch", "concentration"))
        return {
            "start": start,
            "end": end,
            "accuracy": accuracy,
            "along": rank_correlation(places, shares) if places else 0.0,
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Table 1 as bars next to the published values, and LeNet's curve."""
        yield _table(results, list(self.nets))
        yield _along(results)


def _concentration(model: nn.Module, data: Dataset, k: int) -> float:
    signs: Tensor = torch.where(data.targets > 0, 1.0, -1.0)
    basis = eigenfunctions(model, batched(data.inputs, 250), k, method="gram", progress=False)
    return float(basis.energy_concentration(signs))


def _table(results: Results, nets: list[str]) -> Picture:
    figure, ((left, right),) = panels(2)
    for shift, when, color in ((-0.2, "start", PALETTE[5]), (0.2, "end", PALETTE[0])):
        for place, kind in enumerate(nets):
            rows = results.table("table-1", net=kind, when=when)
            mean = float(rows["concentration"].mean())
            left.bar(place + shift, mean, 0.36, color=color, label=f"{when}, here" if place == 0 else None)
            name = "published" if place == 0 and when == "end" else None
            left.plot(place + shift, rows["published"][0], "D", color=PALETTE[1], markersize=5, label=name)
            _written(left, f"{mean:.0%}", place + shift)
    chance = float(results.table("table-1")["chance"].mean())
    left.axhline(chance, color=GRAY, linestyle="--", linewidth=1, label="chance")
    for place, kind in enumerate(nets):
        rows = results.table("accuracy", net=kind)
        mean = float(rows["accuracy"].mean())
        right.bar(place, mean, 0.5, color=PALETTE[2], label="here" if place == 0 else None)
        right.plot(place, rows["published"][0], "D", color=PALETTE[1], label="published" if place == 0 else None)
        _written(right, f"{mean:.1%}", place)
    for axes in (left, right):
        axes.set_xticks(range(len(nets)), [NAMES[kind] for kind in nets])
        axes.set_ylim(0, 1.12)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, columnspacing=1.0)
    right.axhline(0.5, color=GRAY, linestyle="--", linewidth=1)
    label(left, "network", "energy concentration of the labels", "the kernel's leading eigenspace")
    label(right, "network", "test accuracy", "CIFAR2")
    return Picture(
        "table-1",
        figure,
        "Left: the norm of the labels' projection on the k leading eigenvectors of the tangent kernel of the training "
        "images, over the norm of the labels, before and after training; dashed: random labels. Right: test accuracy "
        "(dashed: chance). Diamonds: the published values, for 200 epochs and networks of full size.",
    )


def _written(axes: Axes, text: str, x: float) -> None:
    """A number at the foot of its bar, where no diamond covers it."""
    axes.annotate(text, (x, 0.01), ha="center", va="bottom", fontsize=8, color="white")


def _along(results: Results) -> Picture:
    figure, ((axes,),) = panels()
    band(axes, results.curves("along", "epoch", "concentration", net="lenet"), "LeNet", marker="o")
    axes.axhline(float(results.table("along")["chance"][0]), color=GRAY, linestyle="--", linewidth=1, label="chance")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    label(axes, "epoch", "energy concentration of the labels")
    return Picture(
        "along", figure, "Energy concentration of the labels along the training of LeNet, on some of its images."
    )
