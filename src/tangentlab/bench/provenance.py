"""Where numbers come from: version, commit and libraries, without anything that identifies a person or a machine."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import tangentlab


def provenance() -> dict[str, Any]:
    """Version, git commit (with a mark when files were changed after it), libraries, and the time in UTC."""
    return {
        "tangentlab": tangentlab.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """The commit of the source tree, "+changes" after it when tracked sources differ, or "unknown" outside git."""
    folder = Path(tangentlab.__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    if head is None or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"
    return f"{head}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else head


def command_line(*words: str) -> str:
    """A command as one would type it."""
    return " ".join(["tangentlab", *words])


def peak_memory_mb() -> float | None:
    """The largest resident memory of this process so far, None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _git(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
