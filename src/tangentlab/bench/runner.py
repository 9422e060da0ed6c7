"""From a request to a finished run folder: run the seeds, judge the claims, draw the figures, write the report."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tangentlab.bench.claims import Status
from tangentlab.bench.crew import Crew
from tangentlab.bench.errors import RunError
from tangentlab.bench.experiment import Experiment
from tangentlab.bench.folder import Config, RunFolder, runs_below
from tangentlab.bench.lab import Event
from tangentlab.bench.provenance import provenance
from tangentlab.bench.results import Results
from tangentlab.bench.row_files import repair
from tangentlab.bench.verdicts import Verdict
from tangentlab.bench.worker import run_seed
from tangentlab.errors import DiskError, TangentlabError


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: RunFolder
    complete: bool
    verdicts: list[Verdict] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def with_status(self, *statuses: Status) -> list[Verdict]:
        """The verdicts with one of these statuses."""
        return [verdict for verdict in self.verdicts if verdict.status in statuses]

    def exit_code(self, strict: bool = False) -> int:
        """130 after Ctrl-C; 1 after a failure, a missing claim, or (when strict) a claim that is not held; else 0."""
        if self.interrupted:
            return 130
        if self.failures or not self.complete or self.with_status(Status.MISSING):
            return 1
        return int(strict and bool(self.with_status(Status.MIXED, Status.NOT_HELD)))


def make_config(
    experiment: Experiment, scale: str, *, first_seed: int = 0, seeds: int | None = None, max_steps: int | None = None
) -> Config:
    """The config of a new run; the number of seeds is the experiment's own for the scale when not given."""
    count = seeds if seeds is not None else experiment.seeds.get(scale, 1)
    if count < 1 or (max_steps is not None and max_steps < 1):
        raise RunError("The number of seeds and of steps must be at least 1.")
    numbers = tuple(range(first_seed, first_seed + count))
    return Config(experiment.name, scale, numbers, experiment.parameters(), max_steps, provenance())


def execute(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    inline: bool = False,
    report: Callable[[Event], None] = lambda event: None,
    announce: Callable[[RunFolder], None] = lambda folder: None,
) -> Outcome:
    """Run `config` in a new folder below `out`, or continue the newest run of the same config when `resume`.

    Seeds run as `workers` parallel processes (as many as there are cores by default), or one after the other in this
    process when `inline`. Ctrl-C ends with a valid partial run; a seed that fails does not stop the others.
    """
    config.build()
    folder = (previous(config, out) if resume else None) or RunFolder.create(out, config)
    with folder.lock():
        announce(folder)
        if damage := repair(folder.metrics_file):
            warnings.warn(f"{folder.metrics_file}: {damage}; it is computed again.", RuntimeWarning, stacklevel=2)
        pending = [seed for seed in config.seeds if seed not in Results(folder).ended]
        failures: dict[int, str] = {}
        interrupted = False
        try:
            if inline:
                failures = _inline(folder, pending, report)
            else:
                crew = Crew(folder, workers or min(len(config.seeds), os.cpu_count() or 1), report)
                failures = crew.run(pending)
        except KeyboardInterrupt:
            interrupted = True
        verdicts = finish(folder, failures)
        return Outcome(folder, Results(folder).complete, verdicts, failures, interrupted)


def previous(config: Config, out: Path) -> RunFolder | None:
    """The newest run below `out` with the same config, complete or not."""
    for folder in reversed(runs_below(out)):
        try:
            if folder.config().same_run(config):
                return folder
        except (RunError, ValueError):
            continue
    return None


def finish(folder: RunFolder, failures: dict[int, str] | None = None) -> list[Verdict]:
    """Judge, draw and report what the folder holds; works for a partial run too."""
    from tangentlab.bench.page import write_report
    from tangentlab.bench.summary import write_summary
    from tangentlab.figures.pictures import save_pictures

    results = Results(folder)
    problem = ""
    try:
        save_pictures(folder.figures, lambda: results.experiment.draw(results), png=not folder.published)
    except DiskError:
        raise
    except Exception as error:
        if results.complete:
            raise RunError(f"The run is complete, but drawing it failed: {error!r}") from error
        problem = "figures need the rest of the run"
    verdicts = results.verdicts()
    write_summary(results, verdicts, sorted(failures or {}), problem)
    if not folder.published:
        write_report(folder)
    return verdicts


def redraw(folder: RunFolder) -> list[Verdict]:
    """Judge, draw and report again what the folder holds; an error where the metrics are not there to do it from."""
    if folder.published:
        return finish(folder)
    if not folder.metrics_file.exists():
        raise RunError(f"{folder.path} holds no metrics.jsonl to draw from: it is a result without its numbers.")
    with folder.lock():
        return finish(folder)


def _inline(folder: RunFolder, seeds: Sequence[int], report: Callable[[Event], None]) -> dict[int, str]:
    failures: dict[int, str] = {}
    for seed in seeds:
        code = 0
        try:
            run_seed(folder, seed, lambda event, seed=seed: report({"seed": seed, **event}))  # type: ignore[misc]
        except Exception as error:
            failures[seed] = str(error) if isinstance(error, TangentlabError) else traceback.format_exc()
            code = 1
        report({"seed": seed, "ended": True, "code": code})
    return failures
