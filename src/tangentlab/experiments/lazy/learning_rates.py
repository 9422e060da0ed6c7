"""Figure C.1: a smaller learning rate is not a larger alpha."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from tangentlab.experiments import Chapter, Cost, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments._images import Row
from tangentlab.experiments.lazy import _race_figures as figures
from tangentlab.experiments.lazy._race import BEGUN, METRICS, at_levels, levels_of
from tangentlab.experiments.lazy._setting import CLEAN, LARGE, SMALL, RaceSetting
from tangentlab.figures.style import GRAY, INK

MOVED = 0.1
"""How far the clean loss must have fallen [nats] for a training to be compared."""


@experiment
class LazyLearningRates(RaceSetting):
    """Accuracies and linearity metrics at equal clean loss for several learning rates, all with alpha = 1."""

    name = "lazy-learning-rates"
    title = "A smaller learning rate is not a larger alpha"
    question = (
        "A training with alpha = 100 uses the learning rate divided by 10,000. Is it the small steps that make it lazy? The "
        "network itself, alpha = 1, is trained with several learning rates on data with 15 % wrong labels and "
        "compared at equal loss on clean examples, with each other and with a training with alpha = 100."
    )
    chapter = Chapter.LAZY
    place = "C.5, figure C.1"
    claims = claims_of("lazy-learning-rates")
    scales = {
        "smoke": {**SMALL, "rates": (0.05, 0.02, 1e-6), "updates": (12, 20, 4), "reference": 20},
        "paper": {
            **LARGE,
            "rates": (0.01, 0.003, 1e-4, 1e-6),
            "updates": (64_000, 200_000, 6_400_000, 64_000_000),
            "reference": 640_000,
        },
    }
    seeds = {"desk": 1, "paper": 1}
    minutes = {"smoke": 0.2, "desk": 15, "paper": 10_000_000}
    notes = {
        "desk": "ResNet18 with 16 to 128 channels without normalization on 2,500 CIFAR-10 images of 16 x 16 pixels, to a clean "
        "loss of 1; the learning rate 1e-6 is trained for 300 updates only and reported at the progress that it makes, and "
        "alpha = 100 for 2,000. One seed.",
        "paper": "trainings end at a clean loss of 1.",
    }

    noise: float = 0.15
    rates: tuple[float, ...] = (0.03, 0.01, 0.001, 1e-6)
    updates: tuple[int, ...] = (400, 800, 4_000, 300)
    stop: float = 1.0
    alpha: float = 100.0
    reference: int = 2_000
    reference_rate: float = 0.01

    def cost(self) -> Cost:
        """One step is one update; a training may end sooner, where the clean loss is small."""
        return Cost(sum(self.updates) + self.reference, 0.12, 1_000)

    def run(self, lab: Lab) -> None:
        """A training per learning rate, then the claims."""
        race = self.noisy_race(lab, self.noise)
        runs = [
            race.follow(lab, f"learning rate {rate:g}", 1.0, rate, updates)
            for rate, updates in zip(self.rates, self.updates, strict=True)
        ]
        lazy = race.follow(lab, self._lazy, self.alpha, self.reference_rate, self.reference)
        if lab.max_steps is None:
            self._judge(lab, runs, lazy)

    @property
    def _lazy(self) -> str:
        return f"alpha {self.alpha:g}"

    def _judge(self, lab: Lab, runs: list[list[Row]], lazy: list[Row]) -> None:
        moved = [rows for rows in runs if _fallen(rows) >= MOVED]
        keys = {"noisy": ("accuracy train noisy",), "test": ("accuracy test",)}
        if len(moved) < 2:
            for name in (*keys, "metrics"):
                lab.not_tested(f"C.1-{name}", f"fewer than two trainings lowered the clean loss by {MOVED}")
        else:
            levels = levels_of(moved, CLEAN)
            lab.log("levels", first=float(levels[0]), last=float(levels[-1]))
            for name, measured in keys.items():
                tables = [np.stack([at_levels(rows, CLEAN, key, levels) for rows in moved]) for key in measured]
                lab.measure(f"C.1-{name}", max(float(np.ptp(table, 0).max()) for table in tables))
            rates = [rate for rate, rows in zip(self.rates, runs, strict=True) if _fallen(rows) >= MOVED]
            slow, fast = moved[int(np.argmin(rates))], moved[int(np.argmax(rates))]
            more = [at_levels(slow, CLEAN, key, levels) - at_levels(fast, CLEAN, key, levels) for key in METRICS]
            lab.measure("C.1-metrics", float(np.mean(more)))
        if not moved:
            lab.not_tested("C.1-alpha", f"no learning rate lowered the clean loss by {MOVED}")
        elif _fallen(lazy) < MOVED:
            lab.not_tested("C.1-alpha", f"the clean loss fell by {_fallen(lazy):.2g} only with {self._lazy}")
        else:
            levels = levels_of([lazy, *moved], CLEAN)
            one, *others = (at_levels(rows, CLEAN, "ntk_alignment", levels) for rows in (lazy, *moved))
            lab.measure("C.1-alpha", float((one - np.max(others, 0)).mean()))
        tiny = runs[int(np.argmin(self.rates))]
        fallen = tiny[0][CLEAN] - tiny[-1][CLEAN]
        if fallen < MOVED:
            reason = (
                f"the clean loss fell by {fallen:.2g} only; the NTK alignment is then {tiny[-1]['ntk_alignment']:.4f}"
            )
            lab.not_tested("C.1-tiny", reason)
        else:
            lab.measure("C.1-tiny", tiny[-1]["ntk_alignment"])

    def draw(self, results: Results) -> Iterator[Picture]:
        """Accuracies and metrics over the clean loss."""
        shown = {"accuracy train noisy": "accuracy, noisy labels", "accuracy test": "accuracy, test examples"}
        yield Picture(
            "learning-rates",
            self._panels(results, shown),
            "Accuracy on noisy labels and on test examples, over the loss on clean training examples, which falls to the "
            f"right, for several learning rates and for alpha = 100 (dashed); {figures.DOTS}. Mean over seeds, all seeds as a "
            "band.",
        )
        yield Picture(
            "linearity",
            self._panels(results, METRICS),
            "How much of the start is left, by three measures, over the loss on clean training examples, which falls to the "
            f"right, for several learning rates and for alpha = 100 (dashed); {figures.DOTS}. Mean over seeds, all seeds as a "
            "band.",
        )

    def _panels(self, results: Results, shown: dict[str, str]) -> Figure:
        figure, (row,) = figures.two_panels(len(shown))
        for axes, (key, name) in zip(row, shown.items(), strict=True):
            for color, rate in zip((*figures.COLORS, GRAY), self.rates, strict=False):
                figures.draw_runs(axes, results, [f"learning rate {rate:g}"], CLEAN, key, "", color)
            figures.draw_runs(axes, results, [self._lazy], CLEAN, key, "", INK, ("--",))
            figures.finish(axes, "loss on clean training examples [nats]", name, "")
        return figure


def _fallen(rows: list[Row]) -> float:
    """How far the clean loss fell below its start, or below `BEGUN` [nats]; negative where it never came so far."""
    return min(rows[0][CLEAN], BEGUN) - min(row[CLEAN] for row in rows)
