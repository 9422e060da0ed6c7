"""The bound by junk labels next to what noisy gradient descent does: it holds, and in one form it says something."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, label, legend_beside, panels
from tangentlab.limits import (
    Descent,
    Family,
    Majorities,
    Monomials,
    Parities,
    Population,
    UniformInputs,
    gradient_bound,
    population_gradient,
    relu_network,
)

FORMS = ("slide", "halved", "sharp", "chained")


@experiment
class JunkBound(Experiment):
    """Three settings on parities, one on monomials, and a majority that needs no data."""

    name = "junk-bound"
    title = "Gradients on junk labels bound what descent can learn"
    question = (
        "Noisy gradient descent on a random function and on coin flips, from the same start: how far apart can they "
        "end? The answer bounds the accuracy on a random function of the family. Does the bound hold in simulation, "
        "and is it ever below 1?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, junk-flow and cross-predictability"
    claims = claims_of("junk-bound")
    scales = {"smoke": {"n": 7, "width": 8, "functions": 3, "steps": (2, 3), "trajectories": 2}, "paper": {}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 3, "paper": 3}
    notes = {"desk": "the slides have no experiments: network, rate and noise are ours"}

    n: int = 14
    width: int = 32
    functions: int = 10
    trajectories: int = 3
    rate: float = 0.05
    steps: tuple[int, ...] = (10, 20)
    noises: tuple[float, ...] = (0.1, 0.3)

    def settings(self) -> list[tuple[str, Family, int, float]]:
        """Name, family, steps and noise."""
        pairs = list(zip(self.steps, self.noises, strict=True))
        found: list[tuple[str, Family, int, float]] = [
            (f"parities, T = {t}, σ = {s:g}", Parities(self.n), t, s) for t, s in pairs
        ]
        return [*found, (f"degree 3, T = {pairs[0][0]}, σ = {pairs[0][1]:g}", Monomials(self.n, 3), *pairs[0])]

    def cost(self) -> Cost:
        """One step per setting, one for the majority and one for a single step."""
        return Cost(len(self.steps) + 3, 20.0, 700)

    def run(self, lab: Lab) -> None:
        """Bounds, then trainings on random functions."""
        for number, (name, family, steps, noise) in enumerate(lab.loop(self.settings(), "settings")):
            self._setting(lab, number, name, family, steps, noise)
        for _ in lab.loop(range(1), "a majority"):
            self._majority(lab)
        for _ in lab.loop(range(1), "one step"):
            self._one_step(lab)

    def _setting(self, lab: Lab, number: int, name: str, family: Family, steps: int, noise: float) -> None:
        with lab.seeded("model"):
            model = relu_network(self.width)(family.n)
        options = {"steps": steps, "rate": self.rate, "noise": noise}
        generator = lab.generator("junk", number)
        bound = gradient_bound(model, family, trajectories=self.trajectories, generator=generator, **options)  # type: ignore[arg-type]
        terms = {form: bound.baseline + bound.terms[form] for form in FORMS}
        population, inputs = Population.of(family.n), UniformInputs(family.n)
        found = []
        for k in range(self.functions):
            stream = lab.generator("functions", number, k)
            function = family.sample(1, stream)
            with lab.seeded("model"):
                own = relu_network(self.width)(family.n)
            Descent(**options).train(own, function, inputs, stream)  # type: ignore[arg-type]
            found.append(population.accuracy(own, function.labels(population.inputs)))
        accuracies = torch.tensor(found, dtype=torch.float64)
        error = float(accuracies.std() / len(found) ** 0.5)
        lab.log("settings", setting=name, number=number, accuracy=float(accuracies.mean()), error=error, **terms)

    def _majority(self, lab: Lab) -> None:
        """A network that is the majority of all coordinates before it has seen anything."""
        family = Majorities(9)
        model = nn.Linear(9, 1)
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.bias.zero_()
        options = {"steps": 1, "rate": 1e-3, "noise": 0.01, "trajectories": 1}
        bound = gradient_bound(model, family, generator=lab.generator("majority"), **options)  # type: ignore[arg-type]
        population = Population.of(9)
        functions, weights = family.members()
        table = functions.table().float()
        scores = torch.tensor([population.accuracy(model, labels) for labels in table], dtype=torch.float64)
        lab.log(
            "majority",
            accuracy=float(weights @ scores),
            baseline=bound.baseline,
            term=bound.terms["chained"],
        )

    def _one_step(self, lab: Lab) -> None:
        """Exact distance of two Gaussians after one step, and its bound by Pinsker's inequality."""
        n = min(self.n, 10)
        with lab.seeded("model"):
            model = relu_network(self.width)(n)
        population = Population.of(n)
        junk = _flat(population_gradient(model, population, None))
        for k in range(20):
            labels = Parities(n).sample(1, lab.generator("one step", k)).labels(population.inputs)
            gap = float((_flat(population_gradient(model, population, labels)) - junk).norm())
            for ratio in (0.1, 1.0, 10.0, 100.0):
                reach = ratio * gap / 2
                lab.log("step", ratio=ratio, distance=math.erf(reach / math.sqrt(2)), bound=reach)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        rows = results.table("settings", seed=seed).rows
        majority = results.table("majority", seed=seed).rows
        steps = results.table("step", seed=seed).rows
        if len(rows) < len(self.settings()) or not majority or not steps:
            return cut_short(self.claims)
        first = rows[0]
        excess = [row["accuracy"] - 3 * row["error"] - min(1.0, row[form]) for row in rows for form in FORMS]
        free = majority[0]
        return {
            "S4a-X2-holds": max(excess),
            "S4a-X2-slide": first["slide"],
            "S4a-X2-sharp": first["sharp"],
            "S4a-X2-chained": (first["chained"] - 0.5) / (first["sharp"] - 0.5),
            "S4a-X2-parities": max(abs(row["accuracy"] - 0.5) for row in rows[: len(self.steps)]),
            "S4a-X2-baseline": free["accuracy"] - 0.5 - free["term"],
            "S4a-X2-own-baseline": free["accuracy"] - free["baseline"] - free["term"],
            "S4a-X6-pinsker": max(row["distance"] - row["bound"] for row in steps),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Bounds and accuracies by setting."""
        figure, ((axes,),) = panels(width=6.0)
        table = results.table("settings")
        names = table.distinct("setting")
        for place, name in enumerate(names):
            rows = table.where(setting=name)
            for form, color in zip(FORMS, PALETTE, strict=False):
                values = rows[form]
                axes.plot(
                    [place] * len(values), values, "_", markersize=18, color=color, label=form if not place else None
                )
            accuracy = rows["accuracy"]
            axes.plot([place] * len(accuracy), accuracy, "o", color=PALETTE[4], label="measured" if not place else None)
        axes.axhline(1, color=GRAY, linestyle=":", label="vacuous above")
        axes.set_yscale("log")
        axes.set_xticks(range(len(names)), [name.replace(", T", "\nT") for name in names])
        axes.set_xlim(-0.5, len(names) - 0.5)
        label(axes, "setting", "accuracy", f"n = {self.n}: what is possible and what is reached")
        legend_beside(axes)
        yield Picture(
            "bounds",
            figure,
            "The accuracy of noisy gradient descent on a random function (points, mean over functions, one per "
            "seed), and four upper bounds of it (bars). The form of the slides is above 1 and says nothing; with "
            "the largest eigenvalue of the label kernel in place of the root of the cross-predictability, parities "
            "are seen to be out of reach.",
        )


def _flat(gradient: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in gradient])
