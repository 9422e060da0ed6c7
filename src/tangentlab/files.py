"""Files that are whole or not there, that notice damage, and whose errors say what to do."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tangentlab.errors import DataFileError, DiskError, TangentlabError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISPLACED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST})
_SEAL = b"tangentlab blake2b "
_DIGEST_BYTES = 16


@contextmanager
def disk_errors(path: Path, doing: str = "written") -> Iterator[None]:
    """What the system says about a file or folder becomes a `DiskError` that names it and says what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TangentlabError):
            raise
        made = DiskError(f"{path} cannot be {doing} ({error.strerror or error}): {_advice(error.errno, doing)}.")
        made.errno = error.errno
        raise made from error


def _advice(number: int | None, doing: str) -> str:
    if number in FULL:
        return "free some space, or take another folder"
    if number in _FORBIDDEN:
        return f"take one that may be {doing}, or change its permissions"
    if number in _MISPLACED:
        return "a file lies where a folder is needed, or the other way round; take another name"
    return "look at the path and at the disk"


def make_folder(path: Path) -> Path:
    """The folder, made with those above it where it is not there."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write `content` so that `path` holds either all of it or what it held before, whatever happens meanwhile."""
    data = content.encode() if isinstance(content, str) else content
    with disk_errors(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp makes private files; a run folder is meant to be shared
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_sealed(path: Path, data: bytes) -> None:
    """Write `data` with a checksum behind it, which readers of archives and of arrays pass over."""
    write_atomically(path, data + _SEAL + _digest(data))


def read_sealed(path: Path) -> bytes:
    """What `write_sealed` was given, or an error where it was changed since; a file without a checksum as it is."""
    with disk_errors(path, "read"):
        content = path.read_bytes()
    data, seal, digest = content.rpartition(_SEAL)
    if not seal or len(digest) != 2 * _DIGEST_BYTES:
        return content
    if digest != _digest(data):
        raise DataFileError(f"{path} is damaged: its content does not have the checksum that was written with it.")
    return data


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers, texts, lists and dictionaries of them, whole and with a checksum."""
    import torch  # the command line reads files before it needs torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_sealed(path, buffer.getvalue())


def read_state(path: Path, way_out: str) -> dict[str, Any]:
    """What `write_state` was given, on the CPU, without running any code; else an error that ends with the way out."""
    import torch

    try:
        state = torch.load(io.BytesIO(read_sealed(path)), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails with many types on what it cannot read
        raise DataFileError(f"{path} cannot be read ({error}). {way_out}") from error
    if not isinstance(state, dict):
        raise DataFileError(f"{path} does not hold a state. {way_out}")
    return state


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest().encode()
