"""What is kept of a published result, so that it can be judged and drawn again: its rows and arrays, compressed.

`metrics.jsonl.xz` holds the rows without their places and checksums, `arrays.npz` the arrays. Numbers that claims are
judged by stay as they are; all others are rounded, first to 6 digits and single precision and, where the files would be larger
than `LIMIT`, to 4 digits and half precision. What neither claims nor figures need is named by `Experiment.dropped`.
"""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangentlab.bench.errors import RunError
from tangentlab.bench.folder import RunFolder
from tangentlab.bench.lab import BENCH_TABLES
from tangentlab.bench.row_files import Row, read_rows
from tangentlab.files import read_sealed, write_atomically
from tangentlab.plain import plain, restored

LIMIT = 300_000
ROWS, ARRAYS = "metrics.jsonl.xz", "arrays.npz"
_PRECISIONS = ((6, np.float32), (4, np.float16))
Array = NDArray[Any]


@dataclass(frozen=True)
class Kept:
    """The rows and arrays of a result; `arrays` has the keys `seed/name`."""

    rows: list[Row]
    arrays: dict[str, Array]

    @classmethod
    def of(cls, folder: Path) -> Kept | None:
        """What a folder keeps, None where it keeps nothing."""
        if not (folder / ROWS).exists():
            return None
        try:
            lines = lzma.decompress((folder / ROWS).read_bytes()).decode().splitlines()
            rows = [restored(json.loads(line)) for line in lines]
            arrays = _read_arrays(folder / ARRAYS) if (folder / ARRAYS).exists() else {}
        except (lzma.LZMAError, ValueError, zipfile.BadZipFile) as error:
            raise RunError(
                f"What {folder} keeps of its metrics cannot be read ({error}). Take a copy that is whole."
            ) from error
        return cls(rows, arrays)


def keep(run: RunFolder, target: Path, dropped: tuple[str, ...] = ()) -> int:
    """Write the rows and arrays of a run into `target`, without the `dropped` tables and arrays; returns the bytes.

    Names may be patterns, and an array's may begin with its seed: `[!0]/maps-*` are the maps of all seeds but the first.
    """

    def wanted(*names: str) -> bool:
        return not any(fnmatch(name, pattern) for name in names for pattern in dropped)

    rows = [row for row in read_rows(run.metrics_file) if wanted(row["table"])]
    arrays = {name: array for name, array in _arrays(run).items() if wanted(name, name.split("/", 1)[1])}
    for digits, precision in _PRECISIONS:
        files = {ROWS: _compressed(rows, digits)}
        if arrays:
            files[ARRAYS] = _packed({name: _rounded_array(array, precision) for name, array in arrays.items()})
        size = sum(map(len, files.values()))
        if size <= LIMIT:
            for name, content in files.items():
                write_atomically(target / name, content)
            return size
    raise RunError(
        f"The metrics of {run.path} take {size:,} bytes, of which {LIMIT:,} may be kept. Name tables and arrays that neither "
        f"claims nor figures need in `dropped`, or log less. Largest: {', '.join(_largest(rows, arrays))}."
    )


def _compressed(rows: list[Row], digits: int) -> bytes:
    lines = []
    for row in rows:
        content = {key: value for key, value in row.items() if key != "row"}
        exact = row["table"] in BENCH_TABLES
        lines.append(json.dumps(plain(content if exact else _rounded(content, digits)), ensure_ascii=False))
    return lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9)


def _rounded(value: Any, digits: int) -> Any:
    """Every number with a fraction to so many significant digits."""
    if isinstance(value, dict):
        return {key: _rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _rounded_array(array: Array, precision: type) -> Array:
    if array.dtype.kind != "f" or array.dtype.itemsize <= np.dtype(precision).itemsize:
        return array
    with np.errstate(over="ignore"):
        small: Array = array.astype(precision)
    finite = np.isfinite(array)
    return small if np.isfinite(small[finite]).all() else array.astype(np.float32)


def _packed(arrays: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read_arrays(file: Path) -> dict[str, Array]:
    with np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _arrays(run: RunFolder) -> dict[str, Array]:
    files = sorted((run.path / "arrays").glob("*/*.npy"))
    return {
        f"{file.parent.name}/{file.stem}": np.load(io.BytesIO(read_sealed(file)), allow_pickle=False) for file in files
    }


def _largest(rows: list[Row], arrays: dict[str, Array], count: int = 4) -> list[str]:
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[f"table '{row['table']}'"] += len(json.dumps(plain(row)))
    for name, array in arrays.items():
        sizes[f"array '{name.split('/', 1)[1]}'"] += array.nbytes
    return [f"{name} ({size:,} bytes before compression)" for name, size in sizes.most_common(count)]
