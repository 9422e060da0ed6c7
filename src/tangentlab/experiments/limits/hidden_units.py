"""Test error over the number of hidden units, without any regularization."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import for_trial, image_data, some_of
from tangentlab.experiments.limits._fitting import TRIAL, Fitting, error
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_below, panels
from tangentlab.models import MLP


@experiment
class HiddenUnits(Experiment):
    """One hidden layer of growing width on MNIST, trained until the training error is 0."""

    name = "hidden-units"
    title = "More hidden units than needed do no harm"
    question = (
        "A network with one hidden layer is trained on MNIST without any regularization, until it makes no error on its "
        "training images. From some width on it can. Does it generalize worse when it is made larger still, as its number of "
        "parameters would suggest?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Srebro, Neyshabur Tomioka S ICLR'15"
    claims = claims_of("hidden-units")
    scales = {
        "smoke": {"data": "digits", "images": 100, "tests": 60, "widths": (4, 16), "batch": 20, "steps": 15},
        "paper": {"images": 60_000, "steps": 60_000},
    }
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 5, "paper": 1_500}
    notes = {
        "desk": "2,000 training images, a loss of .01 in place of convergence, 2,500 updates at most; the slides show a "
        "picture of Neyshabur et al. (2015) without numbers"
    }

    data: str = "mnist"
    images: int = 2_000
    tests: int = 5_000
    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    rate: float = 0.02
    momentum: float = 0.9
    batch: int = 100
    goal: float = 0.01
    steps: int = 2_500

    def cost(self) -> Cost:
        """At most; a network ends when it fits."""
        return Cost(len(self.widths) * self.steps, 0.005, 800)

    def run(self, lab: Lab) -> None:
        """One training per width."""
        train, test = image_data(lab, self.data, 28, for_trial(lab, self.images, TRIAL))
        test = some_of(test, for_trial(lab, self.tests, TRIAL))
        fitting = Fitting(self.batch, self.steps, self.goal)
        for width in self.widths:
            with lab.seeded("model", width):
                model = MLP((train.inputs[0].numel(), width, 10))
            start = [p.detach().clone() for p in model.parameters()]
            optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
            rows = fitting.train(
                lab, "training", model, train, optimizer, order=lab.seed, name=f"{width} units", width=width
            )
            moved = (
                sum(float((p - q).detach().square().sum()) for p, q in zip(model.parameters(), start, strict=True))
                ** 0.5
            )
            lab.log(
                "widths",
                width=width,
                steps=rows[-1]["step"],
                train=1 - rows[-1]["fitted"],
                test=error(model, test),
                norm=sum(float(p.detach().square().sum()) for p in model.parameters()) ** 0.5,
                moved=moved,
            )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """The first width that fits is that from which on the training error is 0."""
        rows = sorted(results.table("widths", seed=seed).rows, key=lambda row: row["width"])
        if len(rows) < len(self.widths):
            return cut_short(self.claims)
        fitting = [row for place, row in enumerate(rows) if all(later["train"] == 0 for later in rows[place:])]
        if len(fitting) < 2:
            return dict.fromkeys((claim.id for claim in self.claims), "fewer than two widths fit their training images")
        first, last = fitting[0], fitting[-1]
        return {
            "S4c-N-larger": first["test"] - last["test"],
            "S4c-N-best": last["test"] - min(row["test"] for row in rows),
            "S4c-N-span": last["width"] / first["width"],
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Errors over the width, and how far the weights went."""
        figure, ((left, right),) = panels(2)
        for name, words, color in (("train", "training error", PALETTE[1]), ("test", "test error", PALETTE[0])):
            band(left, results.curves("widths", "width", name), words, color=color, marker="o")
        label(left, "hidden units", "error", f"{self.images:,} training images")
        for name, words, color in (("norm", "at the end", PALETTE[2]), ("moved", "from the start", GRAY)):
            band(right, results.curves("widths", "width", name), words, color=color, marker="o")
        label(right, "hidden units", "Euclidean norm", "all weights together")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(self.widths[::2], [f"{width:,}" for width in self.widths[::2]])
            legend_below(axes)
        yield Picture(
            "errors",
            figure,
            "Left: error on training and on test images over the number of hidden units, at the end of a training without "
            "regularization. Right: the Euclidean norm of all weights at that end, and how far they went from their start. "
            "Mean over seeds, all seeds as a band.",
        )
