"""The image data sets: digits (embedded), MNIST, KMNIST, Fashion-MNIST, CIFAR-10, TinyImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from tangentlab.data.dataset import Dataset
from tangentlab.data.formats import IDX_IMAGES, IDX_LABELS, Bytes, check_labels, read_cifar, read_idx
from tangentlab.data.online import OnlineSource, fetch
from tangentlab.data.places import Search, cache_folder, existing, online_allowed
from tangentlab.data.tiny_imagenet import CLASSES_FILE, read_tiny_imagenet
from tangentlab.errors import DataFileError, InputError

STAND_IN_BYTES = 2**30


@dataclass(frozen=True)
class ImageSet:
    """What is known of an image data set before any file is opened."""

    shape: tuple[int, int, int]
    train: int
    test: int
    folders: tuple[str, ...] = ()
    online: OnlineSource | None = None
    classes: int = 10


IMAGE_SETS: dict[str, ImageSet] = {
    "digits": ImageSet((1, 8, 8), 1437, 360),
    "mnist": ImageSet((1, 28, 28), 60000, 10000, ("mnist", "MNIST/raw"), OnlineSource("mnist_784", 60000, 70000, 784)),
    "kmnist": ImageSet(
        (1, 28, 28), 60000, 10000, ("kmnist", "KMNIST/raw"), OnlineSource("Kuzushiji-MNIST", 60000, 70000, 784)
    ),
    "fashion-mnist": ImageSet(
        (1, 28, 28),
        60000,
        10000,
        ("fashion-mnist", "FashionMNIST/raw"),
        OnlineSource("Fashion-MNIST", 60000, 70000, 784),
    ),
    "cifar10": ImageSet(
        (3, 32, 32), 50000, 10000, ("cifar10", "cifar-10-batches-bin"), OnlineSource("CIFAR_10", 50000, 60000, 3072)
    ),
    "tiny-imagenet": ImageSet((3, 64, 64), 100000, 10000, ("tiny-imagenet-200", "tiny-imagenet"), classes=200),
}


def load(
    name: str,
    split: str = "train",
    *,
    path: str | os.PathLike[str] | None = None,
    download: bool = True,
    fetcher: Callable[..., Any] | None = None,
) -> Dataset:
    """The split "train" or "test" of a data set: inputs `(n, channels, height, width)` in [0, 1], labels `(n,)`.

    Files are looked for in `path` (and nowhere else when it is given), then in `$TANGENTLAB_DATA` and the user's
    cache, and are fetched into the cache by `fetch_openml` when they are in none of these, `download` is true and
    `$TANGENTLAB_OFFLINE` is not set. `digits` is embedded in scikit-learn and needs no file. `fetcher` replaces
    `fetch_openml`.
    """
    known = known_set(name)
    if split not in ("train", "test"):
        raise InputError(f"The argument split must be 'train' or 'test', not {split!r}.")
    if name == "digits":
        return _digits(split)
    search = Search(name, known.folders, path)
    images, labels, note = _read(search, split) or _fetched(search, known, split, download, fetcher)
    return _as_dataset(name, split, images, labels, note)


def known_set(name: str) -> ImageSet:
    """The entry of `name`, or an error that suggests the nearest name."""
    if name not in IMAGE_SETS:
        near = get_close_matches(name, IMAGE_SETS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"Unknown data set '{name}'{hint} (known: {', '.join(IMAGE_SETS)}).")
    return IMAGE_SETS[name]


def stand_in(name: str, split: str = "train", *, count: int | None = None, seed: int = 0) -> Dataset:
    """Uniform noise and random labels in the shape of a data set, for trying a program where the data are absent.

    As many images as the set has, or `count`, or what a gigabyte holds.
    """
    known = known_set(name)
    total = count if count is not None else (known.train if split == "train" else known.test)
    total = min(total, STAND_IN_BYTES // (4 * int(np.prod(known.shape))))
    generator = torch.Generator().manual_seed(seed)
    return Dataset(
        torch.rand(total, *known.shape, generator=generator),
        torch.randint(known.classes, (total,), generator=generator),
        name,
        split,
        classes=known.classes,
        note=f"{name} was absent: noise of the same shape stands in for it",
        stand_in=True,
    )


def _digits(split: str) -> Dataset:
    """scikit-learn's 1797 images in a fixed shuffled order (the original one goes by writer): 1437 train, 360 test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    rows = order[: IMAGE_SETS["digits"].train] if split == "train" else order[IMAGE_SETS["digits"].train :]
    images = torch.from_numpy(bunch.images[rows]).float().div_(16).unsqueeze(1)
    return Dataset(images, torch.from_numpy(bunch.target[rows]).long(), "digits", split, classes=10)


