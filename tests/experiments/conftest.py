"""What the tests of the bench share: the toy experiments, and a bench in a temporary folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tangentlab.bench.registry import ENVIRONMENT
from tangentlab.bench.runner import Outcome, execute, make_config
from tangentlab.experiments import find

ROOT = Path(__file__).parents[2]
TOYS = "tests.experiments.toys"


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy experiments are registered, here and in processes started from here."""
    monkeypatch.setenv(ENVIRONMENT, TOYS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    monkeypatch.setenv("TANGENTLAB_OFFLINE", "1")


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Outcome]:
    """``bench("toy-claims", scale="smoke", forget=True)`` runs an experiment in this process, in a fresh folder."""

    def run(name: str, scale: str = "smoke", **options: Any) -> Outcome:
        kind = find(name)
        own = {key: options.pop(key) for key in ("seeds", "first_seed", "max_steps") if key in options}
        how = {key: options.pop(key) for key in ("resume", "workers", "report") if key in options}
        inline = options.pop("inline", True)
        config = make_config(kind.at(scale, **options), scale, **own)
        return execute(config, tmp_path / "runs", inline=inline, **how)

    return run


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """``command("run", "toy-training")`` starts the real command in a process of its own, in a fresh folder."""

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tangentlab.cli", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start
