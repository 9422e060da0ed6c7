"""Cases in processes of their own: one that ends its process, or never ends, is an outcome like any other."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

Task = Any
"""A case number, or a record to replay."""

SECONDS = 120.0
CASES_PER_PROCESS = 3000


def serve(connection: Connection, seed: int) -> None:
    """The loop of a worker: a task comes in, a notice and an outcome go out."""
    import torch

    from tests.trial.case import replay, run
    from tests.trial.choices import NoSuchCase

    torch.set_num_threads(1)

    def notice(outcome: Any) -> None:
        connection.send(("begun", outcome.to_dict()))

    connection.send(("ready", {}))
    while (task := connection.recv()) is not None:
        start = time.perf_counter()
        try:
            outcome = run(seed, task, notice) if isinstance(task, int) else replay(task, None, notice)
            result = outcome.to_dict()
        except NoSuchCase as error:
            result = {"outcome": "no such case", "detail": str(error)}
        connection.send(("done", result | {"seconds": round(time.perf_counter() - start, 4)}))


@dataclass
class Worker:
    """A process and the task it has in hand."""

    serve: Callable[[Connection, int], None]
    seed: int
    task: Task = None
    begun: dict[str, Any] = field(default_factory=dict)
    since: float = 0.0
    served: int = 0

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=self.serve, args=(other, self.seed), daemon=True)
        self.process.start()
        other.close()

    def give(self, task: Task) -> None:
        """Start a task."""
        self.task, self.begun, self.since = task, {}, time.monotonic()
        self.served += 1
        self.connection.send(task)

    def end(self) -> None:
        """Stop the process, at once."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Workshop:
    """Some workers. A context manager; nothing is left running after it."""

    def __init__(
        self, jobs: int, seed: int = 0, seconds: float = SECONDS, serve: Callable[[Connection, int], None] = serve
    ) -> None:
        self.seed, self.seconds, self.serve = seed, seconds, serve
        self.workers = [Worker(serve, seed) for _ in range(jobs)]

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *error: Any) -> None:
        for worker in self.workers:
            worker.end()

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """(task, outcome) as they come."""
        waiting = iter(tasks)
        idle, busy = list(self.workers), []
        while True:
            while idle and (task := next(waiting, None)) is not None:
                worker = self._renewed(idle.pop())
                worker.give(task)
                busy.append(worker)
            if not busy:
                return
            wait([worker.connection for worker in busy], timeout=1.0)
            for worker in list(busy):
                result = self._result(worker)
                if result is None:
                    continue
                busy.remove(worker)
                idle.append(worker if worker.process.is_alive() else self._replaced(worker))
                yield worker.task, result

    def one(self, task: Task) -> dict[str, Any]:
        """The outcome of a single task."""
        return next(self.outcomes([task]))[1]

    def _result(self, worker: Worker) -> dict[str, Any] | None:
        """The outcome of the task in hand, or None while there is none."""
        try:
            while worker.connection.poll():
                what, value = worker.connection.recv()
                if what == "done":
                    return value
                worker.begun, worker.since = value, time.monotonic()  # the start of a process does not count
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return self._lost(worker, "crash", f"the process ended with {worker.process.exitcode}")
        if time.monotonic() - worker.since > self.seconds:
            worker.end()
            return self._lost(worker, "endless", f"nothing after {self.seconds:.0f} s")
        return None

    @staticmethod
    def _lost(worker: Worker, outcome: str, detail: str) -> dict[str, Any]:
        seconds = round(time.monotonic() - worker.since, 4)
        return {"operation": "", "kinds": [], **worker.begun, "outcome": outcome, "detail": detail, "seconds": seconds}

    def _renewed(self, worker: Worker) -> Worker:
        """A fresh process after many cases."""
        if worker.served < CASES_PER_PROCESS:
            return worker
        worker.end()
        return self._replaced(worker)

    def _replaced(self, worker: Worker) -> Worker:
        fresh = Worker(self.serve, self.seed)
        self.workers[self.workers.index(worker)] = fresh
        return fresh
