"""Figure 3.7: the tangent kernel of a two-class function learns to tell the classes apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from tangentlab import NTK
from tangentlab.data import Dataset
from tangentlab.experiments import (
    Chapter,
    Cost,
    Lab,
    Minibatches,
    Picture,
    Results,
    Training,
    experiment,
    geometric_steps,
)
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import (
    Row,
    evaluation,
    follow,
    image_data,
    loss_and_accuracy,
    some_of,
)
from tangentlab.experiments.metrics._residual import FULL, SMALL, ResidualSetting
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_outside, panels, step_axis
from tangentlab.models import ResNet

Array = NDArray[Any]
CLASS_COLORS = (PALETTE[0], PALETTE[1])
NORM_PASSES = 10
SHOWN = 4


def normalized(gram: Array) -> Array:
    """K_ij / sqrt(K_ii K_jj): the cosines between tangent features."""
    scale = 1 / np.sqrt(np.diagonal(gram))
    cosines: Array = gram * scale[:, None] * scale[None, :]
    return cosines


def class_gap(gram: Array, classes: Array) -> tuple[float, float]:
    """Mean normalized kernel within the classes (an example with itself left out), and between them."""
    cosines, same = normalized(gram), classes[:, None] == classes[None, :]
    return float(cosines[same & ~np.eye(len(gram), dtype=bool)].mean()), float(cosines[~same].mean())


def principal_components(gram: Array, count: int = 2) -> Array:
    """Kernel PCA: the examples along the first principal components of the centred kernel, `(examples, count)`."""
    from sklearn.decomposition import KernelPCA

    components: Array = KernelPCA(count, kernel="precomputed", eigen_solver="dense").fit_transform(gram)
    return components


def separability(points: Array, classes: Array) -> float:
    """Share of `points` on the right side of the best line that a linear classifier finds for these points."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    line = make_pipeline(StandardScaler(), LogisticRegression(C=100, max_iter=2000))
    return float(line.fit(points, classes).score(points, classes))


def alignment(gram: Array, classes: Array) -> float:
    """Cosine of the centred kernel and the centred kernel y y^T of the labels, between 0 and 1."""

    def centred(matrix: Array) -> Array:
        moved: Array = matrix - matrix.mean(0, keepdims=True) - matrix.mean(1, keepdims=True) + matrix.mean()
        return moved

    signs = np.where(classes == classes[0], 1.0, -1.0)
    kernel, labels = centred(gram), centred(np.outer(signs, signs))
    return float((kernel * labels).sum() / np.linalg.norm(kernel) / np.linalg.norm(labels))


