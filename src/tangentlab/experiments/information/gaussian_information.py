"""Figure 5.1: the mutual information of correlated Gaussians by MINE, MINE-f and nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.information._estimates import estimate_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_beside, panels
from tangentlab.information import FitRecipe
from tangentlab.information.tasks import Gaussian

NAMES = {"mine": "MINE", "nwj": "MINE-f", "ksg": "Kraskov", "smile": "SMILE"}
MARKS = {"mine": "o", "nwj": "s", "ksg": "^", "smile": "D"}


@experiment
class GaussianInformation(Experiment):
    """corr(x_i, z_j) = rho if i = j and 0 else, in 1, 2 and 20 dimensions; every critic read on held-out pairs."""

    name = "gaussian-information"
    title = "The information of Gaussians, by networks and by neighbours"
    question = (
        "The mutual information of two Gaussian vectors is known, -(d/2) log(1 - rho^2). How near to it do MINE, MINE-f and "
        "nearest neighbours come in 1, 2 and 20 dimensions, when the value is read on examples that took no part in the fit?"
    )
    chapter = Chapter.INFORMATION
    place = "figure 5.1"
    claims = claims_of("gaussian-information")
    scales = {
        "smoke": {
            "dimensions": (1, 3),
            "rhos": (-0.5, 0.5),
            "levels": (1.0,),
            "steps": 20,
            "low_steps": 20,
            "examples": 400,
            "neighbours_examples": 200,
        },
        "paper": {},
    }
    seeds = {"desk": 3, "paper": 5}
    minutes = {"smoke": 0.2, "desk": 90, "paper": 150}
    notes = {
        "desk": "the paper gives neither networks nor sizes: a separable critic 2 x 256 to 32, batches of 256 new examples, "
        "all pairs, Adam 1e-3 with a cosine, 2,000 steps (500 in 1 and 2 dimensions), read on all pairs of 29,750 examples; "
        "nearest neighbours on 4,000 examples"
    }

    dimensions: tuple[int, ...] = (1, 2, 20)
    rhos: tuple[float, ...] = (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9)
    levels: tuple[float, ...] = (2.0, 4.0, 8.0)
    steps: int = 2000
    low_steps: int = 500
    examples: int = 35_000
    neighbours_examples: int = 4000

    def cost(self) -> Cost:
        """One step per fit."""
        return Cost(3 * len(self.dimensions) * len(self.rhos) + 3 * len(self.levels), 10.0, 600)

    def run(self, lab: Lab) -> None:
        """Three estimators over rho and d, and MINE, MINE-f and SMILE at given informations in the last dimension."""
        grid = [(d, rho, name) for d in self.dimensions for rho in self.rhos for name in ("mine", "nwj", "ksg")]
        high = max(self.dimensions)
        ladder = [(high, level, name) for level in self.levels for name in ("mine", "nwj", "smile")]
        for table, d, place, name in lab.loop(
            [("rhos", *one) for one in grid] + [("levels", *one) for one in ladder], "fits"
        ):
            task = Gaussian.correlated(d, place) if table == "rhos" else Gaussian.of_value(d, place)
            recipe = FitRecipe(steps=self.steps if d == high else self.low_steps, progress=False)
            examples = self.neighbours_examples if name == "ksg" else self.examples
            estimate_of(lab, table, task, name, examples, recipe, d, place, dimensions=d, place=place)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        rows, levels = results.table("rhos", seed=seed), results.table("levels", seed=seed)
        if len(rows) + len(levels) < self.cost().steps:
            return cut_short(self.claims)
        high = max(self.dimensions)

        def errors(name: str, low: bool) -> np.ndarray:
            chosen = [row for row in rows.rows if row["estimator"] == name and (row["dimensions"] < high) == low]
            return np.array([row["value"] - row["truth"] for row in chosen])

        mine, f, ksg = (rows.where(dimensions=high, estimator=name)["value"] for name in ("mine", "nwj", "ksg"))
        truth = rows.where(dimensions=high, estimator="mine")["truth"]
        middle = levels.where(estimator="mine")
        small = middle["truth"] <= 4
        last = max(self.levels)
        both = [row["value"] for name in ("mine", "smile") for row in levels.where(estimator=name, place=last).rows]
        return {
            "MI-M1-low-mine": float(np.abs(errors("mine", True)).max()),
            "MI-M1-low-neighbours": float(np.abs(errors("ksg", True)).max()),
            "MI-M1-twenty": float((np.abs(ksg - truth) - np.abs(mine - truth)).mean()),
            "MI-M1-tighter": float((mine - f).mean()),
            "MI-M1-ten-percent": float(np.abs(middle["value"] / middle["truth"] - 1)[small].max()),
            "MI-M1-eight": both[0],
            "MI-M1-eight-smile": both[1],
            "MI-M1-symmetric": float(np.abs(mine - mine[::-1])[truth < 4].max()),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """Estimates over rho, one panel per dimension; estimates over the truth."""
        figure, (axes,) = panels(len(self.dimensions))
        for one, d in zip(axes, self.dimensions, strict=True):
            for name, color in zip(("mine", "nwj", "ksg"), PALETTE, strict=False):
                curves = results.curves("rhos", "place", "value", dimensions=d, estimator=name)
                band(one, curves, NAMES[name], color=color, marker=MARKS[name])
            line = np.linspace(min(self.rhos), max(self.rhos), 201)
            one.plot(line, -d / 2 * np.log1p(-(line**2)), color=GRAY, linestyle="--", label="truth", zorder=1)
            label(one, "ρ", "information [nats]", f"{d} dimension{'s' if d > 1 else ''}")
        legend_beside(axes[-1])
        yield Picture(
            "estimates",
            figure,
            "Estimated mutual information of Gaussian vectors over their componentwise correlation, read on held-out examples: "
            "mean over seeds, all seeds as a band, and the truth.",
        )
        figure, ((one,),) = panels()
        for name, color in zip(("mine", "nwj", "smile"), PALETTE, strict=False):
            band(
                one,
                results.curves("levels", "place", "value", estimator=name),
                NAMES[name],
                color=color,
                marker=MARKS[name],
            )
        one.plot(self.levels, self.levels, color=GRAY, linestyle="--", label="truth", zorder=1)
        label(one, "truth [nats]", "estimate [nats]", f"{max(self.dimensions)} dimensions")
        legend_beside(one)
        yield Picture(
            "levels",
            figure,
            "Estimates at given informations: mean over seeds, all seeds as a band. SMILE is no lower bound and may "
            "pass the truth.",
        )
