"""Learners side by side on parities: descent in many disguises, the perceptron, statistical queries, and elimination."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, label, panels
from tangentlab.limits import (
    Descent,
    FromSamples,
    Learner,
    Monomials,
    Parities,
    Perceptron,
    QueryDescent,
    all_inputs,
    compare_learners,
    query_bound,
    relu_network,
)

UNABLE = ("noisy GD", "perceptron", "queries")


@experiment
class ParityLearners(Experiment):
    """Ten learners on random parities, and on products of two signs, which most of them learn."""

    name = "parity-learners"
    title = "Who learns parities?"
    question = (
        "Random parities, and products of two signs as an easy case: which learners tell them from coin flips? "
        "Gradient descent with noise, with few bits, by single coordinates, SGD, the perceptron, descent by "
        "statistical queries, Gaussian elimination."
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Corollary of Theorem 2"
    claims = claims_of("parity-learners")
    scales = {"smoke": {"n": 6, "functions": 2, "steps": 20, "query_steps": 2}, "paper": {}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 6, "paper": 6}
    notes = {"desk": "the slides have no experiments: n, networks and numbers of steps are ours"}

    n: int = 12
    functions: int = 5
    width: int = 32
    steps: int = 600
    query_steps: int = 60
    tolerance: float = 0.05

    def learners(self) -> dict[str, Learner]:
        """All with the same network and rate."""
        base = {"model": relu_network(self.width), "steps": self.steps, "rate": 0.2}
        return {
            "noisy GD": Descent(**base, noise=0.01),  # type: ignore[arg-type]
            "SGD, batch 1": Descent(**{**base, "rate": 0.02, "steps": 4 * self.steps}, batch=1),  # type: ignore[arg-type]
            "SGD, batch 64": Descent(**base, batch=64),  # type: ignore[arg-type]
            "signs": Descent(**{**base, "rate": 0.01}, sign=True),  # type: ignore[arg-type]
            "4-bit gradients": Descent(**base, bits=4),  # type: ignore[arg-type]
            "10 weights a step": Descent(**base, coordinates=10),  # type: ignore[arg-type]
            "6-bit weights": Descent(**base, weight_bits=6),  # type: ignore[arg-type]
            "jittered start": Descent(**base, jitter=0.5),  # type: ignore[arg-type]
            "queries": QueryDescent(self.tolerance, model=relu_network(self.width), steps=self.query_steps, rate=0.2),
            "perceptron": FromSamples(Perceptron(), 50 * self.n),
            "elimination": FromSamples(samples=2 * self.n),
        }

    def cost(self) -> Cost:
        """One step per learner and family."""
        return Cost(2 * len(self.learners()), 12.0, 900)

    def run(self, lab: Lab) -> None:
        """Every learner on the same functions of both families."""
        families = {"parities": Parities(self.n), "products of 2": Monomials(self.n, 2)}
        pairs = [(family, name) for family in families for name in self.learners()]
        for family, name in lab.loop(pairs, "learners"):
            learner = {name: self.learners()[name]}
            standing = compare_learners(families[family], learner, functions=self.functions, seed=lab.seed)[name]
            for value in standing.accuracies.tolist():
                lab.log("accuracy", family=family, learner=name, accuracy=value)
        lab.log("linear", best=_best_linear(2))
        size = sum(p.numel() for p in relu_network(self.width)(self.n).parameters())
        queries = size * self.query_steps
        lab.log(
            "queries", queries=queries, bound=query_bound(queries, self.tolerance, 2.0**-self.n, 0.5 + 2.0**-self.n / 2)
        )

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        table, linear = (
            results.table("accuracy", seed=seed).where(family="parities"),
            results.table("linear", seed=seed).rows,
        )
        if len(table) < self.functions * len(self.learners()) or not linear:
            return cut_short(self.claims)
        means = {name: float(table.where(learner=name)["accuracy"].mean()) for name in self.learners()}
        easy = results.table("accuracy", seed=seed).where(family="products of 2")
        return {
            "S4a-X5-xor": float(linear[0]["best"]),
            **{f"S4a-X5-{name.split()[0]}": abs(means[name] - 0.5) for name in UNABLE},
            "S4a-X5-elimination": min(table.where(learner="elimination")["accuracy"]),
            "S4a-X5-descents": max(abs(m - 0.5) for name, m in means.items() if name != "elimination"),
            "S4a-X5-easy": float(easy.where(learner="noisy GD")["accuracy"].mean()),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracies by learner."""
        figure, ((axes,),) = panels(width=6.4, height=3.9)
        names = list(self.learners())
        for family, color, shift in (("products of 2", PALETTE[2], 0.15), ("parities", PALETTE[0], -0.15)):
            for place, name in enumerate(names):
                rows = results.table("accuracy", family=family, learner=name)
                if not len(rows):
                    continue
                values = rows["accuracy"]
                row = len(names) - 1 - place + shift
                axes.plot(values, [row] * len(values), ".", color=color, alpha=0.45)
                axes.plot([values.mean()], [row], "D", color=color, label=family if not place else None)
        axes.axvline(0.5, color=GRAY, linestyle=":")
        axes.set_yticks(range(len(names)), list(reversed(names)))
        label(axes, "accuracy", "learner", f"n = {self.n}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        yield Picture(
            "learners",
            figure,
            "Accuracies of learners on random parities and on products of two signs: every point is a function, "
            "diamonds are means over functions and seeds. An output of 0 counts 1/2.",
        )


def _best_linear(n: int) -> float:
    """The best accuracy of any linear threshold function on the parity of n = 2 signs: all of them, by a grid of weights."""
    x = all_inputs(n)
    grid = torch.cartesian_prod(*([torch.linspace(-2, 2, 9)] * (n + 1)))
    outputs = torch.sign(x @ grid[:, :n].t() + grid[:, n] + 0.1)
    return float(((1 + outputs * x.prod(1)[:, None]) / 2).mean(0).max())
