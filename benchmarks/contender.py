"""One system at work on one job: its process, spoken to in JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT, cache_folder
from benchmarks.systems import SYSTEMS


class ContenderFailed(RuntimeError):
    """The system raised, died or took too long; the message says which."""


def _worker_environment(threads: int) -> dict[str, str]:
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # No preallocation and no foreign accelerators: every system works on the same cores.
    settings = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return {**os.environ, **dict.fromkeys(names, count), **settings}


class Contender:
    """A worker process. Use as a context manager; leaving it ends the process."""

    def __init__(self, system: str, python: str, threads: int) -> None:
        self.system, self.threads = system, threads
        logs = cache_folder() / "logs"
        logs.mkdir(exist_ok=True)
        self._log: Path = logs / f"{system}.log"
        with self._log.open("a") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [python, "-m", f"benchmarks.workers.{SYSTEMS[system].worker}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=_worker_environment(threads),
            )
        # If memory runs out, the kernel should choose this process rather than the driver.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("900")

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def send(self, command: str, **message: Any) -> None:
        """Write one message."""
        assert self._process.stdin is not None
        line = json.dumps({"command": command, "threads": self.threads, **message}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderFailed(self._obituary()) from None

    def receive(self, timeout: float) -> dict[str, Any]:
        """Read one answer.

        Raises:
            ContenderFailed: the worker reported an error, died, or gave no answer in time.
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            self._process.kill()
            raise ContenderFailed(f"no answer within {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailed(self._obituary())
        answer = json.loads(line)
        if not answer["ok"]:
            raise ContenderFailed(answer["error"].replace(f"{ROOT}/", ""))
        return answer

    def ask(self, command: str, timeout: float, **message: Any) -> dict[str, Any]:
        """Send one message and wait for the answer."""
        self.send(command, **message)
        return self.receive(timeout)

    def _obituary(self) -> str:
        code = self._process.wait()
        if code == -9:
            return "killed (out of memory?)"
        said = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        last = [line for line in said.splitlines() if line.strip()][-1:]
        return f"ended with code {code}: {' '.join(last)[:200]}".replace(f"{ROOT}/", "")
