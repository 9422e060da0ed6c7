"""Images with a label and a cue that mostly agrees with it, from the user's own files: CelebA and Waterbirds.

| set | label 1 | cue 1 | files |
|---|---|---|---|
| celeba | blond | woman | `list_attr_celeba.txt`, `list_eval_partition.txt`, folder `img_align_celeba` |
| waterbirds | water bird | water behind it | `metadata.csv` and the image folders that it names |

Neither may be redistributed, so neither is fetched: the files are looked for as those of `load` are.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tangentlab.data.dataset import Dataset
from tangentlab.data.formats import read_bytes
from tangentlab.data.image_files import SizedView, central_square, centre_of_squeezed, read_picture
from tangentlab.data.places import Search
from tangentlab.errors import DataFileError, InputError

SPLITS = {"train": 0, "valid": 1, "test": 2}
Rows = list[tuple[Path, int, int, int]]
"""File, split, label and cue of every image."""


@dataclass(frozen=True)
class GroupSet:
    """What is known of such a data set: its files, how they are read, and which part of an image a network sees."""

    folders: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[..., Rows]
    view: SizedView


@dataclass(frozen=True)
class GroupImages:
    """The images of one split, not decoded yet, with `labels (n,)` and `cue (n,)`, all 0 or 1."""

    name: str
    split: str
    files: tuple[Path, ...]
    labels: Tensor
    cue: Tensor

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Tensor) -> GroupImages:
        """The images with these numbers, in this order."""
        files = tuple(self.files[row] for row in rows.tolist())
        return replace(self, files=files, labels=self.labels[rows], cue=self.cue[rows])

    def decoded(self, pixels: int, track: Callable[[Iterable[Path]], Iterable[Path]] = iter) -> Dataset:
        """The images as bytes `(n, 3, pixels, pixels)`, a quarter of the memory of floats, with their labels.

        CelebA: the square in the middle of a photograph. Waterbirds: squeezed to a square and cropped, as ImageNet's
        networks expect it. `track` wraps the loop over files, for a progress bar.
        """
        known = _known(self.name)
        images = torch.empty(len(self), 3, pixels, pixels, dtype=torch.uint8)
        for number, path in enumerate(track(self.files)):
            picture = read_picture(path, lambda image: known.view(image, pixels))
            images[number] = torch.from_numpy(np.ascontiguousarray(picture))
        return Dataset(images, self.labels, self.name, self.split, classes=2)


def group_images(name: str, split: str = "train", *, path: str | os.PathLike[str] | None = None) -> GroupImages:
    """The split "train", "valid" or "test" of "celeba" or "waterbirds".

    Files are looked for in `path` (and nowhere else when it is given), then in `$TANGENTLAB_DATA` and the user's cache,
    there in the folder itself or in one with the name of the set.
    """
    known = _known(name)
    if split not in SPLITS:
        raise InputError(f"The argument split must be one of {', '.join(SPLITS)}, not {split!r}.")
    search = Search(name, known.folders, path)
    found = search.find(*((file,) for file in known.files))
    if found is None:
        raise search.missing([" and ".join(known.files)], "not possible for this data set", fetched=False)
    rows = [row for row in known.read(*found) if row[1] == SPLITS[split]]
    if not rows:
        raise DataFileError(f"{found[0]}: names no image of the split '{split}'.")
    files, _, labels, cue = zip(*rows, strict=True)
    return GroupImages(name, split, files, torch.tensor(labels), torch.tensor(cue))


def _read_celeba(attributes: Path, partition: Path) -> Rows:
    """A table with the number of images, the names of 40 attributes, and for every image its file and 40 times 1 or -1."""
    lines = _lines(attributes)
    splits = {file: split for file, split, *_ in ((*line.split(), "") for line in _lines(partition))}
    if len(lines) < 3 or not lines[0].strip().isdigit():
        raise DataFileError(f"{attributes}: does not start with the number of images and the names of the attributes.")
    names, count = lines[1].split(), int(lines[0])
    for needed in ("Blond_Hair", "Male"):
        if needed not in names:
            raise DataFileError(f"{attributes}: has no attribute '{needed}' in its second line.")
    if len(lines) - 2 != count:
        raise DataFileError(f"{attributes}: announces {count} images and lists {len(lines) - 2}; get it again.")
    blond, male = names.index("Blond_Hair"), names.index("Male")
    rows: Rows = []
    for line in lines[2:]:
        file, *values = line.split()
        if len(values) != len(names) or not {values[blond], values[male]} <= {"1", "-1"}:
            raise DataFileError(f"{attributes}: the line of '{file}' is not {len(names)} times 1 or -1.")
        if file not in splits:
            raise DataFileError(f"{partition}: does not say to which split '{file}' belongs.")
        image = attributes.parent / "img_align_celeba" / file
        rows.append((image, _split(splits[file], partition), int(values[blond] == "1"), int(values[male] == "-1")))
    return rows


def _read_waterbirds(table: Path) -> Rows:
    """A comma-separated table with the columns img_filename, y (1: water bird), place (1: water) and split."""
    reader = csv.DictReader(_lines(table))
    missing = {"img_filename", "y", "place", "split"} - set(reader.fieldnames or ())
    if missing:
        raise DataFileError(f"{table}: has no column {', '.join(sorted(missing))}.")
    rows: Rows = []
    for row in reader:
        if not {row["y"], row["place"]} <= {"0", "1"}:
            raise DataFileError(f"{table}: y and place of '{row['img_filename']}' are not 0 or 1.")
        image = table.parent / row["img_filename"]
        rows.append((image, _split(row["split"], table), int(row["y"]), int(row["place"])))
    return rows


def _split(text: str, path: Path) -> int:
    if text not in ("0", "1", "2"):
        raise DataFileError(f"{path}: {text!r} is not a split: 0 is train, 1 valid, 2 test.")
    return int(text)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in read_bytes(path).decode("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path}: cannot be read ({error}).") from error


GROUP_SETS: dict[str, GroupSet] = {
    "celeba": GroupSet(
        ("celeba", "CelebA"), ("list_attr_celeba.txt", "list_eval_partition.txt"), _read_celeba, central_square
    ),
    "waterbirds": GroupSet(
        ("waterbirds", "waterbird_complete95_forest2water2", "waterbirds/waterbird_complete95_forest2water2"),
        ("metadata.csv",),
        _read_waterbirds,
        centre_of_squeezed,
    ),
}


def _known(name: str) -> GroupSet:
    if name not in GROUP_SETS:
        raise InputError(f"Unknown set of groups '{name}' (known: {', '.join(GROUP_SETS)}).")
    return GROUP_SETS[name]
