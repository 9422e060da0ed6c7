"""Monomials of degree k: gradient descent learns them while k stays small, whatever n, and not when k grows with n."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, label, legend_beside, panels
from tangentlab.limits import (
    Descent,
    Monomials,
    Population,
    UniformInputs,
    data_free_accuracy,
    junk_flow,
    relu_network,
)


@experiment
class MonomialDegrees(Experiment):
    """Noisy population gradient descent on monomials over degrees and n, next to the bound."""

    name = "monomial-degrees"
    title = "Gradient descent learns monomials of small degree"
    question = (
        "A product of k out of n signs is easy to say and easy to learn from samples. From population gradients "
        "with a little noise, which ones does a network with one hidden layer learn, and how does it change with n?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Corollary of Theorem 1"
    claims = claims_of("monomial-degrees")
    scales = {"smoke": {"sizes": (4, 5), "width": 16, "steps": 30}, "paper": {}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 6, "paper": 6}
    notes = {
        "desk": "the slides have no experiments; at n up to 12 and from a random start, failure is a trend and no wall"
    }

    sizes: tuple[int, ...] = (6, 8, 10, 12)
    width: int = 64
    steps: int = 1500
    rate: float = 0.1
    noise: float = 0.01

    def degrees(self, n: int) -> list[int]:
        """1, 2, 3, half and all."""
        return sorted({1, 2, 3, n // 2, n})

    def cost(self) -> Cost:
        """One step per n and degree."""
        return Cost(sum(len(self.degrees(n)) for n in self.sizes), 12.0, 500)

    def run(self, lab: Lab) -> None:
        """A training for every n and k, and one junk flow for every n."""
        pairs = [(n, k) for n in self.sizes for k in self.degrees(n)]
        signals: dict[int, float] = {}
        for n, k in lab.loop(pairs, "degrees"):
            population = Population.of(n)
            options = {"steps": self.steps, "rate": self.rate, "noise": self.noise}
            if n not in signals:
                with lab.seeded("model", n):
                    start = relu_network(self.width)(n)
                flow = junk_flow(start, population, trajectories=1, generator=lab.generator("junk", n), **options)  # type: ignore[arg-type]
                signals[n] = float(flow.signals.square().sum().sqrt()) / (2 * self.noise)
            with lab.seeded("model", n, k):
                model = relu_network(self.width)(n)
            stream = lab.generator("function", n, k)
            function = Monomials(n, k).sample(1, stream)
            Descent(**options).train(model, function, UniformInputs(n), stream)  # type: ignore[arg-type]
            accuracy = population.accuracy(model, function.labels(population.inputs))
            bound = data_free_accuracy(Monomials(n, k)) + signals[n] / math.sqrt(math.comb(n, k))
            lab.log("accuracy", n=n, k=k, full=k == n, accuracy=accuracy, bound=bound)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        rows = results.table("accuracy", seed=seed).rows
        if len(rows) < self.cost().steps:
            return cut_short(self.claims)
        full = {row["n"]: row["accuracy"] for row in rows if row["full"]}
        return {
            "S4a-X3-constant": min(row["accuracy"] for row in rows if row["k"] <= 2),
            "S4a-X3-cubic": min(row["accuracy"] for row in rows if row["k"] == 3),
            "S4a-X3-full": full[min(full)] - full[max(full)],
            "S4a-X3-largest": full[max(full)],
            "S4a-X3-bound": max(row["accuracy"] - min(1.0, row["bound"]) for row in rows),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracy over n by degree, and the bound."""
        figure, ((left, right),) = panels(2)
        for number, (name, choose) in enumerate(
            (("k = 1", 1), ("k = 2", 2), ("k = 3", 3), ("k = n / 2", None), ("k = n", 0))
        ):
            rows = results.table("accuracy").rows
            wanted = [row for row in rows if row["k"] == (row["n"] // 2 if choose is None else choose or row["n"])]
            if not wanted:
                continue
            sizes = sorted({row["n"] for row in wanted})
            values = torch.tensor([[row["accuracy"] for row in wanted if row["n"] == n] for n in sizes])
            bounds = torch.tensor([[row["bound"] for row in wanted if row["n"] == n] for n in sizes])
            color = PALETTE[number]
            left.plot(sizes, values.mean(1), marker="o", color=color, label=name)
            left.fill_between(sizes, values.amin(1), values.amax(1), color=color, alpha=0.2, linewidth=0)
            right.plot(sizes, bounds.mean(1), marker="o", color=color, label=name)
        left.axhline(0.5, color=GRAY, linestyle=":")
        right.axhline(1, color=GRAY, linestyle=":")
        right.set_yscale("log")
        for axes in (left, right):
            axes.set_xticks(self.sizes)
        label(left, "n", "accuracy", "after noisy gradient descent")
        label(right, "n", "bound of the accuracy", "the chained bound (says nothing above 1)")
        legend_beside(right)
        yield Picture(
            "degrees",
            figure,
            f"Left: accuracy of a network with one hidden layer of {self.width} after {self.steps} steps of noisy population "
            "gradient descent on a monomial of degree k, over n; mean and range over seeds. Right: the bound for these "
            "settings, far above 1 with so many steps. It falls like a power of n for a fixed degree and exponentially for "
            "k = n / 2; there is only one monomial of degree n, so that the bound, which allows any start, says nothing of it.",
        )