@experiment
class NTKEvolution(ResidualSetting):
    """The Gram matrix of f_c2 - f_c1 on validation examples of two classes, through training, and its kernel PCA."""

    name = "ntk-evolution"
    title = "The tangent kernel adapts to the task"
    question = (
        "To first order a network is a linear model over its gradients, and the tangent kernel says which examples "
        "these gradients take to be alike. Does it stay what the random initialization made it, or does training turn "
        "it towards the task?\n\nA residual network learns all classes of a data set. Along the way the kernel of the "
        "scalar function f₂ − f₁, which separates two of the classes, is computed on 50 held-out examples of each: as "
        "a matrix, with every row and column divided by the root of its diagonal, and as a map of the examples along "
        "its first two principal components."
    )
    chapter = Chapter.METRICS
    place = "§3.4.2, figure 3.7"
    claims = claims_of("ntk-evolution")
    scales = {
        "smoke": {**SMALL, "updates": 12, "per_class": 10, "ratio": 4.0, "classes": (3, 8)},
        "paper": {**FULL, "rate": 0.1},
    }
    seeds = {"smoke": 1, "desk": 3, "paper": 1}
    minutes = {"smoke": 0.1, "desk": 6, "paper": 5_000}
    dropped = ("others/*",)
    notes = {
        "desk": "a residual network of 6 blocks with 16 to 64 channels (175,258 parameters) on CIFAR-10 at 16 x 16 "
        "pixels stands for ResNet50 on TinyImageNet; the two classes are automobile and horse.",
        "paper": "the paper gives neither the optimizer nor the training points nor the two classes it shows.",
    }

    images: int = 20_000
    depths: tuple[int, ...] = (2, 2, 2)
    norm: bool = True
    updates: int = 500
    classes: tuple[int, int] = (1, 7)
    per_class: int = 50
    ratio: float = 2.0

    def points(self) -> list[int]:
        """Steps at which the kernel is computed: dense early, where it moves fast."""
        return geometric_steps(self.updates, 5.0, self.ratio)

    def shown(self) -> list[int]:
        """Four of them, whose kernels the figure shows."""
        points = self.points()
        return sorted({points[round(place)] for place in np.linspace(0, len(points) - 1, SHOWN)})

    def cost(self) -> Cost:
        """One step is one update."""
        return Cost(self.updates, 0.15, 800)

    def run(self, lab: Lab) -> None:
        """Train on all classes; compute the kernel of two of them at every point."""
        data, test = image_data(lab, self.data, self.pixels, self.images)
        model = self.network(lab, data, self.norm).train()
        batches = Minibatches(data, min(self.batch, len(data)), lab.seed)
        inputs, classes = self._examples(test)
        shown = self.shown()

        def measured(training: Training) -> Row:
            with evaluation(model, batches, lab.capped(NORM_PASSES)):
                loss, accuracy = loss_and_accuracy(model, some_of(test, 1000))
                gram = self._gram(model, inputs)
            if training.step in shown:
                lab.save_array(f"gram-{training.step}", gram)
            return {"loss": loss, "accuracy": accuracy, **self._numbers(gram, classes)}

        lab.save_array("classes", classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
        rows = follow(lab, "kernel", model, batches, optimizer, self.updates, self.points(), measured)
        start, end = rows[0], rows[-1]
        lab.measure("3.7-gap", (end["intra"] - end["inter"]) - (start["intra"] - start["inter"]))
        lab.measure("3.7-separability", end["separability"] - start["separability"])
        lab.measure("3.7-mixed", start["separability"])
        lab.measure("3.7-separated", end["separability"])
        lab.measure("3.7-alignment", end["alignment"] - start["alignment"])

    def _examples(self, test: Dataset) -> tuple[Tensor, Array]:
        """The first `per_class` test images of the one class, then of the other, and 0 and 1 as their classes."""
        rows = [(test.targets == label).nonzero().squeeze(1)[: self.per_class] for label in self.classes]
        classes = np.repeat([0, 1], [len(found) for found in rows])
        return test.inputs[torch.cat(rows)], classes

    def _gram(self, model: ResNet, inputs: Tensor) -> Array:
        """Kernel of f_c2 - f_c1, (examples, examples)."""
        first, second = self.classes
        kernel = NTK(model, inputs, function=lambda out, batch: out[:, second] - out[:, first], progress=False)
        gram: Array = kernel.matrix().double().numpy()
        return gram

    @staticmethod
    def _numbers(gram: Array, classes: Array) -> dict[str, float]:
        intra, inter = class_gap(gram, classes)
        found = separability(principal_components(gram), classes)
        return {"intra": intra, "inter": inter, "separability": found, "alignment": alignment(gram, classes)}

    def draw(self, results: Results) -> Iterator[Picture]:
        """Figure 3.7, and the numbers along the training."""
        yield _figure(results)
        yield _curves(results)


def _figure(results: Results) -> Picture:
    """Gram matrices above, principal components below, at four points of the first seed's training."""
    steps = results.table("kernel", seed=results.seeds[0]).distinct("step")
    shown = [step for step in results.experiment.shown() if step in steps]  # type: ignore[attr-defined]
    classes = results.array("classes")
    figure, axes = panels(len(shown), 2, width=2.55, height=2.5)
    grams = {step: results.array(f"gram-{step}") for step in shown}
    pairs = np.concatenate([normalized(gram)[~np.eye(len(gram), dtype=bool)] for gram in grams.values()])
    low, high = np.quantile(pairs, (0.005, 0.995))
    for column, (step, gram) in enumerate(grams.items()):
        image = axes[0, column].imshow(normalized(gram), vmin=low, vmax=high, interpolation="nearest")
        _name_blocks(axes[0, column], classes, first=column == 0)
        axes[0, column].set_title(f"{step:,} updates")
        _scatter(axes[1, column], principal_components(gram), classes)
        label(axes[1, column], "1st principal component", "2nd principal component" if column == 0 else "")
    figure.colorbar(image, ax=axes[0, :], label="normalized kernel", shrink=0.9, pad=0.01, extend="both")
    legend_outside(figure, axes[1, 0])
    return Picture(
        "figure-3.7",
        figure,
        "Top: the tangent kernel of f₂ − f₁ on held-out examples of two classes at points of the training, every row "
        "and column divided by the root of its diagonal. Bottom: the same examples along the first two principal "
        "components of the kernel. One seed.",
    )


def _curves(results: Results) -> Picture:
    figure, ((left, middle, right),) = panels(3)
    for key, name, color in (("intra", "same class", PALETTE[0]), ("inter", "two classes", PALETTE[1])):
        band(left, results.curves("kernel", "step", key), name, color=color, marker="o", markersize=3)
    band(middle, results.curves("kernel", "step", "separability"), color=PALETTE[2], marker="o", markersize=3)
    band(right, results.curves("kernel", "step", "alignment"), color=PALETTE[3], marker="o", markersize=3)
    for axes in (left, middle, right):
        step_axis(axes, results.experiment.updates)  # type: ignore[attr-defined]
    middle.axhline(0.5, color=GRAY, linewidth=1, linestyle="--")
    label(left, "updates", "mean normalized kernel", "pairs of examples")
    label(middle, "updates", "accuracy of the best line", "two principal components")
    label(right, "updates", "cosine with the label kernel", "alignment")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return Picture(
        "through-training",
        figure,
        "Left: mean normalized kernel over pairs of examples of one class and of two. Middle: share of the examples on "
        "their side of the best line through the first two principal components (dashed: chance). Right: cosine of the "
        "centred kernel and the kernel of the labels. Mean over seeds, all seeds as a band.",
    )


def _name_blocks(axes: Axes, classes: Array, first: bool) -> None:
    """Rows and columns belong to class 1, then to class 2."""
    half = int((classes == 0).sum())
    middles = ((half - 1) / 2, (half + len(classes) - 1) / 2)
    axes.set_xticks(middles, ["class 1", "class 2"])
    axes.set_yticks(middles, ["class 1", "class 2"] if first else ["", ""], rotation=90, va="center")
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    label(axes, "examples", "examples" if first else "")


def _scatter(axes: Axes, points: Array, classes: Array) -> None:
    scaled = points / np.abs(points).max(axis=0)
    for number, (color, marker) in enumerate(zip(CLASS_COLORS, "os", strict=True)):
        chosen = scaled[classes == number]
        axes.plot(*chosen.T, marker, markersize=3.5, alpha=0.75, color=color, label=f"class {number + 1}")
    axes.set(xticks=[], yticks=[], xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
