"""What every experiment must satisfy; its own test is one call of `check_contract`."""

from __future__ import annotations

import warnings
from pathlib import Path

from tangentlab.bench.claims import Status
from tangentlab.bench.experiment import Experiment
from tangentlab.bench.lab import END_TABLE
from tangentlab.bench.results import Results
from tangentlab.bench.runner import Outcome, execute, make_config


def check_contract(kind: type[Experiment], folder: Path) -> Outcome:
    """Run `kind` at the smoke scale below `folder` and assert that it keeps the rules of the bench.

    It comes to its end, measures every claim that the scale tests, takes as many steps as it declares, and draws
    captioned figures in the house style.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = execute(make_config(kind.at("smoke"), "smoke", seeds=1), folder, inline=True)
    assert not outcome.failures, "\n".join(outcome.failures.values())
    assert outcome.complete
    missing = [verdict.claim.id for verdict in outcome.with_status(Status.MISSING)]
    assert not missing, f"claims never measured: {', '.join(missing)}"
    results = Results(outcome.folder)
    declared, taken = kind.at("smoke").cost().steps, results.table(END_TABLE).rows[0]["steps"]
    assert declared == taken, f"cost() declares {declared} steps, the run took {taken}"
    style = [str(warning.message) for warning in caught if warning.category.__name__ == "StyleWarning"]
    assert not style, "\n".join(style)
    assert list(outcome.folder.figures.glob("*.svg")), "no figure was drawn"
    return outcome


def check_paper_scale_starts(kind: type[Experiment], folder: Path, steps: int = 2) -> Outcome:
    """Run the paper's own scale for `steps` steps per loop, noise in place of absent data, and draw the outcome."""
    outcome = execute(make_config(kind.at("paper"), "paper", seeds=1, max_steps=steps), folder, inline=True)
    assert not outcome.failures, "\n".join(outcome.failures.values())
    assert outcome.complete and not outcome.with_status(Status.HELD, Status.NOT_HELD, Status.MIXED, Status.MISSING)
    return outcome
