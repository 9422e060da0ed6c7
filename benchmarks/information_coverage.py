"""Do the intervals of `mutual_information` cover the truth, are its p-values uniform, and is hostile data noticed?

    python benchmarks/information_coverage.py coverage --repetitions 100
    python benchmarks/information_coverage.py uniform --repetitions 200
    python benchmarks/information_coverage.py hostile --repetitions 1000

Every line is one estimate as JSON; the last one sums up. A repetition takes 5 to 15 s on one core (hostile: 1 to 3 s).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from tangentlab.errors import TangentlabError
from tangentlab.information import FitRecipe, MutualInformation, Separable, mutual_information
from tangentlab.information.tasks import Gaussian, Student, Task

SETTINGS = {
    "independent": (Gaussian.of_value(1, 0.0), 2000, 300),
    "rho .5, d = 1": (Gaussian.correlated(1, 0.5), 5000, 300),
    "I = 2, d = 10": (Gaussian.of_value(10, 2.0), 10_000, 600),
}
"""Task, examples and steps."""


def covers(found: MutualInformation, truth: float) -> bool:
    """Whether the truth lies in the interval."""
    return found.interval[0] <= truth <= found.interval[1]


def coverage(repetitions: int) -> Iterator[dict[str, object]]:
    """Intervals of every setting."""
    for name, (task, examples, steps) in SETTINGS.items():
        inside = 0
        for number in range(repetitions):
            x, z = task.sample(examples, Generator().manual_seed(10_000 + number))
            found = mutual_information(x, z, recipe=FitRecipe(steps=steps), seed=number, permutations=0)
            inside += covers(found, task.value)
            yield {"setting": name, "truth": task.value, "value": found.value, "interval": found.interval}
        yield {"setting": name, "covered": inside, "of": repetitions}


def uniform(repetitions: int) -> Iterator[dict[str, object]]:
    """P-values of independent examples, n = 2,000 and 300 steps, and their distance from uniform ones."""
    from scipy.stats import kstest

    values = []
    for number in range(repetitions):
        x, z = Gaussian.of_value(1, 0.0).sample(2000, Generator().manual_seed(20_000 + number))
        found = mutual_information(x, z, recipe=FitRecipe(steps=300), seed=number, halves=False)
        values.append(found.p_value)
        yield {"p": found.p_value}
    test = kstest(values, "uniform")
    yield {"distance from uniform": float(test.statistic), "p of the test": float(test.pvalue), "of": repetitions}


def hostile_data(kind: str, source: Generator) -> tuple[Tensor, Tensor, float]:
    """x, z and the truth."""
    noise = torch.randn(400, 2, generator=source)
    if kind == "constant":
        return torch.ones(400, 2), noise, 0.0
    if kind == "nan":
        return noise.masked_fill(torch.rand(400, 2, generator=source) < 0.01, math.nan), noise, math.inf
    if kind == "copies":
        x, z = Gaussian.of_value(2, 0.5).sample(100, source)
        return x.repeat(4, 1), z.repeat(4, 1), 0.5
    if kind == "tails":
        task: Task = Student.dense(2, 2, degrees=1)
        return *task.sample(400, source), task.value
    if kind == "above log n":
        task = Gaussian.of_value(2, 20.0)
        return *task.sample(400, source), task.value
    return noise[:5], noise[:5], math.inf


def hostile(repetitions: int) -> Iterator[dict[str, object]]:
    """An error, a warning, or an interval with the truth; anything else is counted as silent."""
    kinds = ("constant", "nan", "copies", "tails", "above log n", "five")
    silent = 0
    for number in range(repetitions):
        kind = kinds[number % len(kinds)]
        x, z, truth = hostile_data(kind, Generator().manual_seed(number))
        estimator = ("mine", "nwj", "infonce", "smile", "fdime")[number // len(kinds) % 5]
        make: Callable[[], Separable] = lambda: Separable(2, 2, (64, 64), 16)  # noqa: E731
        try:
            recipe = FitRecipe(steps=300, batch=128)
            found = mutual_information(x, z, estimator, critic=make, recipe=recipe, seed=number, permutations=0)
        except TangentlabError as error:
            yield {"kind": kind, "estimator": estimator, "outcome": type(error).__name__}
            continue
        outcome = "right" if covers(found, truth) else "warned" if found.warnings else "silent"
        silent += outcome == "silent"
        yield {"kind": kind, "estimator": estimator, "outcome": outcome, "value": found.value, "truth": truth}
    yield {"silent": silent, "of": repetitions}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["coverage", "uniform", "hostile"])
    parser.add_argument("--repetitions", type=int, default=100)
    given = parser.parse_args()
    for line in {"coverage": coverage, "uniform": uniform, "hostile": hostile}[given.what](given.repetitions):
        print(json.dumps(line), flush=True)
