"""Files of one JSON object per line, appended in one write each, in which damage is noticed.

The last member of a line is the CRC-32 of the object without it: `{"a": 1, "crc32": "d3f85cd1"}` is `{"a": 1}`. Lines
without one, of earlier versions, are read as they are. A line that a killed process did not finish is not damage.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from tangentlab.errors import InputError
from tangentlab.files import disk_errors
from tangentlab.plain import plain, restored

Row = dict[str, Any]
CHECK = "crc32"
_CHECKED = re.compile(rb'(\{.*), "([^"]*)": "([0-9a-f]{8})"\}', re.DOTALL)


@dataclass(frozen=True)
class Line:
    """A line of a file: its number from 1 on, its object (None where it has none), and whether it was changed since."""

    number: int
    row: Row | None
    damaged: bool = False


class LineWriter:
    """Appends objects to a file. Several processes may append to the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system at once."""
        self._write(line_of(row).encode())

    def end_line(self) -> None:
        """Begin a new line after one that was not finished."""
        self._write(b"\n")

    def sync(self) -> None:
        """Wait until the lines are on the disk itself."""
        with disk_errors(self._path):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        with disk_errors(self._path):
            os.close(self._file)

    def _write(self, line: bytes) -> None:
        with disk_errors(self._path):
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, "only a part of a line was taken")


def line_of(row: Mapping[str, Any]) -> str:
    """An object as the line that holds it, with its checksum and the end of the line."""
    if CHECK in row or not row:
        raise InputError(f"A row has at least one column, and none called {CHECK!r}, which holds its checksum.")
    try:
        body = json.dumps(plain(row), allow_nan=False)
    except RecursionError:
        raise InputError("A row is nested too deeply to be written: keep it flat.") from None
    return f'{body[:-1]}, "{CHECK}": "{crc32(body.encode()):08x}"}}\n'


def read_lines(path: Path) -> Iterator[Line]:
    """All lines of a file that are not empty."""
    with disk_errors(path, "read"):
        content = path.read_bytes()
    for number, text in enumerate(content.split(b"\n"), start=1):
        if text:
            yield _parsed(number, text)


def _parsed(number: int, text: bytes) -> Line:
    """A line with a checksum is judged by it, whatever has become of its name; one without by whether it is an object."""
    found = _CHECKED.fullmatch(text)
    body = text if found is None else found[1] + b"}"
    right = found is not None and crc32(body) == int(found[3], 16)
    if found is not None and right != (found[2] == CHECK.encode()):
        return Line(number, None, damaged=True)
    try:
        row = restored(json.loads(body if right else text))
    except RecursionError:
        return Line(number, None, damaged=True)
    except ValueError:
        return Line(number, None)
    if not isinstance(row, dict):
        return Line(number, None)
    return Line(number, None, damaged=True) if CHECK in row else Line(number, row)
