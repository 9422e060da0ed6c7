"""Runs of pytest in forked processes: one that records which test executes which line, and two that judge faults.

A fault inside a function is judged by `Bench`: a process that has collected all tests once gives its fork the functions
with the fault. A fault that acts at import (a constant of a module, a default) is judged by `Selected`, which collects again.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

MEMORY = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes of address space of a test process, beyond what there is, so that tests of the budget see no limit."""
CodeName = tuple[str, str, int, bytes]
Codes = dict[CodeName, CodeType]


def forked(run: Callable[[], int]) -> int:
    """Exit code of `run` in a forked process, or minus the signal that ended it; what it started itself is ended."""
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setsid()
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return code


def run_pytest(tree: Path, log: Path, arguments: list[str], plugin: object) -> int:
    """Runs pytest on a copy of the project in a forked process, its output in `log`."""

    def run() -> int:
        os.chdir(tree)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        with suppress(OSError):  # a fault in a size must end this process, no other
            Path("/proc/self/oom_score_adj").write_text("1000")
        os.environ |= {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "OMP_NUM_THREADS": "1"}
        sys.path[:0] = [str(tree / "src"), str(tree)]
        for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
            del sys.modules[name]
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        return int(pytest.main(arguments, plugins=[plugin]))

    return forked(run)


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


class Timed:
    """Pytest plugin: notes which test runs, and ends the process when it takes too long."""

    def __init__(self, seconds: dict[str, float], note: Path) -> None:
        self.seconds, self.note = seconds, note

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes the test, and sets its alarm: in processor time, since others may slow or pause it, and once in real time."""
        self.note.write_text(nodeid)
        limit = 20 + 10 * self.seconds[nodeid]
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(int(30 * limit))


class Selected(Timed):
    """Pytest plugin: the tests of which seconds are given, the fastest first."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the chosen ones."""
        chosen = [item for item in items if item.nodeid in self.seconds]
        items[:] = sorted(chosen, key=lambda item: self.seconds[item.nodeid])


class Bench(Timed):
    """Pytest plugin: collects all tests, then calls `work`, which may `run` some of them as often as it likes."""

    def __init__(self, seconds: dict[str, float], note: Path, source: Path, work: Callable[[Bench], None]) -> None:
        super().__init__(seconds, note)
        self.source, self.work = str(source) + os.sep, work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running the tests once."""
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        live = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
        self.functions = [one for one in live if one.__code__.co_filename.startswith(self.source)]
        del live
        gc.collect()
        gc.freeze()  # so that the forks share the memory
        self.work(self)
        return True

    def run(self, names: Iterable[str], codes: Codes) -> int:
        """Exit code of a fork that runs tests, the fastest first, up to one that fails, with some codes exchanged."""
        names = sorted(set(names) & set(self.items), key=lambda name: self.seconds[name])
        chosen = [self.items[name] for name in names]

        def run() -> int:
            for function in self.functions:
                function.__code__ = codes.get(code_name(function.__code__), function.__code__)
            for item, following in pairwise([*chosen, None]):
                assert item is not None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.session.testsfailed:
                    return 1
            return 0

        return forked(run)


def exchanged(old: str, new: str, path: Path) -> Codes | None:
    """New codes of the functions of a file that a fault changes; None if there is a change outside of functions."""
    before, after = (list(_codes(compile(text, str(path), "exec"))) for text in (old, new))
    if [_shape(code) for code in before] != [_shape(code) for code in after]:
        return None
    pairs = zip(before, after, strict=True)
    return {code_name(one): two for one, two in pairs if one.co_flags & CO_OPTIMIZED and one != two}


def code_name(code: CodeType) -> CodeName:
    """What tells a code from others of its file, whether it has run or not (which equality does not see through)."""
    return code.co_filename, code.co_qualname, code.co_firstlineno, code.co_code


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _shape(code: CodeType) -> tuple[object, ...]:
    """What must be equal for an exchange: of a function how it is bound, of a module or class all that it does."""
    if code.co_flags & CO_OPTIMIZED:
        return code.co_qualname, code.co_freevars
    return code.co_qualname, code.co_code, code.co_names, [c for c in code.co_consts if not isinstance(c, CodeType)]
