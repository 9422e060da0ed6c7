"""Mutation tester: makes small faults in the code, one at a time, and names those that no test sees.

`python scripts/mutate.py --count 200 --seed 0 --packages engine layers objects optim linalg` takes the first 200 faults
in the random order of the seed, leaves out those listed in scripts/equivalent_mutants.yaml with the reason why they
change no result, and runs for each the tests that execute the line, the fastest first, in a copy of the tree. Which test
executes which line is recorded once (some 20 minutes); `--record tests/linalg` does it again for tests that were added
or changed. A run that is stopped goes on where it was; `--again` tries the survivors once more, after tests were added
or after a run with `--quick`; `--save` writes the figures to results/trial/mutants.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.mutant_figures import PLACE, equivalents, figures, kind_of, table  # noqa: E402
from scripts.mutants import Mutant, mutants_in  # noqa: E402

COPIED = "src tests scripts docs benchmarks examples pyproject.toml README.md DEVELOPERS.md CHANGELOG.md".split()
PACKAGES = ["engine", "layers", "objects", "optim", "linalg", "parallel"]
TESTS = [
    *(f"tests/{name}" for name in (*PACKAGES, "metrics", "theorems", "linearized", "alignment")),
    *(f"tests/test_{name}.py" for name in ("kernels", "known_mistakes", "representation_tables", "generators")),
]
OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--tb=short"]
MEMORY = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes of address space of a test process, beyond what there is, so that tests of the budget see no limit."""
HEAVY = ("torch", "scipy.linalg", "sklearn.linear_model", "hypothesis", "numpy.testing", "matplotlib.figure")
"""Imported before the test processes are forked, once."""


