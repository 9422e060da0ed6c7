"""How much memory there is, and refusing what would not fit before computing it.

What is free is what the machine has and what control groups and the process's own limits leave. Control groups are nested,
and every one of them, up to the topmost that can be seen, may have a limit (a job of Slurm has it two levels above its
tasks). Version 2 has one tree for all resources, version 1 a tree for memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from time import monotonic

import torch
from torch import Tensor

from tangentlab.errors import MemoryBudgetError
from tangentlab.temporary import changed

_FRACTION = 0.5
_LOOK_SECONDS = 0.02
_seen = (-1.0, 0)
_budget: int | None = None


def memory_budget() -> int:
    """Bytes that one result or one chunk of work may take: what was set, else half of what is free.

    What is free is looked up at most every `_LOOK_SECONDS`: a kernel of a small network asks several times in less.
    """
    global _seen
    if _budget is not None:
        return _budget
    now = monotonic()
    if now - _seen[0] > _LOOK_SECONDS:
        _seen = now, available_bytes()
    return int(_FRACTION * _seen[1])


def set_memory_budget(nbytes: int | None) -> None:
    """Set the budget in bytes; None goes back to a fraction of what is free."""
    global _budget
    _budget = nbytes


@contextmanager
def memory_limit(nbytes: int | None) -> Iterator[None]:
    """The budget for the time of a `with` block; None leaves it as it is."""
    before = _budget
    yield from changed(
        lambda: set_memory_budget(before if nbytes is None else nbytes), lambda: set_memory_budget(before)
    )


_LARGEST_LESSON = (1 << 25) - (1 << 16)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed blocks for the next allocation; asked once per process.

    glibc maps large blocks anew each time until it has seen one freed, and a fresh page costs more to touch than to
    compute on (a kernel of a small network took 1.6 times as long). It learns from one block of the largest size that it
    adapts to, 32 MB, which is never touched and costs nothing; from then on it keeps up to 64 MB.
    """
    torch.empty(_LARGEST_LESSON, dtype=torch.uint8, device="cpu")


_MAPPED_ANEW = 32 << 20
"""Bytes from which the C library asks the system for fresh pages every time."""


def fresh_zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of the type and device of `like`, for results of which parts stay zero: those parts cost no time and no memory.

    Large ones are pages that the system maps as zeros and provides when they are first written to.
    """
    nbytes = torch.Size(shape).numel() * like.element_size()
    if (
        nbytes < _MAPPED_ANEW
        or like.device.type != "cpu"
        or type(like) is not Tensor
        or not hasattr(mmap, "MAP_PRIVATE")
    ):
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


def resident_bytes() -> int | None:
    """Physical memory that this process has now, None where the system does not tell."""
    resident = _table(Path("/proc/self/status")).get("VmRSS")
    return None if resident is None else resident * 1024


def human_bytes(nbytes: float) -> str:
    """12.3 GB, 2.3 PB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2g} PB"


def require_memory(nbytes: int, what: str, instead: str) -> None:
    """Refuse a result that would not fit, saying what it needs, what there is and what would fit."""
    budget = memory_budget()
    if nbytes > budget:
        raise MemoryBudgetError(
            f"{what} needs {human_bytes(nbytes)} and the memory budget is {human_bytes(budget)} "
            f"(tangentlab.set_memory_budget changes it). {instead}"
        )


_UNKNOWN = 8 << 30
"""What is assumed where the system does not say."""
_UNLIMITED = 1 << 60
_LIMITS_LAST = 10.0
"""Seconds after which the limits of control groups, which hardly change, are read again; what is used is read every time."""


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that are free now; limits of control groups and of the process count. root: where /proc and /sys are."""
    groups = _limited_groups(root, int(monotonic() // _LIMITS_LAST))
    return max(0, min([_machine(root), *_process(root), *(group.left() for group in groups)]))


def _machine(root: Path) -> int:
    table = _table(root / "proc/meminfo")
    if "MemAvailable" in table:
        return table["MemAvailable"] * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else _UNKNOWN


def _process(root: Path) -> Iterator[int]:
    """What `ulimit -v` and `ulimit -d` leave: they bound the addresses in use, whatever is behind them."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    for kind, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - _table(root / "proc/self/status").get(used, 0) * 1024


@dataclass(frozen=True)
class _Group:
    """A control group with a limit in bytes."""

    folder: Path
    limit: int
    version: int

    def left(self) -> int:
        """What it leaves; file cache is given back when needed."""
        usage, reclaimable = _USED[self.version]
        return (
            self.limit - (_number(self.folder / usage) or 0) + _table(self.folder / "memory.stat").get(reclaimable, 0)
        )


_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
_USED = {1: ("memory.usage_in_bytes", "total_inactive_file"), 2: ("memory.current", "inactive_file")}


@lru_cache(maxsize=1)
def _limited_groups(root: Path, period: int) -> tuple[_Group, ...]:
    """The control groups above this process that have a limit."""
    found: list[_Group] = []
    for line in _lines(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        version = 1 if controllers else 2
        if version == 2 or "memory" in controllers.split(","):
            for top, place in _mounts(root, version):
                found += _levels(root / place.lstrip("/"), _below(path, top), version)
    return tuple(found)


def _levels(mount: Path, path: PurePosixPath, version: int) -> Iterator[_Group]:
    """The group at a path and those above it, where limited; the innermost may tell of limits that cannot be seen."""
    for number, level in enumerate((path, *path.parents)):
        folder = mount / str(level).lstrip("/")
        limits = [_number(folder / name) for name in _LIMITS[version]]
        if version == 1 and number == 0:
            limits.append(_table(folder / "memory.stat").get("hierarchical_memory_limit"))
        limit = min((limit for limit in limits if limit is not None), default=_UNLIMITED)
        if limit < _UNLIMITED:
            yield _Group(folder, limit, version)


def _mounts(root: Path, version: int) -> list[tuple[str, str]]:
    """(the group at its top, mount point) of every tree that accounts for memory."""
    found = []
    for line in _lines(root / "proc/self/mountinfo"):
        fields, kind = line.partition(" - ")[0].split(), line.partition(" - ")[2].split()
        if kind[:1] == ["cgroup2"] and version == 2:
            found.append((fields[3], fields[4]))
        elif kind[:1] == ["cgroup"] and version == 1 and "memory" in kind[-1].split(","):
            found.append((fields[3], fields[4]))
    return found or [("/", "/sys/fs/cgroup" if version == 2 else "/sys/fs/cgroup/memory")]


def _below(path: str, top: str) -> PurePosixPath:
    """Where a group lies under a mount; its top for a group that the mount does not show, as in a container."""
    whole = PurePosixPath(path)
    return PurePosixPath("/") / whole.relative_to(top) if whole.is_relative_to(top) else PurePosixPath("/")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number that a file holds; None for "max", and where there is no such file."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number, as in /proc/meminfo and memory.stat."""
    pairs = [line.replace(":", " ").split()[:2] for line in _lines(path)]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