def _as_dataset(name: str, split: str, images: Bytes, labels: Bytes, note: str) -> Dataset:
    pictures = torch.from_numpy(images.astype(np.float32)).div_(255)
    if pictures.dim() == 3:
        pictures = pictures.unsqueeze(1)
    targets = torch.from_numpy(labels.astype(np.int64))
    return Dataset(pictures, targets, name, split, classes=IMAGE_SETS[name].classes, note=note)


def _read(search: Search, split: str) -> tuple[Bytes, Bytes, str] | None:
    """Images, labels and a note from files that exist, or None when they are in no place."""
    if search.name == "tiny-imagenet":
        return _read_tiny_imagenet(search, split)
    return _read_cifar(search, split) if search.name == "cifar10" else _read_idx(search, split)


def _fetched(
    search: Search, known: ImageSet, split: str, download: bool, fetcher: Callable[..., Any] | None
) -> tuple[Bytes, Bytes, str]:
    """Fetch into the cache and read from there, or raise the error that says where was looked."""
    if search.path is not None or known.online is None or not online_allowed(download):
        switched_off = "not tried, it is switched off" if known.online else "not possible for this data set"
        why = "not tried, an explicit path was given" if search.path is not None else switched_off
        raise search.missing(_names(search.name, split), why, fetched=known.online is not None)
    folder = cache_folder() / search.name
    try:
        fetch(search.name, known.online, folder, fetcher)
    except DataFileError as error:
        raise search.missing(_names(search.name, split), str(error)) from error
    found = _read(Search(search.name, known.folders, cache_folder()), split)
    if found is None:
        raise search.missing(_names(search.name, split), "fetched, but the files are not there")
    return found


def _names(name: str, split: str) -> tuple[str, ...]:
    """The file names that must exist for a split."""
    if name == "tiny-imagenet":
        return (CLASSES_FILE,)
    if name == "cifar10":
        return ("data_batch_1.bin",) if split == "train" else ("test_batch.bin",)
    prefix = "train" if split == "train" else "t10k"
    return (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")


def _read_idx(search: Search, split: str) -> tuple[Bytes, Bytes, str] | None:
    images_name, labels_name = _names(search.name, split)
    # the same files are found with a dot in some copies: train-images.idx3-ubyte
    files = search.find(*((name, name.replace("-idx", ".idx")) for name in (images_name, labels_name)))
    if files is None:
        return None
    images_file, labels_file = files
    images, labels = read_idx(images_file, IDX_IMAGES), read_idx(labels_file, IDX_LABELS)
    expected = IMAGE_SETS[search.name].shape[1:]
    if images.shape[1:] != expected:
        raise DataFileError(f"{images_file}: images are {images.shape[1:]}, {search.name} has {expected}.")
    if len(images) != len(labels):
        raise DataFileError(f"{images_file} holds {len(images)} images but {labels_file} {len(labels)} labels.")
    check_labels(labels, labels_file)
    return images, labels, _shortage(search.name, split, len(images))


def _read_cifar(search: Search, split: str) -> tuple[Bytes, Bytes, str] | None:
    """All batches that are there, without a gap (batch 3 alone would silently be another data set)."""
    files = search.find(_names(search.name, split))
    if files is None:
        return None
    if split == "train":
        for k in range(2, 6):
            file = existing(files[0].parent, [f"data_batch_{k}.bin"])
            if file is None:
                break
            files.append(file)
    batches = [read_cifar(file) for file in files]
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    return images, labels, _shortage(search.name, split, len(images))


def _read_tiny_imagenet(search: Search, split: str) -> tuple[Bytes, Bytes, str] | None:
    files = search.find(_names(search.name, split))
    if files is None:
        return None
    images, labels = read_tiny_imagenet(files[0].parent, split)
    return images, labels, _shortage(search.name, split, len(images))


def _shortage(name: str, split: str, count: int) -> str:
    """A note when the files hold fewer images than the original."""
    known = IMAGE_SETS[name]
    total = known.train if split == "train" else known.test
    return f"{count:,} of the {total:,} {split} images" if count < total else ""
