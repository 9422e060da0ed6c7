"""The loop of a worker: JSON lines in, JSON lines out, one task per process.

A worker module maps kinds of jobs to functions `(Task) -> Prepared` in `TASKS` and calls `serve(TASKS, versions)`. Only
the standard library and numpy are needed here, so that any environment can run it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Task:
    """One job as the worker sees it: the network's name, options and weights, the inputs and labels."""

    kind: str
    net: str
    options: dict[str, Any]
    fisher: str
    variant: str
    weights: dict[str, np.ndarray]
    x: np.ndarray
    y: np.ndarray
    drawn: np.ndarray
    threads: int

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(weight.size for weight in self.weights.values())


@dataclass
class Prepared:
    """A task ready to run: `run` is timed, `values` turns its result into arrays to compare.

    `facts` are notes, asked for after the first call so that they cannot warm anything up.
    """

    run: Callable[[], Any]
    values: Callable[[Any], dict[str, np.ndarray]]
    facts: Callable[[], dict[str, Any]] = dict


def load(message: dict[str, Any]) -> Task:
    """The task that a `prepare` message describes; weights are stored in parameter order under `weight/<name>`."""
    with np.load(message["problem"]) as data:
        arrays = {key: data[key] for key in data.files}
    weights = {key.removeprefix("weight/"): value for key, value in arrays.items() if key.startswith("weight/")}
    rest = {key: message[key] for key in ("kind", "net", "options", "fisher", "variant", "threads")}
    return Task(**rest, weights=weights, x=arrays["x"], y=arrays["y"], drawn=arrays["drawn"])


def _status_bytes(field_name: str) -> int | None:
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith(f"{field_name}:"):
                return int(line.split()[1]) * 1024
    return None


@contextlib.contextmanager
def peak_memory(measured: dict[str, Any]) -> Iterator[None]:
    """Measure how far the resident memory rises above its level at entry, in bytes, into `measured['peak_bytes']`.

    On Linux the kernel's high-water mark is reset first; elsewhere the growth of `ru_maxrss` has to do.
    """
    gc.collect()
    try:
        with open("/proc/self/clear_refs", "w") as handle:
            handle.write("5")
        before, peak = _status_bytes("VmRSS"), lambda: _status_bytes("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024

        def peak() -> int:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

        before = peak()
    yield
    measured["peak_bytes"] = max((peak() or 0) - (before or 0), 0)


class _Worker:
    def __init__(self, tasks: dict[str, Callable[[Task], Prepared]], versions: Callable[[], dict[str, str]]) -> None:
        self.tasks, self.versions = tasks, versions
        self.prepared: Prepared | None = None
        self.result: Any = None

    def prepare(self, message: dict[str, Any]) -> dict[str, Any]:
        task = load(message)
        start = time.perf_counter()
        self.prepared = self.tasks[task.kind](task)
        return {"versions": self.versions(), "prepare_seconds": time.perf_counter() - start}

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.prepared is not None
        gc.collect()
        answer: dict[str, Any] = {}
        with peak_memory(answer) if message.get("memory") else contextlib.nullcontext():
            start = time.perf_counter()
            self.result = self.prepared.run()
            answer["seconds"] = time.perf_counter() - start
        if not message.get("keep"):
            self.result = None
        return answer

    def values(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.prepared is not None
        arrays = self.prepared.values(self.result)
        self.result = None
        np.savez(message["path"], **arrays)
        return {"keys": sorted(arrays), "facts": self.prepared.facts()}


def serve(tasks: dict[str, Callable[[Task], Prepared]], versions: Callable[[], dict[str, str]]) -> None:
    """Answer messages until the input ends or `quit` comes. Whatever a library prints goes to stderr."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = _Worker(tasks, versions)
    for line in sys.stdin:
        message = json.loads(line)
        command = message["command"]
        if command == "quit":
            break
        try:
            answer = {"ok": True, **getattr(worker, command)(message)}
        except Exception as error:
            traceback.print_exc()
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        channel.write(json.dumps(answer) + "\n")
