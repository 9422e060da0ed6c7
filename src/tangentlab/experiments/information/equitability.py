"""Figure 5.2: does an estimate depend on the function, or only on the noise?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.information._estimates import estimate_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import heatmap, label, panels
from tangentlab.information import FitRecipe
from tangentlab.information.tasks import Power, Transformed, equitability_tasks


@experiment
class Equitability(Experiment):
    """X ~ U(-1, 1)^2 and Y = f(X) + sigma noise for x, x^3 and sin x; and X and X^3 against the same Y."""

    name = "equitability"
    title = "The noise, or the function?"
    question = (
        "MINE is said not to see which function a dependence has, only how noisy it is. With additive noise the true "
        "information does depend on the function, by up to a half; what is exact is that I(X; Y) = I(f(X); Y) for a "
        "bijection f. Which of both does an estimate show?"
    )
    chapter = Chapter.INFORMATION
    place = "figure 5.2"
    claims = claims_of("equitability")
    scales = {"smoke": {"sigmas": (0.3, 0.9), "steps": 20, "examples": 400}, "paper": {"steps": 2000}}
    seeds = {"desk": 3, "paper": 5}
    minutes = {"smoke": 0.2, "desk": 20, "paper": 90}
    notes = {"desk": "the paper gives neither networks nor sizes: 800 steps of 256 new examples, read on 17,000"}

    sigmas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    steps: int = 800
    examples: int = 20_000

    def cost(self) -> Cost:
        """One step per fit."""
        return Cost(5 * len(self.sigmas), 7.0, 500)

    def run(self, lab: Lab) -> None:
        """Every function at every noise; then X and X^3 against the Y of the identity, with margins as they are."""
        tasks = equitability_tasks(self.sigmas)
        recipe = FitRecipe(steps=self.steps, progress=False)
        cube = Power(3.0, "cube")
        work = [(name, task) for name, column in tasks.items() for task in column]
        work += [(f"{side} against the same", task) for task in tasks["x"] for side in ("x", "x^3")]
        for number, (name, task) in enumerate(lab.loop(work, "fits")):
            sigma = self.sigmas[number % len(self.sigmas)] if "same" not in name else task.sigma
            table, options = ("estimates", {}) if "same" not in name else ("bijections", {"margins": "standard"})
            shown = Transformed(task, x_map=cube) if name.startswith("x^3 against") else task
            facts = {"function": name, "sigma": sigma, "options": options}
            estimate_of(lab, table, shown, "mine", self.examples, recipe, name, sigma, **facts)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        rows, pairs = results.table("estimates", seed=seed), results.table("bijections", seed=seed)
        if len(rows) + len(pairs) < self.cost().steps:
            return cut_short(self.claims)
        values = np.array([rows.where(function=name)["value"] for name in rows.distinct("function")])
        truth = np.array([rows.where(function=name)["truth"] for name in rows.distinct("function")])
        sides = [pairs.where(function=name)["value"] for name in pairs.distinct("function")]
        return {
            "MI-M2-table": float(np.abs(values - truth).max()),
            "MI-M2-noise": float(np.diff(values, axis=1).max()),
            "MI-M2-invariant": float((np.ptp(values, axis=0) / values.mean(0)).max()),
            "MI-M2-bijection": float(np.abs(sides[0] - sides[1]).max()),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Two heatmaps: estimates and the truth."""
        rows = results.table("estimates")
        names = rows.distinct("function")
        grids = []
        for column in ("value", "truth"):
            cells = [[rows.where(function=name, sigma=s)[column] for s in self.sigmas] for name in names]
            grids.append(np.array([[cell.mean() if len(cell) else np.nan for cell in line] for line in cells]))
        top = float(np.nanmax(np.stack(grids)))
        figure, (axes,) = panels(2)
        for one, grid, title in zip(axes, grids, ("estimated by MINE", "by quadrature"), strict=True):
            heatmap(one, grid, "nats", vmin=0, vmax=top)
            one.set_xticks(range(len(self.sigmas)), [f"{s:g}" for s in self.sigmas])
            one.set_yticks(range(len(names)), names)
            for i, j in torch.cartesian_prod(torch.arange(len(names)), torch.arange(len(self.sigmas))).tolist():
                one.text(
                    j,
                    i,
                    f"{grid[i, j]:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="black" if grid[i, j] > top / 2 else "white",
                )
            label(one, "σ", "f", title)
        yield Picture(
            "heatmaps",
            figure,
            "Mutual information of X, uniform on a square, and Y = f(X) + σ noise: estimated (mean over seeds) and true. Down "
            "a column the function changes: the truth is not the same for all, and the estimate follows it.",
        )
