"""One job through all its contenders: fresh processes, alternating turns, best of several calls, values compared."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import problems
from benchmarks.contender import Contender, ContenderFailed
from benchmarks.fingerprint import deviation
from benchmarks.jobs import LOOSE, TOLERANCE, Job
from benchmarks.systems import SYSTEMS

PREPARE_TIMEOUT = 900.0
PAUSE = 0.05
TURN_SECONDS, TURN_CALLS = 0.3, 10

# Values are compared with the most elementary system that can do a job.
REFERENCES = (
    "torch_func",
    "by_hand",
    "kept_graph",
    "nngeometry",
    "curvlinops",
    "backpack",
    "kronfluence",
    "plain_gradient",
)


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        threads: of every system.
        reps: turns of each system.
        budget: seconds after which a system gets no further turn; a first call longer than this is its only one.
        timeout: seconds after which a call is given up.
    """

    threads: int = 2
    reps: int = 5
    budget: float = 40.0
    timeout: float = 600.0


def run_job(
    job: Job, names: list[str], pythons: dict[str, str], settings: Settings, console: Console
) -> dict[str, Any]:
    """Measure one job in fresh processes; the record that goes into the results, failures included."""
    with ExitStack() as stack:
        contenders = {name: stack.enter_context(Contender(name, pythons[name], settings.threads)) for name in names}
        return measure(job, contenders, settings, console)


def measure(job: Job, contenders: dict[str, Contender], settings: Settings, console: Console) -> dict[str, Any]:
    """Measure one job with the given processes; those that fail are removed from `contenders`."""
    path, size = problems.write(job)
    records: dict[str, dict[str, Any]] = {name: {"label": SYSTEMS[name].label} for name in contenders}
    files: dict[str, Path] = {}
    for name, contender in list(contenders.items()):
        try:
            _first_call(contender, job, path, records[name], settings, files)
        except ContenderFailed as error:
            records[name]["error"] = str(error)
            del contenders[name]
        console.print(f"  {SYSTEMS[name].label:32s} {_status(records[name])}", highlight=False)
    _rounds(contenders, records, settings)
    path.unlink()
    _summarize(records)
    _compare(job, records, files)
    return {**job.message(), "title": job.title, "parameters": size, "systems": records}


def _message(job: Job, name: str, path: Path) -> dict[str, Any]:
    """The `prepare` message; a yardstick does its own kind of work on the job's network and data."""
    system = SYSTEMS[name]
    kind = next(iter(system.abilities)) if system.yardstick else job.kind
    return {**job.message(), "kind": kind, "variant": system.variant, "problem": str(path)}


def _first_call(
    contender: Contender, job: Job, path: Path, record: dict[str, Any], settings: Settings, files: dict[str, Path]
) -> None:
    """Prepare a worker, let it run once (in its fresh process, so peak memory is taken here) and save its values."""
    name = contender.system
    answer = contender.ask("prepare", PREPARE_TIMEOUT, **_message(job, name, path))
    record |= {"versions": answer["versions"], "prepare_seconds": answer["prepare_seconds"]}
    answer = contender.ask("run", settings.timeout, memory=True, keep=True)
    record |= {"first_call": answer["seconds"], "peak_bytes": answer["peak_bytes"], "times": []}
    target = path.with_name(f"{path.stem}-{name}.npz")
    answer = contender.ask("values", settings.timeout, path=str(target))
    record["facts"] = answer["facts"]
    if answer["keys"]:
        files[name] = target


def _rounds(running: dict[str, Contender], records: dict[str, dict[str, Any]], settings: Settings) -> None:
    """Alternate: in every round each system has one turn, of one call or of several when calls are short."""
    for _ in range(settings.reps):
        for name, contender in list(running.items()):
            record = records[name]
            if record["first_call"] > settings.budget or sum(record["times"]) > settings.budget:
                continue
            time.sleep(PAUSE)
            try:
                _turn(contender, record["times"], settings)
            except ContenderFailed as error:
                record["error"] = str(error)
                del running[name]


def _turn(contender: Contender, times: list[float], settings: Settings) -> None:
    spent = 0.0
    for _ in range(TURN_CALLS):
        times.append(contender.ask("run", settings.timeout)["seconds"])
        spent += times[-1]
        if spent > TURN_SECONDS:
            break


def _summarize(records: dict[str, dict[str, Any]]) -> None:
    """Best times and ratios; the first call stands alone only where it was too long to be repeated."""
    for record in records.values():
        if "first_call" in record:
            record["best"] = min(record["times"] or [record["first_call"]])
    own = records.get("tangentlab", {}).get("best")
    for record in records.values():
        if own and "best" in record:
            record["ratio_to_tangentlab"] = record["best"] / own


def _compare(job: Job, records: dict[str, dict[str, Any]], files: dict[str, Path]) -> None:
    """Deviation of each system's values from the reference's, and whether they agree."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, file in files.items():
        with np.load(file) as data:
            arrays[name] = {key: data[key] for key in data.files}
        file.unlink()
    comparable = [name for name in arrays if SYSTEMS[name].can(job)]
    if not comparable:
        return
    reference = next((name for name in REFERENCES if name in comparable), comparable[0])
    records[reference]["reference"] = True
    for name in comparable:
        if name == reference:
            continue
        expected = arrays[reference]
        deviations = {key: deviation(arrays[name].get(key, np.array([])), expected[key]) for key in expected}
        usual = LOOSE.get((name, job.kind), TOLERANCE[job.kind])
        limits = {key: LOOSE.get((job.kind, key), usual) for key in deviations}
        records[name] |= {"compared_with": reference, "deviations": deviations}
        records[name]["agrees"] = all(deviations[key] <= limits[key] for key in deviations)


def _status(record: dict[str, Any]) -> str:
    if "error" in record:
        return f"[red]{record['error']}[/]"
    return f"first call {record['first_call']:.3g} s, peak {record['peak_bytes'] / 2**20:.0f} MiB"
