"""Readers and writers of the canonical image files: IDX (MNIST and its cousins) and CIFAR binary.

Every reader checks the magic number, the sizes in the header and the length of the file, so that a truncated or foreign
file is an error and never data. IDX files may be gzip-compressed (by their content, whatever their name).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangentlab.errors import DataFileError

IDX_LABELS = 0x00000801
IDX_IMAGES = 0x00000803
CIFAR_RECORD = 1 + 3 * 32 * 32

Bytes = NDArray[np.uint8]


def read_bytes(path: Path) -> bytes:
    """All bytes of `path`, decompressed if it is a gzip file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror or error}).") from error
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(
            f"{path}: the gzip stream is corrupt or cut short ({error}); delete it and get it again."
        ) from error


def read_idx(path: Path, magic: int) -> Bytes:
    """The array of an IDX file of unsigned bytes, whose first four bytes must be `magic`.

    The last byte of the magic number is the number of axes; one big-endian 32-bit size per axis follows, then the data
    in row-major order.
    """
    content = read_bytes(path)
    axes = magic & 0xFF
    header = 4 + 4 * axes
    if len(content) < header:
        raise DataFileError(f"{path}: only {len(content)} bytes, shorter than the {header}-byte header of an IDX file.")
    found, *shape = struct.unpack(f">{1 + axes}I", content[:header])
    if found != magic:
        raise DataFileError(f"{path}: magic number is 0x{found:08x}, such an IDX file starts with 0x{magic:08x}.")
    expected = int(np.prod(shape, dtype=object))
    if len(content) - header != expected:
        raise DataFileError(
            f"{path}: the header announces {' x '.join(map(str, shape))} = {expected} bytes, "
            f"the file holds {len(content) - header}; it is truncated or corrupt, delete it and get it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def idx_bytes(array: Bytes) -> bytes:
    """`array` as the content of a gzip-compressed IDX file (the inverse of `read_idx`)."""
    magic = 0x00000800 | array.ndim
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    return gzip.compress(header + np.ascontiguousarray(array, dtype=np.uint8).tobytes(), compresslevel=6, mtime=0)


def read_cifar(path: Path) -> tuple[Bytes, Bytes]:
    """Images `(n, 3, 32, 32)` and labels `(n,)` of one CIFAR-10 binary batch.

    A record is one label byte followed by the red, green and blue planes, 1024 bytes each.
    """
    content = read_bytes(path)
    count, rest = divmod(len(content), CIFAR_RECORD)
    if rest or not count:
        raise DataFileError(
            f"{path}: {len(content)} bytes is not a whole number of {CIFAR_RECORD}-byte CIFAR-10 records; "
            "it is truncated or not the binary version, delete it and get it again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, CIFAR_RECORD)
    check_labels(records[:, 0], path)
    return records[:, 1:].reshape(count, 3, 32, 32), records[:, 0]


def cifar_bytes(images: Bytes, labels: Bytes) -> bytes:
    """Images `(n, 3, 32, 32)` and labels as the content of a CIFAR-10 binary batch (the inverse of `read_cifar`)."""
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).astype(np.uint8).tobytes()


def check_labels(labels: Bytes, path: Path, classes: int = 10) -> None:
    """Raise unless every label names one of the `classes`."""
    if labels.size and labels.max() >= classes:
        raise DataFileError(
            f"{path}: holds the label {labels.max()}, expected 0 to {classes - 1}; the file is corrupt."
        )
