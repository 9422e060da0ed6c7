"""An estimate of an experiment: fitted once, kept on disk, and logged as a row."""

from __future__ import annotations

from typing import Any

from tangentlab.bench.seeds import derive
from tangentlab.experiments import Lab
from tangentlab.information import FitRecipe, mutual_information
from tangentlab.information.tasks import Task
from tangentlab.lines import Row

READ_MOSTLY = (0.1, 0.05, 0.85)
"""Shares of training, validation and test where a sampler draws new training examples in every step."""


def estimate_of(
    lab: Lab, table: str, task: Task, estimator: str, examples: int, recipe: FitRecipe, *names: Any, **facts: Any
) -> Row:
    """A row with the facts, the truth, the value on test examples, its standard error and the number of warnings.

    Critics are fitted on examples that are drawn anew in every step and read on most of `examples`; estimators without one
    get `examples` examples. `options` of `mutual_information` are taken from `facts` under that name.
    """
    options = facts.pop("options", {})
    seed = derive(lab.seed, table, estimator, *names) % 2**31

    def compute() -> dict[str, float]:
        if estimator.startswith("ksg"):
            x, z = task.sample(examples, lab.generator("data", *names))
            found = mutual_information(x, z, estimator, halves=False, **options)
        else:
            found = mutual_information(
                task.sample,
                estimator=estimator,
                recipe=recipe,
                samples=examples,
                split=READ_MOSTLY,
                halves=False,
                permutations=0,
                seed=seed,
                **options,
            )
        size = found.diagnostics.effective_size
        return {"value": found.value, "error": found.error, "effective": size, "warnings": len(found.warnings)}

    row = {
        **facts,
        "estimator": estimator,
        "truth": task.value,
        **lab.stage(" ".join(map(str, (table, estimator, *names))), compute),
    }
    lab.log(table, **row)
    return row
