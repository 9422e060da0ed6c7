"""Checkpoints: named states of one seed, written whole or not at all, and read without executing anything."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from tangentlab.files import write_atomically


class CheckpointStore:
    """A folder of states made of tensors, numbers, texts, lists and dictionaries."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tried: set[str] = set()

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Replace the state called ``name``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        if name not in self._tried:
            self._try_to_read(name, buffer)
        write_atomically(self._file(name), buffer.getvalue())

    def load(self, name: str) -> dict[str, Any] | None:
        """The state called ``name``, None when there is none or it is damaged (the work is then done again)."""
        path = self._file(name)
        if not path.exists():
            return None
        try:
            state = torch.load(path, weights_only=True)
        except Exception:  # torch.load fails with many types on a damaged file
            return None
        return state if isinstance(state, dict) else None

    def discard(self, name: str) -> None:
        """Remove the state called ``name``, if there is one."""
        self._file(name).unlink(missing_ok=True)

    def _try_to_read(self, name: str, buffer: io.BytesIO) -> None:
        """A state that cannot be read back would make a resumed run start over, without a word."""
        buffer.seek(0)
        try:
            torch.load(buffer, weights_only=True)
        except Exception as error:
            raise TypeError(
                f"the state '{name}' must be made of tensors, numbers, texts, lists and dictionaries: {error}"
            ) from error
        self._tried.add(name)

    def clear(self) -> None:
        """Remove all states; they are worth nothing once the seed has come to its end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, name: str) -> Path:
        readable = re.sub(r"[^A-Za-z0-9.=\-]+", "_", name)[:60]
        return self._folder / f"{readable}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}.pt"
