"""Checkpoints: named states of one seed, written whole with a checksum, and read without executing anything."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from tangentlab.bench.errors import RunError
from tangentlab.errors import DiskError
from tangentlab.files import make_folder, read_sealed, write_sealed


class CheckpointStore:
    """A folder of states made of tensors, numbers, texts, lists and dictionaries."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tried: set[str] = set()

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Replace the state called `name`."""
        make_folder(self._folder)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        if name not in self._tried:
            self._try_to_read(name, buffer)
        write_sealed(self._file(name), buffer.getvalue())

    def load(self, name: str) -> dict[str, Any] | None:
        """The state called `name`, None when there is none; an error when it is not what was saved."""
        path = self._file(name)
        if not path.exists():
            return None
        try:
            state = torch.load(io.BytesIO(read_sealed(path)), weights_only=True)
        except DiskError:
            raise
        except Exception:  # torch.load fails with many types on what it cannot read
            state = None
        if not isinstance(state, dict):
            raise RunError(
                f"The checkpoint '{name}' is damaged. Delete {path} to compute that part again, then go on with --resume."
            )
        return state

    def discard(self, name: str) -> None:
        """Remove the state called `name`, if there is one."""
        self._file(name).unlink(missing_ok=True)

    def _try_to_read(self, name: str, buffer: io.BytesIO) -> None:
        """A state that cannot be read back would make a resumed run start over, without a word."""
        buffer.seek(0)
        try:
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise TypeError(
                f"The state '{name}' must be made of tensors, numbers, texts, lists and dictionaries: {error}"
            ) from error
        self._tried.add(name)

    def clear(self) -> None:
        """Remove all states; they are worth nothing once the seed has come to its end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, name: str) -> Path:
        readable = re.sub(r"[^A-Za-z0-9.=\-]+", "_", name)[:60]
        return self._folder / f"{readable}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}.pt"
