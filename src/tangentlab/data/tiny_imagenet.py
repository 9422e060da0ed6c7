"""TinyImageNet as it is distributed: a folder of JPEG files per class, and a table of labels for the validation images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tangentlab.data.formats import Bytes
from tangentlab.data.image_files import read_picture
from tangentlab.errors import DataFileError

CLASSES_FILE = "wnids.txt"
PIXELS = 64


def read_tiny_imagenet(folder: Path, split: str) -> tuple[Bytes, Bytes]:
    """Images `(n, 3, 64, 64)` and labels `(n,)`; classes in the order of `wnids.txt`.

    "test" is the validation split: the labels of the official test images were never published.
    """
    classes = {name: number for number, name in enumerate(_lines(folder / CLASSES_FILE))}
    pairs = _train_files(folder, classes) if split == "train" else _validation_files(folder, classes)
    images = np.stack([_picture(path) for path, _ in pairs])
    return images, np.array([label for _, label in pairs], dtype=np.uint8)


def _train_files(folder: Path, classes: dict[str, int]) -> list[tuple[Path, int]]:
    pairs: list[tuple[Path, int]] = []
    for name, label in classes.items():
        files = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not files:
            raise DataFileError(
                f"{folder / 'train' / name / 'images'}: no JPEG files of class {name}; unpack it again."
            )
        pairs += [(file, label) for file in files]
    return pairs


def _validation_files(folder: Path, classes: dict[str, int]) -> list[tuple[Path, int]]:
    table = folder / "val" / "val_annotations.txt"
    pairs = []
    for line in _lines(table):
        name, wnid, *_ = (*line.split("\t"), "", "")
        if wnid not in classes:
            raise DataFileError(f"{table}: {name!r} has the class {wnid!r}, which is not in {CLASSES_FILE}.")
        pairs.append((folder / "val" / "images" / name, classes[wnid]))
    return pairs


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataFileError(f"{path}: cannot be read ({error}).") from error
    if not lines:
        raise DataFileError(f"{path}: is empty; unpack the archive again.")
    return lines


def _picture(path: Path) -> Bytes:
    """One image (3, 64, 64); a few of the originals are grey and get three equal channels."""
    pixels = read_picture(path)
    if pixels.shape != (3, PIXELS, PIXELS):
        raise DataFileError(f"{path}: is {pixels.shape[2]} x {pixels.shape[1]}, TinyImageNet has {PIXELS} x {PIXELS}.")
    return pixels
