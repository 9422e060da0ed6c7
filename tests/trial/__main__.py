"""The trial: `python -m tests.trial --cases 100000 --jobs 2`.

Cases are numbered, every number is one case, and what was found is kept in a journal: a trial that was stopped goes on when it
is started again. A failure is shrunk to the smallest record that fails in the same way; `--case 17` runs one case here,
`--record '{...}'` one record. `--again` runs the cases that failed once more after they were mended; the figures name them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.trial import summary
from tests.trial.case import FAILURES, Outcome, replay, run
from tests.trial.journal import ROOT, Journal
from tests.trial.shrink import shrunk
from tests.trial.workshop import Workshop


def main() -> int:
    options = _options()
    if options.case is not None or options.record:
        outcome = run(options.seed, options.case) if options.case is not None else replay(json.loads(options.record))
        _tell(outcome)
        return int(outcome.failed)
    path = options.journal or ROOT / "runs" / "trial" / f"seed-{options.seed}.jsonl"
    journal = Journal(path, options.seed, options.again)
    numbers = range(options.first, options.first + options.cases)
    with Workshop(options.jobs, options.seed) as workshop:
        _go(workshop, journal, numbers, options.again)
        failures = [journal.done[n] for n in numbers if journal.done[n]["outcome"] in FAILURES]
        for one in failures[: options.shrink]:
            _reproduce(workshop, one)
    result = summary.summarized([journal.done[n] for n in numbers], options.seed, journal.head["sources"])
    print(summary.table(result))
    if options.save:
        summary.save(result)
    return int(bool(failures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.trial", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another trial")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--shrink", type=int, default=10, help="how many failures to shrink")
    parser.add_argument(
        "--save", action="store_true", help="write results/trial/generated.json and the table of docs/models.md"
    )
    parser.add_argument("--journal", type=Path, help="where to keep what was found; runs/trial/ by default")
    parser.add_argument(
        "--again", action="store_true", help="run what failed again on the sources as they are now, and say so"
    )
    parser.add_argument("--case", type=int, help="run this case alone, in this process")
    parser.add_argument("--record", help="run the case of this record alone, in this process")
    return parser.parse_args()


def _go(workshop: Workshop, journal: Journal, numbers: range, again: bool) -> None:
    """All cases that the journal does not have, or that failed where those are to be run again."""
    left = [n for n in numbers if n not in journal.done or again and journal.done[n]["outcome"] in FAILURES]
    start = last = time.monotonic()
    for count, (number, outcome) in enumerate(workshop.outcomes(left), 1):
        journal.add(number, outcome)
        if outcome["outcome"] in FAILURES:
            print(f"{number}: {outcome['outcome']}, {outcome['operation']}, {outcome['detail'][:200]}", flush=True)
        if time.monotonic() - last > 60:
            last = time.monotonic()
            rest = (last - start) / count * (len(left) - count) / 60
            print(f"{count:,} of {len(left):,} cases, about {rest:.0f} minutes to go", file=sys.stderr, flush=True)


def _reproduce(workshop: Workshop, failure: dict[str, Any]) -> None:
    """Print the smallest record that fails like this one."""

    def alike(record: dict[str, Any]) -> bool:
        found = workshop.one(record)
        same = found["outcome"] == failure["outcome"]
        return same and (found["outcome"] != "foreign exception" or _head(found) == _head(failure))

    record = shrunk(failure["record"], alike) if failure.get("record") else {}
    found = workshop.one(record) if record else failure
    print(f"\ncase {failure['case']}: {found['outcome']}, {found['detail'][:300]}")
    print(f"  python -m tests.trial --record '{json.dumps(record)}'", flush=True)


def _head(outcome: dict[str, Any]) -> str:
    return outcome["detail"].split(":")[0]


def _tell(outcome: Outcome) -> None:
    """Everything about one case."""
    print(json.dumps(outcome.record, indent=1))
    print(f"{outcome.outcome}: {outcome.detail}")


if __name__ == "__main__":
    sys.exit(main())
