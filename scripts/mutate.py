"""Mutation tester: makes small faults in the code, one at a time, and names those that no test sees.

`python scripts/mutate.py --count 200 --seed 0 --packages engine layers objects optim linalg` takes the first 200 faults
in the random order of the seed, leaves out those listed in scripts/equivalent_mutants.yaml with the reason why they
change no result, and runs for each the tests that execute the line, the fastest first, in a copy of the tree. Which test
executes which line is recorded once (some 10 minutes); `--record tests/linalg` does it again for tests that were added
or changed. A run that is stopped goes on where it was; `--again` tries the survivors once more, after tests were added
or after a run with `--quick`; `--save` writes the figures to results/trial/mutants.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.mutant_figures import PLACE, equivalents, figures, kind_of, table  # noqa: E402
from scripts.mutant_runs import Bench, Codes, Recorder, Selected, exchanged, run_pytest  # noqa: E402
from scripts.mutants import Mutant, mutants_in  # noqa: E402

COPIED = "src tests scripts docs benchmarks examples pyproject.toml README.md DEVELOPERS.md CHANGELOG.md".split()
PACKAGES = ["engine", "layers", "objects", "optim", "linalg", "parallel"]
TESTS = [
    *(f"tests/{name}" for name in ("engine", "layers", "objects", "optim", "linalg")),
    *(f"tests/{name}" for name in ("metrics", "theorems", "linearized", "alignment")),
    *(f"tests/test_{name}.py" for name in ("kernels", "known_mistakes", "representation_tables", "generators")),
]
OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--tb=short"]
HEAVY = ("torch", "scipy.linalg", "sklearn.linear_model", "hypothesis", "numpy.testing", "matplotlib.figure")
"""Imported before the test processes are forked, once."""


Runner = Callable[[set[str]], int]


class Laboratory:
    """The copy of the tree, the recorded tests and the journal, in one folder."""

    def __init__(self, folder: Path, job: int = 0) -> None:
        self.map, self.journal, own = folder / "map.json", folder / "journal.jsonl", folder / f"job{job}"
        self.tree, self.note, self.log, self.temporary = (own / name for name in ("tree", "last", "log", "temporary"))
        self.source = self.tree / "src" / "tangentlab"
        self.clock = int(time.time()) - 10**6
        shutil.rmtree(self.tree, ignore_errors=True)
        self.tree.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (ROOT / name).exists():
                shutil.copy2(ROOT / name, self.tree / name)
        for name in HEAVY:
            importlib.import_module(name)

    def pytest(self, arguments: list[str], plugin: object) -> int:
        """Runs pytest on the copy; its exit code, or minus the signal that ended it."""
        return run_pytest(self.tree, self.log, [*arguments, f"--basetemp={self.temporary}"], plugin)

    def record(self, paths: list[str]) -> None:
        """Which test executes which lines, merged into what is known."""
        known = self.recorded()
        for path in paths:
            out, start = self.note.with_suffix(".json"), time.time()
            options = [one for one in OPTIONS if one != "-x"]
            if self.pytest([path, *options], Recorder(self.source, out)) not in (0, 1):
                sys.exit(f"Recording {path} failed:\n{self.log.read_text()[-3000:]}")
            found = json.loads(out.read_text())
            known = {name: test for name, test in known.items() if not name.startswith(path)} | found
            self.map.write_text(json.dumps(_shortened(known)))
            print(f"recorded {path}: {len(found)} tests in {time.time() - start:.0f} s", flush=True)
            wrong = [line for line in self.log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
            print("\n".join([f"{len(wrong)} fail without any fault", *wrong[:5]][: 6 if wrong else 0]))

    def recorded(self) -> dict[str, dict[str, Any]]:
        """Seconds and lines by test."""
        if not self.map.exists():
            return {}
        stored = json.loads(self.map.read_text())
        lines = stored["lines"]
        return {name: test | {"lines": [lines[k] for k in test["lines"]]} for name, test in stored["tests"].items()}

    def load(self) -> None:
        """Reads the map, turned around: from lines to tests."""
        tests = self.recorded()
        self.seconds = {name: test["seconds"] for name, test in tests.items()}
        self.sound = set[str]()  # tests seen to pass without a fault
        self.tests: dict[str, set[str]] = {}
        self.of_file: dict[str, set[str]] = {}
        for name, test in tests.items():
            for line in test["lines"]:
                self.tests.setdefault(line, set()).add(name)
                self.of_file.setdefault(line.partition(":")[0], set()).add(name)

    def chosen(self, mutant: Mutant, quick: bool) -> Iterator[set[str]]:
        """Tests that can see a fault, in portions: some of the package, some others, then (unless quick) all of them.

        Last come those of the same files, which may share results that were made once, and those that use processes.
        """
        texts = (self.source / mutant.path).read_text().splitlines()
        keys = {f"{mutant.path}:{texts[line - 1].strip()}" for line in range(mutant.lines[0], mutant.lines[1] + 1)}
        naming = self.mentioning(mutant.path)  # which see what a function does that runs at import
        direct = set().union(*(self.tests.get(key, ()) for key in keys)) or self.of_file.get(mutant.path) or naming
        own, some = f"tests/{mutant.path.split('/')[0]}/", _some_variants(direct | naming)
        near = {name for name in direct if name.startswith(own)}
        yield some & near
        yield some - near
        if not quick:
            files = {name.partition("::")[0] for name in near}
            files |= {file for file in self.with_processes() if file.startswith(own)}
            yield (direct | naming | {name for name in self.seconds if name.partition("::")[0] in files}) - some

    def mentioning(self, path: str) -> set[str]:
        """Tests in files that name a module, of which some may run at import only."""
        stem = Path(path).stem
        module = re.compile(rf"\b{path[:-3].replace('/', '.')}\b|\bimport .*\b{stem}\b")
        files = {name.partition("::")[0] for name in self.seconds}
        naming = {file for file in files if module.search((self.tree / file).read_text())}
        return {name for name in self.seconds if name.partition("::")[0] in naming}

    def with_processes(self) -> set[str]:
        """Test files that start processes, which the recorder does not follow."""
        files = {name.partition("::")[0] for name in self.seconds}
        return {file for file in files if re.search(r"\bspawn\(", (self.tree / file).read_text())}

    def changed(self, mutant: Mutant) -> Codes | None:
        """The functions to exchange for a fault, or None if it acts at import."""
        path = self.source / mutant.path
        source = path.read_text()
        return exchanged(source, mutant.applied(source), path)

    def judge_all(self, mutants: list[Mutant], quick: bool, fresh: bool) -> None:
        """Runs the tests against faults: those inside functions in forks of one process, the others in new ones.

        What survives the first may act at import all the same, in a function that is called then, and is tried in the other.
        """
        inside = [] if fresh else [mutant for mutant in mutants if self.changed(mutant) is not None]

        def work(bench: Bench) -> None:
            for mutant in inside:
                codes = self.changed(mutant)
                assert codes is not None
                self.judge(mutant, quick, partial(bench.run, codes=codes), partial(bench.run, codes={}))

        if inside:
            files = sorted({name.partition("::")[0] for name in self.seconds})
            self.pytest([*files, *OPTIONS], Bench(self.seconds, self.note, self.source, work))
        verdicts, done = self.judged(), {mutant.key for mutant in inside}
        for mutant in mutants:
            if mutant.key in done and verdicts[mutant.key]["verdict"] != "survived":
                continue
            self.judge(mutant, quick, self.collected, self.collected)

    def collected(self, names: set[str]) -> int:
        """Runs tests in a new process."""
        files = sorted({name.partition("::")[0] for name in names})
        return self.pytest([*files, *OPTIONS], Selected({name: self.seconds[name] for name in names}, self.note))

    def judge(self, mutant: Mutant, quick: bool, run: Runner, plain: Runner) -> None:
        """Runs the tests against one fault; one that fails is run once more without, and if it fails counts no more."""
        path, start, verdict, count = self.source / mutant.path, time.time(), "survived", 0
        source, portions = path.read_text(), list(self.chosen(mutant, quick))
        while portions and verdict == "survived":
            names = portions.pop(0) & set(self.seconds)
            self.note.write_text("(collection)")
            try:
                self.write(path, mutant.applied(source))
                code = run(names) if names else 0
            finally:
                self.write(path, source)
            count += len(names)
            by = self.note.read_text()
            if code not in (0, 5):
                verdict = "timeout" if code in (-signal.SIGALRM, -signal.SIGPROF) else "killed"
                if by in self.seconds and by not in self.sound:
                    if plain({by}) == 0:
                        self.sound.add(by)
                    else:
                        del self.seconds[by]
                        portions, verdict = [names, *portions], "survived"
        by = by if verdict != "survived" else f"{count} tests"
        entry = {"key": mutant.key, "verdict": verdict, "by": by, "seconds": round(time.time() - start, 1)}
        with self.journal.open("a") as journal:
            journal.write(json.dumps(entry) + "\n")

    def write(self, path: Path, source: str) -> None:
        """Writes a file of the copy with a time of its own: compiled files are known by the second of the source."""
        self.clock += 10
        path.write_text(source)
        os.utime(path, (self.clock, self.clock))

    def judged(self) -> dict[str, dict[str, Any]]:
        """The journal: the last verdict of each fault."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return {entry["key"]: entry for entry in map(json.loads, lines)}


