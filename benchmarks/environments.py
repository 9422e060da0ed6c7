"""The peers' own environments: created once below the cache folder, reused while their requirements stay the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"


class EnvironmentFailed(RuntimeError):
    """A peer could not be installed; the run goes on without it."""


def cache_folder() -> Path:
    """The cache folder, which hides itself from git."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    return CACHE


def _files(name: str) -> list[tuple[Path, list[str]]]:
    """Requirement files of an environment with options for pip; a `.nodeps` file is installed without dependencies."""
    plain = REQUIREMENTS / f"{name}.txt"
    bare = REQUIREMENTS / f"{name}.nodeps.txt"
    return [(plain, [])] + ([(bare, ["--no-deps"])] if bare.exists() else [])


def _stamp(name: str) -> str:
    """Changes with the requirements and with the interpreter."""
    texts = "".join(path.read_text() for path, _ in _files(name))
    return hashlib.sha256(f"{sys.version}{texts}".encode()).hexdigest()


def python_of(name: str | None, console: Console) -> str:
    """The interpreter of an environment, installed if need be.

    Raises:
        EnvironmentFailed: with the last line that pip said.
    """
    if name is None:
        return sys.executable
    folder = cache_folder() / name
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python, stamp = scripts / "python", folder / "installed"
    if stamp.exists() and stamp.read_text() == _stamp(name):
        return str(python)
    console.print(f"setting up [bold]{name}[/] (once; kept in .bench/)")
    _call([sys.executable, "-m", "venv", "--clear", str(folder)])
    for path, options in _files(name):
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _call([*pip, *options, "-r", str(path)])
    stamp.write_text(_stamp(name))
    return str(python)


def _call(command: list[str]) -> None:
    """Run a set-up command; no peer may bring gigabytes because of a loose pin, so requirements name torch exactly."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip().startswith("ERROR")]
        raise EnvironmentFailed((lines or ["installation failed"])[-1][:200])