class Recorder:
    """Pytest plugin: seconds and lines of the package that each passing test executes, the lines by their text."""

    def __init__(self, source: Path, out: Path) -> None:
        self.source, self.out = str(source) + os.sep, out
        self.seen: set[tuple[str, int]] = set()
        self.tests: dict[str, dict[str, Any]] = {}
        self.texts: dict[str, list[str]] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        return self.line if file.startswith(self.source) and file.endswith(".py") else None

    def line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        """Called by the interpreter before each line of the package."""
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Runs one test under the tracer."""
        self.seen, start = set(), time.perf_counter()
        self.tests[item.nodeid] = {}
        threading.settrace(self)
        sys.settrace(self)
        try:
            result = yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        if item.nodeid in self.tests:
            lines = sorted({f"{file[len(self.source) :]}:{self.text(file, line)}" for file, line in self.seen})
            self.tests[item.nodeid] = {"seconds": round(time.perf_counter() - start, 3), "lines": lines}
        return result

    def text(self, file: str, line: int) -> str:
        """A line's text, which is its name: it outlives edits elsewhere in the file."""
        if file not in self.texts:
            self.texts[file] = Path(file).read_text().splitlines()
        return self.texts[file][line - 1].strip()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails or is skipped without a fault can tell of none."""
        if not report.passed:
            self.tests.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        """Writes what was seen."""
        self.out.write_text(json.dumps({name: test for name, test in self.tests.items() if test}))


class Selected:
    """Pytest plugin: the chosen tests in the given order, each with a time limit that ends the process."""

    def __init__(self, seconds: dict[str, float], out: Path) -> None:
        self.seconds, self.out = seconds, out

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the chosen ones, the fastest first."""
        chosen = [item for item in items if item.nodeid in self.seconds]
        items[:] = sorted(chosen, key=lambda item: self.seconds[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes the test, and sets its alarm: in processor time, since others may slow or pause it, and once in real time."""
        self.out.write_text(nodeid)
        limit = 60 + 20 * self.seconds[nodeid]
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(int(30 * limit))


class Laboratory:
    """The copy of the tree, the recorded tests and the journal, in one folder."""

    def __init__(self, folder: Path, packages: list[str]) -> None:
        self.tree, self.map, self.journal = folder / "tree", folder / "map.json", folder / "journal.jsonl"
        self.source, self.note, self.log = self.tree / "src" / "tangentlab", folder / "last", folder / "log"
        self.packages = packages
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
        """Runs pytest in a forked process; its exit code, or minus the signal that ended it."""
        child = os.fork()
        if not child:
            os.setsid()
            os.chdir(self.tree)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
            with suppress(OSError):  # a fault in a size must end this process, no other
                Path("/proc/self/oom_score_adj").write_text("1000")
            os.environ |= {"PYTHONPATH": f"{self.tree / 'src'}{os.pathsep}{self.tree}", "OMP_NUM_THREADS": "1"}
            sys.path[:0] = [str(self.tree / "src"), str(self.tree)]
            for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
                del sys.modules[name]
            with self.log.open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os._exit(int(pytest.main(arguments, plugins=[plugin])))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            os.killpg(child, signal.SIGKILL)  # what it started itself
        except ProcessLookupError:
            pass
        return code

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
        direct = set().union(*(self.tests.get(key, ()) for key in keys))
        direct = direct or self.of_file.get(mutant.path) or self.mentioning(mutant.path)  # run at import, or new
        own, some = f"tests/{mutant.path.split('/')[0]}/", _some_variants(direct)
        near = {name for name in direct if name.startswith(own)}
        yield some & near
        yield some - near
        if not quick:
            files = {name.partition("::")[0] for name in near}
            files |= {file for file in self.with_processes() if file.startswith(own)}
            yield (direct | {name for name in self.seconds if name.partition("::")[0] in files}) - some

    def mentioning(self, path: str) -> set[str]:
        """Tests in files that name a module of which nothing runs but at import."""
        module = re.compile(rf"\b{Path(path).stem}\b")
        files = {name.partition("::")[0] for name in self.seconds}
        naming = {file for file in files if module.search((self.tree / file).read_text())}
        return {name for name in self.seconds if name.partition("::")[0] in naming}

    def with_processes(self) -> set[str]:
        """Test files that start processes, which the recorder does not follow."""
        files = {name.partition("::")[0] for name in self.seconds}
        return {file for file in files if re.search(r"\bspawn\(", (self.tree / file).read_text())}

    def judge(self, mutant: Mutant, quick: bool) -> dict[str, Any]:
        """Runs the tests against one fault."""
        path, start, count = self.source / mutant.path, time.time(), 0
        source, portions = path.read_text(), list(self.chosen(mutant, quick))
        self.clock += 10  # compiled files are known by the second of the source and its size
        path.write_text(mutant.applied(source))
        os.utime(path, (self.clock, self.clock))
        verdict = "survived"
        try:
            for names in portions:
                if names:
                    self.note.write_text("(collection)")
                    files = sorted({name.partition("::")[0] for name in names})
                    code = self.pytest([*files, *OPTIONS], Selected({n: self.seconds[n] for n in names}, self.note))
                    count += len(names)
                    if code not in (0, 5):
                        verdict = "timeout" if code in (-signal.SIGALRM, -signal.SIGPROF) else "killed"
                        break
        finally:
            path.write_text(source)
            os.utime(path, (self.clock + 5, self.clock + 5))
        by = self.note.read_text() if verdict != "survived" else f"{count} tests"
        return {"key": mutant.key, "verdict": verdict, "by": by, "seconds": round(time.time() - start, 1)}

    def judged(self) -> dict[str, dict[str, Any]]:
        """The journal: the last verdict of each fault."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return {entry["key"]: entry for entry in map(json.loads, lines)}


def _some_variants(names: set[str], most: int = 10) -> set[str]:
    """At most ten of the variants of each parametrized test."""
    families: dict[str, list[str]] = {}
    for name in sorted(names):
        families.setdefault(name.partition("[")[0], []).append(name)
    return {name for family in families.values() for name in family[:: -(-len(family) // most)]}


def _shortened(tests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The same with every line written once."""
    places = {line: k for k, line in enumerate(sorted({line for test in tests.values() for line in test["lines"]}))}
    short = {name: test | {"lines": [places[line] for line in test["lines"]]} for name, test in tests.items()}
    return {"lines": list(places), "tests": short}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="faults to judge, those listed as equivalent left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="folders or modules of the package")
    parser.add_argument("--record", nargs="*", metavar="TESTS", help="record (these) tests again, then stop")
    parser.add_argument("--again", action="store_true", help="judge survivors of earlier runs once more")
    parser.add_argument(
        "--quick", action="store_true", help="at most ten variants of a test: more survivors than there are"
    )
    parser.add_argument("--save", action="store_true", help="write results/trial/mutants.json")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutation", help="where the copy and the journal are")
    options = parser.parse_args()
    laboratory = Laboratory(options.folder.resolve(), options.packages)
    if options.record is not None or not laboratory.map.exists():
        laboratory.record(options.record or TESTS)
        if options.record is not None:
            return
    laboratory.load()
    listed, left_out, chosen = equivalents(), list[tuple[Mutant, str]](), list[Mutant]()
    root = laboratory.source
    for mutant in sorted(mutants_in(root, options.packages), key=lambda mutant: mutant.rank(options.seed)):
        kind = kind_of(mutant, listed)
        if kind:
            left_out.append((mutant, kind))
        else:
            chosen.append(mutant)
        if len(chosen) == options.count:
            break
    verdicts = laboratory.judged()
    for number, mutant in enumerate(chosen, 1):
        if mutant.key not in verdicts or (options.again and verdicts[mutant.key]["verdict"] == "survived"):
            entry = verdicts[mutant.key] = laboratory.judge(mutant, options.quick)
            with laboratory.journal.open("a") as journal:
                journal.write(json.dumps(entry) + "\n")
            print(
                f"{number}/{len(chosen)} {entry['verdict']} {entry['seconds']} s  {mutant.key}  {entry['by']}",
                flush=True,
            )
    for mutant in chosen:
        if verdicts[mutant.key]["verdict"] == "survived":
            print(f"\nsurvived {verdicts[mutant.key]['by']}\n{mutant.diff((root / mutant.path).read_text())}")
    found = figures(options.seed, chosen, verdicts, left_out)
    print(f"\nseed {options.seed}\n{table(found)}")
    if options.save:
        PLACE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
