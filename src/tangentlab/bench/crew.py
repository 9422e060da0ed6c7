"""The seeds of a run as parallel single-thread processes, seen from the process that started them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tangentlab.bench.errors import RunError
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.lab import Event
from tangentlab.bench.worker import DONE, GRACE_SECONDS, STOPPED
from tangentlab.files import disk_errors

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass
class Crew:
    """Runs seeds, at most `size` at a time, and hands their events on.

    Interrupting it (Ctrl-C) asks the processes to write a checkpoint and leave, and raises KeyboardInterrupt again when
    they have. They stop by themselves too when this process dies, however it dies.
    """

    folder: RunFolder
    size: int
    report: Callable[[Event], None] = lambda event: None
    _running: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    _events: queue.Queue[Event] = field(default_factory=queue.Queue)

    def run(self, seeds: Sequence[int]) -> dict[int, str]:
        """Run all `seeds`; returns those that failed, with the error's own words or the end of what they printed."""
        waiting, failed = list(seeds), {}
        problems: dict[int, str] = {}
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self.size:
                    self._start(waiting.pop(0))
                event = self._next_event()
                if event is None:
                    continue
                if "problem" in event:
                    problems[event["seed"]] = event["problem"]
                    continue
                if event.get("ended") is None:
                    self.report(event)
                    continue
                code = self._running.pop(event["seed"]).wait()
                self.report({**event, "code": code})
                if code == STOPPED:
                    raise RunError(f"Seed {event['seed']} was stopped from outside.")
                if code != DONE:
                    failed[event["seed"]] = problems.get(event["seed"]) or self._epitaph(event["seed"], code)
        finally:
            self._dismiss()
        return failed

    def _epitaph(self, seed: int, code: int, lines: int = 30) -> str:
        """Why a seed failed: the signal that killed it, or the end of what it printed."""
        if code < 0:
            return f"the process was killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
        log = self.folder.seed_folder(seed) / "log.txt"
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _start(self, seed: int) -> None:
        log = self.folder.seed_folder(seed) / "log.txt"
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "tangentlab.bench.worker", str(self.folder.path), str(seed)]
        with disk_errors(log):
            errors = log.open("a")
        with errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent, which then asks for a checkpoint
            )
        self._running[seed] = process
        threading.Thread(target=self._listen, args=(seed, process), daemon=True).start()

    def _listen(self, seed: int, process: subprocess.Popen[str]) -> None:
        """Put the events of one process into the queue, and that it has ended at the end."""
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._events.put(event)
        self._events.put({"seed": seed, "ended": True})

    def _next_event(self) -> Event | None:
        """The next event; None after a moment without any, so that Ctrl-C is noticed on every system."""
        try:
            return self._events.get(timeout=0.2)
        except queue.Empty:
            return None

    def _dismiss(self) -> None:
        """Ask every process that is left to stop, and end it when it does not."""
        for process in self._running.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in self._running.values():
            try:
                process.wait(timeout=GRACE_SECONDS + 5)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
                process.wait()
        self._running.clear()
