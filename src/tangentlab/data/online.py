"""Fetching by scikit-learn's `fetch_openml` into canonical files of the user's cache.

What arrives is checked (number of images, pixel range, labels) before anything is stored, and every file is written
under a temporary name and then renamed, so a download that stops half-way leaves nothing that looks like data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tangentlab.data.formats import Bytes, cifar_bytes, idx_bytes
from tangentlab.errors import DataFileError
from tangentlab.files import make_folder, write_atomically


@dataclass(frozen=True)
class OnlineSource:
    """A data set on OpenML: its name there, the number of training images that come first, the total."""

    openml_name: str
    train: int
    total: int
    features: int


def fetch(name: str, source: OnlineSource, folder: Path, fetcher: Callable[..., Any] | None = None) -> None:
    """Download `source` and store it in `folder` as canonical files.

    `fetcher` has the signature of `sklearn.datasets.fetch_openml`, which is used by default.
    """
    try:
        bunch = (fetcher or _scikit_learn())(
            source.openml_name, version=1, as_frame=False, parser="liac-arff", cache=False
        )
    except DataFileError:
        raise
    except Exception as error:  # the network fails in many ways, and all of them mean: no data
        raise DataFileError(f"{name}: fetching '{source.openml_name}' from OpenML failed: {error}") from error
    images, labels = _checked(name, source, bunch.data, bunch.target)
    make_folder(folder)
    for file_name, content in _files(source, images, labels):
        write_atomically(folder / file_name, content)


def _scikit_learn() -> Callable[..., Any]:
    from sklearn.datasets import fetch_openml

    function: Callable[..., Any] = fetch_openml
    return function


def _checked(name: str, source: OnlineSource, data: Any, target: Any) -> tuple[Bytes, Bytes]:
    """Images `(n, features)` and labels as bytes, or an error that says what is wrong with the answer."""
    pixels = np.asarray(data, dtype=np.float64)
    if pixels.shape != (source.total, source.features):
        raise DataFileError(
            f"{name}: OpenML answered with an array of shape {pixels.shape}, "
            f"expected {(source.total, source.features)}; nothing was stored."
        )
    try:
        labels = np.asarray(target).astype(np.int64)
    except ValueError as error:
        raise DataFileError(f"{name}: OpenML answered with labels that are not numbers; nothing was stored.") from error
    valid = np.isfinite(pixels).all() and (pixels == np.round(pixels)).all()
    if not valid or pixels.min() < 0 or pixels.max() > 255:
        raise DataFileError(
            f"{name}: OpenML answered with pixels that are not whole numbers from 0 to 255; nothing was stored."
        )
    if labels.shape != (source.total,) or labels.min() < 0 or labels.max() > 9:
        raise DataFileError(f"{name}: OpenML answered with labels outside 0 to 9; nothing was stored.")
    return pixels.astype(np.uint8), labels.astype(np.uint8)


def _files(source: OnlineSource, images: Bytes, labels: Bytes) -> list[tuple[str, bytes]]:
    """The canonical files of a data set, as `(name, content)`."""
    cut = source.train
    if source.features == 3072:
        batches = np.array_split(np.arange(cut), 5)
        parts = [(f"data_batch_{k}.bin", rows) for k, rows in enumerate(batches, start=1)]
        parts.append(("test_batch.bin", np.arange(cut, source.total)))
        return [(file, cifar_bytes(images[rows].reshape(-1, 3, 32, 32), labels[rows])) for file, rows in parts]
    pictures = images.reshape(-1, 28, 28)
    return [
        ("train-images-idx3-ubyte.gz", idx_bytes(pictures[:cut])),
        ("train-labels-idx1-ubyte.gz", idx_bytes(labels[:cut])),
        ("t10k-images-idx3-ubyte.gz", idx_bytes(pictures[cut:])),
        ("t10k-labels-idx1-ubyte.gz", idx_bytes(labels[cut:])),
    ]