def _some_variants(names: set[str], most: int = 5) -> set[str]:
    """At most five of the variants of each parametrized test."""
    families: dict[str, list[str]] = {}
    for name in sorted(names):
        families.setdefault(name.partition("[")[0], []).append(name)
    return {name for family in families.values() for name in family[:: -(-len(family) // most)]}


def _shortened(tests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The same with every line written once."""
    places = {line: k for k, line in enumerate(sorted({line for test in tests.values() for line in test["lines"]}))}
    short = {name: test | {"lines": [places[line] for line in test["lines"]]} for name, test in tests.items()}
    return {"lines": list(places), "tests": short}


def judge_side_by_side(laboratories: list[Laboratory], mutants: list[Mutant], quick: bool, fresh: bool) -> None:
    """One process for each copy of the tree, each with its part of the faults."""
    children = []
    for k, laboratory in enumerate(laboratories):
        child = os.fork()
        if not child:
            try:
                laboratory.judge_all(mutants[k :: len(laboratories)], quick, fresh)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def select(mutants: list[Mutant], count: int, seed: int) -> tuple[list[Mutant], list[tuple[Mutant, str]]]:
    """The first faults in the random order of a seed, and those left out on the way because they change no result."""
    listed, left_out, chosen = equivalents(), list[tuple[Mutant, str]](), list[Mutant]()
    for mutant in sorted(mutants, key=lambda mutant: mutant.rank(seed)):
        kind = kind_of(mutant, listed)
        if kind:
            left_out.append((mutant, kind))
        else:
            chosen.append(mutant)
        if len(chosen) == count:
            break
    return chosen, left_out


def arguments() -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="faults to judge, those listed as equivalent left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="folders or modules of the package")
    parser.add_argument("--record", nargs="*", metavar="TESTS", help="record (these) tests again, then stop")
    parser.add_argument("--again", action="store_true", help="judge survivors of earlier runs once more")
    parser.add_argument("--quick", action="store_true", help="at most five variants of a test: some survive too many")
    parser.add_argument("--fresh", action="store_true", help="collect the tests again for every fault")
    parser.add_argument("--jobs", type=int, default=1, help="processes that judge side by side")
    parser.add_argument("--save", action="store_true", help="write results/trial/mutants.json")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutation", help="where the copies and the journal are")
    return parser.parse_args()


def main() -> None:
    """The command."""
    options = arguments()
    laboratories = [Laboratory(options.folder.resolve(), job) for job in range(options.jobs)]
    first = laboratories[0]
    if options.record is not None or not first.map.exists():
        first.record(options.record or TESTS)
        if options.record is not None:
            return
    for laboratory in laboratories:
        laboratory.load()
    chosen, left_out = select(mutants_in(first.source, options.packages), options.count, options.seed)
    verdicts = first.judged()
    again = {key for key, entry in verdicts.items() if options.again and entry["verdict"] == "survived"}
    waiting = [mutant for mutant in chosen if mutant.key not in verdicts or mutant.key in again]
    judge_side_by_side(laboratories, waiting, options.quick, options.fresh)
    verdicts = first.judged()
    for mutant in chosen:
        if verdicts[mutant.key]["verdict"] == "survived":
            print(f"\nsurvived {verdicts[mutant.key]['by']}\n{mutant.diff((first.source / mutant.path).read_text())}")
    found = figures(options.seed, chosen, verdicts, left_out)
    print(f"\nseed {options.seed}\n{table(found)}")
    if options.save:
        PLACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
