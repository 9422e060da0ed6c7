"""What is kept of a published result, so that it can be judged and drawn again: its rows and arrays, compressed.

`metrics.jsonl.xz` holds the rows without their places and checksums, `arrays.npz` the arrays. Numbers that `Lab.measure`
recorded stay as they are; all others are rounded, rows to 6 digits and arrays to single precision. What neither claims nor
figures need is named by `Experiment.dropped`.

`Results` reads a run through the same two functions (`kept_rows`, `kept_array`), so a run is judged and drawn by the very
numbers that will be kept of it: what is published cannot come to another verdict.
"""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Iterable
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
DIGITS = 6
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


def is_dropped(name: str, dropped: tuple[str, ...]) -> bool:
    """Whether a table or an array is among those that are not kept; `dropped` may hold patterns."""
    return any(fnmatch(name, pattern) for pattern in dropped)


def array_is_dropped(name: str, is_first: bool, dropped: tuple[str, ...]) -> bool:
    """Whether a seed's array is: all seeds but the first have theirs under `others/` as well (`others/maps-*`)."""
    return is_dropped(name, dropped) or (not is_first and is_dropped(f"others/{name}", dropped))


def kept_rows(rows: Iterable[Row], dropped: tuple[str, ...] = ()) -> list[Row]:
    """The rows that are kept, as they are kept; those of the bench's own tables are exact."""
    found = []
    for row in rows:
        if not is_dropped(row["table"], dropped):
            content = {key: value for key, value in row.items() if key != "row"}
            found.append(content if row["table"] in BENCH_TABLES else _rounded(content))
    return found


def kept_array(array: Array) -> Array:
    """An array as it is kept: numbers in double precision become single, unless that would overflow."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        small: Array = array.astype(np.float32)
    return small if np.isfinite(small[np.isfinite(array)]).all() else array


def keep(run: RunFolder, target: Path, dropped: tuple[str, ...] = ()) -> int:
    """Write the rows and arrays of a run into `target`, without the `dropped` tables and arrays; returns the bytes."""
    rows = kept_rows(read_rows(run.metrics_file), dropped)
    first = run.config().seeds[0]
    arrays = {
        f"{seed}/{name}": kept_array(array)
        for (seed, name), array in _arrays(run).items()
        if not array_is_dropped(name, seed == first, dropped)
    }
    files = {ROWS: _compressed(rows), **({ARRAYS: _packed(arrays)} if arrays else {})}
    size = sum(map(len, files.values()))
    if size > LIMIT:
        raise RunError(
            f"The metrics of {run.path} take {size:,} bytes, of which {LIMIT:,} may be kept. Name tables and arrays that "
            f"neither claims nor figures need in `dropped`, log less, or save arrays that are only drawn in half precision. "
            f"Largest: {', '.join(_largest(rows, arrays))}."
        )
    for name, content in files.items():
        write_atomically(target / name, content)
    return size


def _compressed(rows: list[Row]) -> bytes:
    lines = (json.dumps(plain(row), ensure_ascii=False) for row in rows)
    return lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9)


def _rounded(value: Any) -> Any:
    """Every number with a fraction to `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _packed(arrays: dict[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read_arrays(file: Path) -> dict[str, Array]:
    with np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _arrays(run: RunFolder) -> dict[tuple[int, str], Array]:
    files = sorted((run.path / "arrays").glob("*/*.npy"))
    return {
        (int(file.parent.name), file.stem): np.load(io.BytesIO(read_sealed(file)), allow_pickle=False) for file in files
    }


def _largest(rows: list[Row], arrays: dict[str, Array], count: int = 4) -> list[str]:
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[f"table '{row['table']}'"] += len(json.dumps(plain(row)))
    for name, array in arrays.items():
        sizes[f"array '{name.split('/', 1)[1]}'"] += array.nbytes
    return [f"{name} ({size:,} bytes before compression)" for name, size in sizes.most_common(count)]
