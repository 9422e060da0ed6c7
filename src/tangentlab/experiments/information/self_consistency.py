"""The consistency tests of Song and Ermon (2020): what has to be true of an estimate where the truth is not known."""

from __future__ import annotations

from collections.abc import Iterator

from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import image_data
from tangentlab.experiments.information._estimates import estimate_of
from tangentlab.experiments.limits._measures import cut_short
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_beside, panels
from tangentlab.information import FitRecipe
from tangentlab.information.tasks import consistency_tests

ESTIMATORS = {"mine": "MINE", "nwj": "MINE-f", "infonce": "InfoNCE", "smile": "SMILE"}


@experiment
class SelfConsistency(Experiment):
    """x is a digit and z its first rows: independence, data processing and additivity for four estimators."""

    name = "self-consistency"
    title = "Estimates that contradict themselves"
    question = (
        "Nobody knows the information between a digit and its first rows. But no rows say nothing; rows that are shown twice "
        "say what they say once; and two digits say twice as much as one. Which estimators agree with themselves?"
    )
    chapter = Chapter.INFORMATION
    place = "beside figure 5.1; Song and Ermon 2020, section 6.2"
    claims = claims_of("self-consistency")
    scales = {
        "smoke": {
            "dataset": "digits",
            "pixels": 8,
            "rows": (4,),
            "fewer": 2,
            "steps": 10,
            "examples": 400,
            "images": 400,
        },
        "paper": {"steps": 2000, "rows": (6, 10, 14, 18, 22, 26)},
    }
    seeds = {"desk": 2, "paper": 3}
    minutes = {"smoke": 0.2, "desk": 20, "paper": 240}
    notes = {"desk": "images of 14 pixels, two numbers of rows, 600 steps"}

    dataset: str = "mnist"
    pixels: int = 14
    images: int = 60_000
    rows: tuple[int, ...] = (5, 9)
    fewer: int = 2
    steps: int = 600
    examples: int = 10_000

    def cost(self) -> Cost:
        """One step per fit: three tests and a reference, for every estimator and number of rows."""
        return Cost(4 * len(ESTIMATORS) * len(self.rows), 8.0, 900)

    def run(self, lab: Lab) -> None:
        """The reference and the three tests."""
        data, _ = image_data(lab, self.dataset, self.pixels, self.images)
        recipe = FitRecipe(steps=self.steps, progress=False)
        work = []
        for rows in self.rows:
            tests = consistency_tests(data.inputs, rows, self.fewer)
            tasks = {"reference": tests[0].reference, **{test.name: test.task for test in tests}}
            work += [(rows, name, task, estimator) for name, task in tasks.items() for estimator in ESTIMATORS]
        for rows, name, task, estimator in lab.loop(work, "fits"):
            facts = {"rows": rows, "test": name, "options": {"margins": "standard"}}
            estimate_of(lab, "tests", task, estimator, self.examples, recipe, name, rows, **facts)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """Ratios to the reference, the worst over rows, for MINE."""
        table = results.table("tests", seed=seed)
        if len(table) < self.cost().steps:
            return cut_short(self.claims)

        def ratios(test: str, estimator: str) -> list[float]:
            found = [table.where(test=one, estimator=estimator)["value"] for one in (test, "reference")]
            return [float(ratio) for ratio in found[0] / found[1]]

        return {
            "MI-SE-independence": max(abs(value) for value in ratios("independence", "mine")),
            "MI-SE-processing": max(abs(value - 1) for value in ratios("data processing", "mine")),
            "MI-SE-additivity": max(abs(value - 2) for value in ratios("additivity", "mine")),
            "MI-SE-smile-additivity": max(abs(value - 2) for value in ratios("additivity", "smile")),
        }

    def draw(self, results: Results) -> Iterator[Picture]:
        """One panel per test, ratios over rows."""
        table = results.table("tests")
        tests = {"independence": 0, "data processing": 1, "additivity": 2}
        figure, (axes,) = panels(3)
        for one, (test, truth) in zip(axes, tests.items(), strict=True):
            for (estimator, name), color in zip(ESTIMATORS.items(), PALETTE, strict=False):
                curves = results.curves("tests", "rows", "value", test=test, estimator=estimator)
                reference = results.curves("tests", "rows", "value", test="reference", estimator=estimator)
                if curves.y.shape == reference.y.shape:
                    band(one, type(curves)(curves.x, curves.y / reference.y), name, color=color, marker="o")
            one.axhline(truth, color=GRAY, linestyle="--", zorder=1, label="truth")
            label(one, "rows shown", "ratio to the reference", test)
        legend_beside(axes[-1])
        assert len(table)
        yield Picture(
            "ratios",
            figure,
            "Estimates over that of a digit and its first rows, which have to be 0, 1 and 2 whatever the digits are: mean over "
            "seeds, all seeds as a band.",
        )
