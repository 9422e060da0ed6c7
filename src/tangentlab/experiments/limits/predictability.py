"""Cross-predictability over n: closed forms, tables, estimates, and which families fall faster than any polynomial."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.figures.style import PALETTE, label, legend_beside, panels
from tangentlab.limits import (
    Additions,
    Communities,
    DecisionTrees,
    DNFs,
    Family,
    Halfspaces,
    Juntas,
    Majorities,
    Monomials,
    Parities,
    TableFamily,
    cross_predictability,
    estimate_cross_predictability,
    growth_of,
)

FAMILIES: dict[str, Callable[[int], Family]] = {
    "parities": Parities,
    "monomials, degree n/2": lambda n: Monomials(n, n // 2),
    "monomials, degree 3": lambda n: Monomials(n, 3),
    "juntas of 3": lambda n: Juntas(n, 3),
    "decision trees, depth 3": lambda n: DecisionTrees(n, 3),
    "DNFs, 4 terms of 3": lambda n: DNFs(n, 4, 3),
    "majorities of 3": lambda n: Majorities(n, 3),
    "halfspaces": Halfspaces,
    "additions": Additions,
}
LOW = ("parities", "monomials, degree n/2")
GRAPHS = (3, 6, 7, 10, 11)


@experiment
class CrossPredictabilities(Experiment):
    """CP of nine families over n, by closed forms and from tables."""

    name = "cross-predictability"
    title = "Parities predict each other exponentially badly"
    question = (
        "Two random functions of a family, and a random input: how much does one tell about the other? The square "
        "of their correlation, in the mean, is the cross-predictability of the family. Gradient descent needs it to "
        "fall no faster than a polynomial in n. Which families pass?"
    )
    chapter = Chapter.LIMITS
    place = "slides of Abbe and Sandon, Theorem 1"
    claims = claims_of("cross-predictability")
    scales = {"smoke": {"largest": 12, "tables": 6, "estimates": 2}, "paper": {}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 1, "paper": 1}

    largest: int = 40
    tables: int = 10
    estimates: int = 12

    def cost(self) -> Cost:
        """One step per family."""
        return Cost(len(FAMILIES), 2.0, 500)

    def run(self, lab: Lab) -> None:
        """Exact values by closed form, the same from tables, and intervals of estimates."""
        covered = []
        for number, (name, family) in enumerate(lab.loop(FAMILIES.items(), "families", total=len(FAMILIES))):
            sizes = range(6, self.largest + 1, 2)
            values = [cross_predictability(family(n), spectrum=False).value for n in sizes]
            for n, value in zip(sizes, values, strict=True):
                lab.log("exact", family=name, n=n, value=value)
            if len(values) >= 5:
                found = growth_of(sizes, values)
                rise = found.exponents[-1] - found.exponents[0]
                lab.log("growth", family=name, verdict=found.verdict, rise=rise, evidence=found.evidence)
            for k in range(self.estimates):
                n = 6 + 2 * (k % 3)
                exact = cross_predictability(family(n), spectrum=False).value
                guess = estimate_cross_predictability(family(n), generator=lab.generator("estimates", number, k))
                covered.append(guess.lower <= exact <= guess.upper)
                lab.log("estimates", family=name, n=n, exact=exact, lower=guess.lower, upper=guess.upper)
        for vertices in GRAPHS:
            value = cross_predictability(Communities(vertices), spectrum=False).value
            lab.log("exact", family="communities", n=vertices * (vertices - 1) // 2, value=value)
        sizes_of_tables = range(2, self.tables + 1)
        lab.measure("S4a-X1-parities", max(_relative(Parities(n), 2.0**-n) for n in sizes_of_tables))
        errors = [_relative(Monomials(n, k), 1 / math.comb(n, k)) for n in sizes_of_tables for k in range(1, n + 1)]
        lab.measure("S4a-X1-monomials", max(errors))
        lab.measure("S4a-X1-intervals", sum(covered) / max(len(covered), 1))

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Rises of the local exponents, of those families that should fall fast and of the others."""
        rows = results.table("growth", seed=seed).rows
        if len(rows) < len(FAMILIES):
            return dict.fromkeys(("S4a-X1-low", "S4a-X1-finite"), "needs five sizes of all families")
        rises = {row["family"]: float(row["rise"]) for row in rows}
        return {
            "S4a-X1-low": min(rises[name] for name in LOW),
            "S4a-X1-finite": max(rise for name, rise in rises.items() if name not in LOW),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """CP over n, and its local exponent."""
        figure, ((left, right),) = panels(2, width=4.6)
        for number, name in enumerate(results.table("exact").distinct("family")):
            curve = results.curves("exact", "n", "value", family=name)
            style = {"color": PALETTE[number % len(PALETTE)], "linestyle": "-" if number < 8 else "--", "label": name}
            left.plot(curve.x, curve.mean, **style)
            found = growth_of(curve.x.astype(int).tolist(), curve.mean.tolist()) if len(curve.x) >= 5 else None
            exponents = found.exponents if found is not None and name != "communities" else ()
            right.plot(curve.x[1 : len(exponents) + 1], exponents, **style)
        for axes in (left, right):
            axes.set_yscale("log")
        label(left, "n", "cross-predictability", "how well two draws predict each other")
        label(right, "n", "−Δ log CP / Δ log n", "local exponents")
        legend_beside(right)
        yield Picture(
            "cross-predictability",
            figure,
            "Left: cross-predictability of families of functions on n signs, exact. Right: its local exponent, "
            "which stays bounded where it falls like a power of n, and grows with n where it falls faster than any "
            "power: parities, and monomials whose degree grows. (Communities: n is the number of pairs of vertices.)",
        )


def _relative(family: Family, value: float) -> float:
    """How far CP from the tables of all functions is from a value."""
    functions, weights = family.members()
    return abs(cross_predictability(TableFamily(functions.table(), weights), spectrum=False).value / value - 1)
